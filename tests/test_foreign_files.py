"""Files of somebody else: a checkpoint or a run's folder that is opened must execute nothing.

Those marked ``xfail`` are known holes. Each test fails when its hole is closed, so that the mark goes with it.
"""

import os
import threading
import warnings
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner.checkpoint import CheckpointLoader
from run_logs import epochs, settings, write_session
from small_world import write_trained

from mmrm import cli, compat
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserError


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv('MMRM_DEVICE', 'cpu')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    monkeypatch.chdir(tmp_path)


def call(*argv) -> None:
    """Run a command; whether it ends with an error does not matter here."""
    try:
        cli.main(list(map(str, argv)))
    except SystemExit:
        pass
    except Exception as error:
        warnings.warn(f'{type(error).__name__}: {error}', stacklevel=2)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason='a config that a checkpoint carries may name any function as a type'
)
@pytest.mark.parametrize('command', ['predict', 'export onnx'])
def test_a_config_inside_a_checkpoint_names_no_function_to_call(command, tmp_path):
    config, checkpoint = write_trained(tmp_path)
    marker = tmp_path / 'marker'
    cfg = Config.fromfile(config)
    cfg.model.backbone = dict(type='os.system', command=f'touch {marker}')
    saved = torch.load(checkpoint, weights_only=True)
    saved['meta']['cfg'] = cfg.pretty_text
    torch.save(saved, tmp_path / 'evil.pth')
    image = next((tmp_path / 'data').rglob('*.png'))
    call(*command.split(), tmp_path / 'evil.pth', image if command == 'predict' else tmp_path / 'out.onnx')
    assert not marker.exists()


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the config of a run's folder is executed to read its settings"
)
@pytest.mark.parametrize('command', ['report', 'tables'])
def test_the_config_of_a_foreign_run_is_not_executed(command, tmp_path):
    marker = tmp_path / 'marker'
    code = settings(2) + f'\nopen({str(marker)!r}, "w").close()\n'
    folder = tmp_path / 'work_dirs/rm/resnet18_2xb64_cifar100'
    write_session(folder, '20260101_000000', epochs(1, [50.0, 60.0]), code)
    runs = tmp_path / 'work_dirs'
    call(command, *([runs, '--out', tmp_path / 'page.html'] if command == 'report' else ['--work-dir', runs]))
    assert not marker.exists()


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason='the only .py file beside weights is executed as their config'
)
def test_a_file_beside_weights_is_not_executed(tmp_path):
    config, checkpoint = write_trained(tmp_path)
    marker = tmp_path / 'marker'
    config.write_text(config.read_text() + f'\nopen({str(marker)!r}, "w").close()\n')
    call('predict', checkpoint, next((tmp_path / 'data').rglob('*.png')))
    assert not marker.exists()


@pytest.mark.xfail(
    strict=True, raises=pytest.fail.Exception, reason='weights_only=True corrupts memory before torch 2.10'
)
def test_a_foreign_checkpoint_is_refused_where_torch_cannot_read_it_safely(tmp_path, monkeypatch):
    torch.save(dict(weight=torch.zeros(1)), tmp_path / 'foreign.pth')
    monkeypatch.setattr(torch, '__version__', '2.9.0')
    with pytest.raises(UserError, match=r'2\.10'):
        read_checkpoint(tmp_path / 'foreign.pth')


@pytest.mark.parametrize('read', [read_checkpoint, lambda path: CheckpointLoader.load_checkpoint(str(path))])
def test_another_threads_environment_stays_as_it_is(read, tmp_path, monkeypatch):
    compat.police()
    torch.save(dict(state_dict=dict(weight=torch.zeros(1))), tmp_path / 'weights.pth')
    seen = []
    inner = torch.load

    def load(*args, **kwargs):
        other = threading.Thread(target=lambda: seen.append(dict(os.environ)))
        other.start(), other.join()
        return inner(*args, **kwargs)

    monkeypatch.setattr(torch, 'load', load)
    before = dict(os.environ)
    read(Path(tmp_path / 'weights.pth'))
    assert seen and all(each == before for each in seen)
