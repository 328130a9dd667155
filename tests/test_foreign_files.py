"""Files of somebody else: a checkpoint or a run's folder that is opened must execute nothing."""

import functools
import json
import os
import pickle
import struct
import sys
import threading
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner.checkpoint import CheckpointLoader
from mmpretrain.registry import DATASETS, MODELS
from PIL import Image
from run_logs import epochs, settings, write_session
from safetensors.torch import save_file
from tiny_run import write_trained
from zoo_run import call_main

from mmrm import cli, compat
from mmrm.report.pictures import _draw as of_file
from mmrm.utils import checkpoints, trust
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserError, UserFileError
from mmrm.utils.paths import shipped
from mmrm.weights.build import build_model, open_run
from mmrm.weights.export import export_classifier
from mmrm.weights.inputs import Reader
from mmrm.weights.strict import load_weights

call = functools.partial(call_main, cli.main)


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv('MMRM_DEVICE', 'cpu')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    monkeypatch.chdir(tmp_path)
    yield
    trust.trust(False)


@pytest.fixture
def marker(monkeypatch, tmp_path):
    """A file that code of a foreign file leaves behind: also the module ``evil``, which registers a network."""
    package = tmp_path / 'modules' / 'evil'
    package.mkdir(parents=True)
    (package / '__init__.py').write_text(f'open({str(tmp_path / "marker")!r}, "w").close()\n')
    (package / 'registry.py').write_text('')
    monkeypatch.syspath_prepend(str(tmp_path / 'modules'))
    yield tmp_path / 'marker'
    for name in ('evil', 'evil.registry'):
        sys.modules.pop(name, None)
    assert not (tmp_path / 'marker').exists()


@pytest.fixture
def foreign(tmp_path):
    """Make a checkpoint that carries a config with these changes."""
    config, checkpoint = write_trained(tmp_path)
    cfg, saved = Config.fromfile(config), torch.load(checkpoint, weights_only=True)
    config.unlink()

    def make(**changes):
        cfg.merge_from_dict(changes)
        saved['meta']['cfg'] = cfg.pretty_text
        torch.save(saved, tmp_path / 'foreign.pth')
        return tmp_path / 'foreign.pth'

    return make


def image(tmp_path):
    return next((tmp_path / 'data').rglob('*.png'))


# --------------------------------------------------------------------------------------- a config inside a checkpoint
@pytest.mark.parametrize('command', ['predict', 'export onnx', 'export huggingface'])
def test_a_config_inside_a_checkpoint_names_no_function_to_call(command, foreign, marker, tmp_path, capsys):
    file = foreign(**{'model.backbone': dict(type='os.system', command=f'touch {marker}', _delete_=True)})
    out = image(tmp_path) if command == 'predict' else tmp_path / 'out.onnx'
    code, _, err = call(capsys, *command.split(), file, out)
    assert code == 2 and "model.backbone.type='os.system'" in err and '--trust' in err


def test_the_network_of_a_carried_config_that_an_export_is_compared_with_has_registered_names_only(foreign, marker):
    """To compare its logits, the backbone is built as it was trained."""
    trap = dict(type='os.system', command=f'touch {marker}')
    file = foreign(**{'model.backbone.norm_cfg': trap})
    with pytest.raises(UserFileError, match=r"model\.backbone\.norm_cfg\.type='os\.system'"):
        export_classifier(file, file.with_name('out.pth'), layout='transformers')


LAYER = dict(type='ConvModule', in_channels=3, out_channels=3, kernel_size=3, padding=1, _delete_=True)
TEACHER = dict(
    type='mmdet.KnowledgeDistillationSingleStageDetector',
    _scope_='mmdet',
    backbone=dict(type='ResNet', depth=18),
    neck=dict(type='FPN', in_channels=[64, 128, 256, 512], out_channels=8, num_outs=5),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=8),
    _delete_=True,
)
MODULES = dict(backend='memcached', server_list_cfg='', client_cfg='', sys_path='evil')
TRAPS = {
    'module in a registered scope': {'model.backbone.type': 'mmpretrain.models.backbones.ResNet'},
    'function of a toolbox': {'model.backbone.type': 'mmcv.imread'},
    'module': {'model.backbone.type': 'evil'},
    'default scope': {'default_scope': 'evil'},
    'scope of a part': {'model.head._scope_': 'evil'},
    'scope of a name': {'model.head.type': 'evil.Head'},
    'registered after its import': {'custom_imports': dict(imports=['evil']), 'model.backbone.type': 'EvilNet'},
    'pipeline': {'test_dataloader.dataset.pipeline': [dict(type='evil.Load')]},
    'evaluated type': {'model.test_cfg': dict(nms=dict(type='__import__("evil")'))},
    'evaluated setting': {
        'test_dataloader.dataset.pipeline': [dict(type='torchvision/ConvertImageDtype', dtype='evil()')]
    },
    'name of a padding': {'model.neck': dict(LAYER, padding_mode='evil')},
    'function for a padding': {'model.neck': dict(LAYER, padding='touch evil', padding_mode='os.system')},
    'scope of a padding': {'model.neck': dict(LAYER, padding_mode='evil.Pad')},
    'name of a resize': {
        'test_dataloader.dataset.pipeline': [dict(type='RandomResize', scale=(8, 8), resize_type='evil')]
    },
    'config of a teacher': {'model.neck': dict(TEACHER, teacher_config='modules/evil/__init__.py')},
    'folder of modules': {
        'test_dataloader.dataset.pipeline': [dict(type='LoadImageFromFile', file_client_args=MODULES)]
    },
    'name of a layer': {'model.backbone': dict(type='TIMMBackbone', model_name='a', norm_layer='evil', _delete_=True)},
    'pickled images': {'test_dataloader.dataset.pipeline': [dict(type='ToPIL', decode_backend='evil pickle')]},
    'pickle': {'test_dataloader.dataset.ann_file': 'evil.pkl'},
    'remote code': {'model.head.tokenizer': dict(type='AutoTokenizer', trust_remote_code=True)},
}


@pytest.mark.parametrize('trap', TRAPS)
def test_only_registered_names_are_built(trap, foreign, marker):
    with pytest.raises(UserFileError, match=r'is not a registered name of mmpretrain, mmdet, mmseg') as error:
        Reader(open_run(foreign(**TRAPS[trap])).cfg)
    names = ('evil', 'Evil', 'mmcv', 'mmpretrain.models', 'True', 'os.system', 'code')
    assert any(name in str(error.value) for name in names)


class Unpickler(torch.nn.Module):
    """As RAM and RefCOCO of mmpretrain do, from a file that their config need not name."""

    def __init__(self, **settings):
        super().__init__()
        with open('data.bin', 'rb') as file:
            pickle.load(file)


class Call:
    def __init__(self, marker):
        self.command = f'touch {marker}'

    def __reduce__(self):
        return os.system, (self.command,)


def test_registered_classes_unpickle_nothing_for_a_foreign_config(foreign, marker, tmp_path, monkeypatch):
    (tmp_path / 'data.bin').write_bytes(pickle.dumps(Call(marker)))
    monkeypatch.setitem(MODELS.module_dict, 'Unpickler', Unpickler)
    monkeypatch.setitem(DATASETS.module_dict, 'Unpickler', Unpickler)
    file = foreign(**{'val_dataloader.dataset.type': 'Unpickler'})
    assert 'a pickle with posix.system' in str(of_file(file, 'cpu'))
    with pytest.raises(UserFileError, match=r'foreign\.pth: its config has a pickle with posix\.system'):
        open_run(foreign(**{'model.neck': dict(type='Unpickler', _delete_=True)}))


def test_a_users_own_config_still_names_modules_and_evaluates(foreign, tmp_path):
    """After a foreign one was refused in the same process."""
    with pytest.raises(UserFileError):
        open_run(foreign(**TRAPS['name of a padding']))
    assert MODELS.build(dict(type='torch.nn.Identity')) is not None
    (tmp_path / 'own.py').write_text('a = 1 + 1\n')
    assert Config.fromfile(tmp_path / 'own.py').a == 2
    assert pickle.loads(pickle.dumps(Path('a'))) == Path('a')


def test_a_trusted_checkpoint_imports_what_its_config_asks_for(foreign, marker):
    trust.trust(True)
    open_run(foreign(custom_imports=dict(imports=['mmrm.models', 'evil'])))
    marker.unlink()


@pytest.mark.parametrize(
    'changes',
    [
        {'model.backbone': dict(type='os.system', command='true', _delete_=True)},
        {'model.backbone': dict(type='evil.Net', _delete_=True)},
        {'model': dict(LAYER, padding_mode='evil')},
    ],
)
def test_inferencers_of_the_toolboxes_refuse_foreign_configs(changes, foreign, marker):
    from mmdet.apis import DetInferencer

    compat.police()
    file = foreign(**changes)
    message = r"foreign.pth: its config has (model.backbone.type=|the name )'(os.system|evil)"
    with pytest.raises(UserFileError, match=message):
        DetInferencer(weights=str(file), device='cpu')


def test_types_of_shipped_configs_are_registered():
    init_default_scope('mmengine')
    for name in ('pvtv2', 'pyramidnet200', 'mask-rcnn_pvtv2', 'upernet_r50'):
        config = next((shipped() / 'configs' / 'rm').glob(f'{name}*.py'))
        build_model(trust.ForeignConfig(Config.fromfile(config).to_dict(), config.name))


# ------------------------------------------------------------------------------------------------------- run folders
@pytest.mark.parametrize('command', ['report', 'tables'])
def test_the_config_of_a_foreign_run_is_not_executed(command, marker, tmp_path, capsys):
    code = settings(2) + f'\nopen({str(marker)!r}, "w").close()\n'
    folder = tmp_path / 'work_dirs/rm/resnet18_2xb64_cifar100'
    write_session(folder, '20260101_000000', epochs(1, [50.0, 60.0]), code)
    runs = tmp_path / 'work_dirs'
    options = [runs, '--out', tmp_path / 'page.html'] if command == 'report' else ['--work-dir', runs]
    code, _, err = call(capsys, command, *options)
    assert code == 0 and 'config.py contains code' in err and '--trust' in err
    assert not marker.exists()
    call(capsys, command, *options, '--trust')
    assert marker.exists()
    marker.unlink()


def test_a_file_beside_weights_is_not_executed(marker, tmp_path, capsys):
    config, checkpoint = write_trained(tmp_path)
    config.write_text(config.read_text() + f'\nopen({str(marker)!r}, "w").close()\n')
    code, _, err = call(capsys, 'predict', checkpoint, image(tmp_path))
    assert code == 2 and f'{config.name} contains code' in err and not marker.exists()
    assert call(capsys, 'predict', checkpoint, image(tmp_path), '--trust')[0] == 0 and marker.exists()
    marker.unlink()
    Config.fromfile(config).dump(config)  # as a run writes it down
    marker.unlink()
    assert call(capsys, 'predict', checkpoint, image(tmp_path))[0] == 0


# ------------------------------------------------------------------------------------------------------- old versions
def test_a_foreign_checkpoint_is_refused_where_torch_cannot_read_it_safely(tmp_path, monkeypatch):
    """Before 2.10, weights_only=True does not keep a crafted file from corrupting memory."""
    for folder in ('work', 'other'):
        (tmp_path / folder).mkdir()
        torch.save(dict(weight=torch.zeros(1)), tmp_path / folder / 'epoch_1.pth')
    save_file(dict(weight=torch.zeros(1)), tmp_path / 'weights.safetensors')
    monkeypatch.setattr(checkpoints, '_own', set())
    checkpoints.own_folder(tmp_path / 'work')
    compat.police()
    foreign = tmp_path / 'other' / 'epoch_1.pth'
    for version in ('2.4.1', '2.9.0+cu130'):
        monkeypatch.setattr(torch, '__version__', version)
        for read in (read_checkpoint, lambda path: CheckpointLoader.load_checkpoint(str(path))):
            with pytest.raises(UserError, match=rf'torch {version[:3]}.*CVE-2026-24747.*2\.10.*--trust'):
                read(foreign)
            assert read(tmp_path / 'work' / 'epoch_1.pth') and read(tmp_path / 'weights.safetensors')
        with pytest.raises(UserError, match='CVE-2026-24747'):
            CheckpointLoader.load_checkpoint('https://example.org/weights.pth')
    trust.trust(True)
    assert read_checkpoint(foreign)


# ------------------------------------------------------------------------------------------------------ what is shown
def test_names_in_a_foreign_checkpoint_do_not_reach_the_terminal_as_they_are(foreign, tmp_path, capsys):
    saved = torch.load(foreign(), weights_only=True)
    saved['meta']['dataset_meta'] = dict(classes=('\x1b[31mred', 'class\x9b1\nerror: none'))
    torch.save(saved, tmp_path / 'foreign.pth')
    good, bad = image(tmp_path).rename(tmp_path / 'good\x1b[2J.png'), tmp_path / 'bad\x1b[2J.png'
    bad.touch()
    code, out, err = call(capsys, 'predict', tmp_path / 'foreign.pth', good, bad)
    assert code == 1 and '[31mred' in out and 'bad\ufffd[2J.png is empty' in err and len(out.splitlines()) == 2
    assert not {'\x1b', '\x9b'} & set(out + err)
    saved['state_dict']['backbone.\x1b]0;title\x07'] = torch.zeros(1)
    torch.save(saved, tmp_path / 'foreign.pth')
    code, _, err = call(capsys, 'predict', tmp_path / 'foreign.pth', image(tmp_path))
    assert code == 2 and ']0;title' in err and not {'\x1b', '\x07'} & set(err)


@pytest.mark.parametrize('place', ['header', 'note'])
def test_a_deeply_nested_safetensors_header_is_no_crash(place, tmp_path):
    nested = '[' * 100_000 + ']' * 100_000
    header = '{"a":' + nested + '}' if place == 'header' else json.dumps(dict(__metadata__=dict(meta=nested)))
    (tmp_path / 'deep.safetensors').write_bytes(struct.pack('<Q', len(header)) + header.encode())
    if place == 'note':
        assert read_checkpoint(tmp_path / 'deep.safetensors') == {}
    else:
        with pytest.raises(UserFileError, match=r'deep\.safetensors is truncated or damaged'):
            read_checkpoint(tmp_path / 'deep.safetensors')


@pytest.mark.parametrize(
    'name, value',
    [
        ('backbone.layer1.0.conv1.weight', float('nan')),
        ('backbone.bn1.running_var', float('inf')),
        ('backbone.bn1.running_var', -1.0),
    ],
)
def test_weights_that_are_not_numbers_are_refused_by_name(name, value, foreign, tmp_path, capsys):
    saved = torch.load(foreign(), weights_only=True)
    saved['state_dict'][name][0] = value
    torch.save(saved, tmp_path / 'foreign.pth')
    (tmp_path / 'own.py').write_text(saved['meta']['cfg'])
    start = ('train', 'own.py', '--work-dir', 'work', '--cfg-options', 'load_from=foreign.pth', 'allow_partial=True')
    for command in (
        ('predict', 'foreign.pth', image(tmp_path)),
        ('test', 'own.py', 'foreign.pth'),
        ('export', 'classifier', 'foreign.pth', 'out.pth'),
        ('export', 'backbone', 'foreign.pth', 'out.pth'),
        start,
    ):
        code, _, err = call(capsys, *command)
        assert code == 2 and 'has NaN, Inf or a negative variance in ' in err and name[len('backbone.') :] in err
    masked = torch.nn.Linear(2, 2)
    masked.register_buffer('mask', torch.full((2, 2), float('-inf')))  # as the network itself has it
    torch.save(masked.state_dict(), tmp_path / 'masked.pth')
    load_weights(masked, str(tmp_path / 'masked.pth'))


def test_a_network_that_returns_nan_predicts_nothing(foreign, tmp_path, capsys):
    file = foreign(**{'model.data_preprocessor.std': [0.0] * 3, 'model.data_preprocessor.mean': [0.0] * 3})
    Image.new('RGB', (32, 32)).save(tmp_path / 'black.png')  # 0 / 0
    code, out, err = call(capsys, 'predict', file, tmp_path / 'black.png')
    assert code == 2 and 'returns NaN' in err and 'nan' not in out
    (tmp_path / 'own.py').write_text(torch.load(file, weights_only=True)['meta']['cfg'])
    code, out, err = call(capsys, 'test', 'own.py', file)
    assert code == 2 and 'returns NaN' in err and 'top1' not in out


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
