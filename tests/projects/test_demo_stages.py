"""The demo: finished stages are kept, stale ones repeated, and a failure is named."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import cv2
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from rich.console import Console
from stand_in import use_stand_in

from mmrm.report.page import is_report
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserError, UserFileError
from mmrm.utils.paths import shipped
from mmrm.weights import registry
from projects.demo import run as command
from projects.demo import stages as demo
from projects.transfer.protocol import shipped_weights

TOOL = shipped() / 'projects' / 'demo' / 'run.py'


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(scope='module')
def planned(tmp_path_factory):
    os.environ['MMRM_PHOTOGRAPHS'] = 'photographs'
    yield demo.plan(tmp_path_factory.mktemp('planned'))
    del os.environ['MMRM_PHOTOGRAPHS']


def test_stages_differ_in_their_backbone_only(planned):
    assert [stage.name for stage in planned] == [
        'pretrain/rm',
        *(f'{network}/{method}' for network in ('atss', 'pspnet') for method in ('rm', 'baseline', 'cutmix')),
    ]
    assert len({stage.fingerprint for stage in planned}) == 7
    for stage in planned[1:]:
        file = shipped_weights(stage.name.split('/')[1])
        assert stage.options == {'model.init_cfg.type': 'StrictPretrained', 'model.init_cfg.checkpoint': str(file)}
        assert file.is_file() and file.name in {row['weights'] for row in registry.shipped_weights().values()}


@pytest.mark.parametrize('name, toolbox', [('atss/rm', 'mmdet.'), ('pspnet/rm', 'mmseg.')])
def test_a_shipped_backbone_fills_the_stock_networks_and_stays_as_it_is(name, toolbox, planned):
    stage = next(stage for stage in planned if stage.name == name)
    config = read_config(stage.config, stage.options)
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model)
    model.init_weights()
    assert type(model).__module__.startswith(toolbox)
    from safetensors.torch import load_file

    given = load_file(shipped_weights('rm'))
    for key, value in model.backbone.state_dict().items():
        assert torch.equal(value, given[f'backbone.{key}'].to(value.dtype)), key
    model.train()
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    assert not any(layer.training for layer in model.backbone.modules() if isinstance(layer, torch.nn.BatchNorm2d))


def test_finished_stages_are_kept_stale_ones_repeated_and_a_failure_is_named(planned, tmp_path, monkeypatch):
    use_stand_in(tmp_path, monkeypatch)
    stage = planned[0]
    demo.train([stage], 1, quiet())
    assert stage.finished() and stage.result()['value'] == 10.0 * stage.epochs
    demo.remove_stale([stage])
    assert stage.finished()
    monkeypatch.setattr(stage, 'fingerprint', 'another')
    demo.remove_stale([stage])
    assert not stage.work_dir.exists()
    (stage.work_dir.parents[1] / 'fail-pretrain').write_text('2')
    console = quiet()
    with pytest.raises(UserError, match='not finished'):
        demo.train([stage], 1, console)
    assert 'pretrain/rm: failed: no data' in console.file.getvalue()
    (stage.work_dir.parents[1] / 'fail-pretrain').unlink()


def test_a_work_dir_is_used_by_one_demo_of_one_kind(tmp_path):
    def refused(path, match, **options):
        with pytest.raises(UserFileError, match=match), demo.claimed(path, **options):
            pass

    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'thesis.tex').write_text('years of work')
    refused(tmp_path / 'mine', 'not the demo')
    refused(tmp_path / 'mine' / 'thesis.tex' / 'below', 'cannot be written')
    (tmp_path / 'mine' / 'demo.json').write_text('{"scene": 1}')  # not the demo's, though named as its own
    refused(tmp_path / 'mine', 'not the demo')
    with demo.claimed(tmp_path / 'demo'):
        refused(tmp_path / 'demo', 'another demo is running')
    refused(tmp_path / 'demo', 'holds a full demo, which a quick one', quick=True)
    with demo.claimed(tmp_path / 'demo', quick=False):
        pass


def test_the_command_tells_a_mistake_in_one_line_and_lets_a_polite_kill_save(tmp_path, monkeypatch, capsys):
    handlers = {}
    monkeypatch.setattr(signal, 'signal', handlers.__setitem__)
    (tmp_path / 'thesis.tex').write_text('years of work')
    with pytest.raises(SystemExit) as stop:
        command.main(['--work-dir', str(tmp_path)])
    assert stop.value.code == 2 and handlers[signal.SIGTERM] is signal.default_int_handler
    printed = capsys.readouterr().err
    assert printed.startswith('error: --work-dir') and printed.count('\n') == 1


def test_photographs_of_another_version_are_replaced(tmp_path):
    root = tmp_path / 'photographs'
    demo.remake_photographs(root, dict(train=2, val=1), quiet())
    demo.remake_photographs(root, dict(train=1, val=1), quiet())
    assert json.loads((root / 'photographs.json').read_text())['train'] == 1
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'file').write_text('x')
    with pytest.raises(UserFileError):
        demo.remake_photographs(tmp_path / 'other', dict(train=1, val=1), quiet())


def test_the_table_holds_the_results_and_nothing_else():
    results = {
        'pretrain/rm': dict(value=90.04, seconds=101),
        'atss/baseline': dict(value=40.5, seconds=60),
        'small/rm': dict(value=1.25),
    }
    assert demo.make_table(results) == [
        ['', 'baseline', 'CutMix', 'RM'],
        ['single cells: top-1', '', '', '90.0'],
        ['ATSS: box AP', '40.5', '', ''],
        ['CIFAR-10 at 16 x 16: top-1', '', '', '1.2'],
        ['single cells: time', '', '', '101 s'],
        ['ATSS: time', '60 s', '', ''],
    ]
    page = demo.table_as_markdown(demo.make_table(results), ['one', 'two'])
    assert '| ATSS: box AP | 40.5 |  |  |' in page and page.endswith('- one\n- two\n')
    steps = [dict(lam=0.1, consistency=0.5), dict(lam=0.3, consistency=0.25)]
    line = demo.method_line(dict(method=steps))
    assert 'fills 20 % of each image' in line and 'from 0.500 to 0.250' in line


@pytest.mark.slow
def test_the_quick_demo_end_to_end_with_a_kill_in_the_middle(tmp_path, monkeypatch):
    work = tmp_path / 'a folder, with a comma' / 'demo'
    command = [sys.executable, TOOL, '--quick', '--work-dir', work, '--jobs', '2']
    monkeypatch.setenv('MMRM_DATA', str(tmp_path / 'no data'))  # a checkout may have CIFAR-10
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not list(work.glob('*/*/epoch_1.pth')):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()

    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert second.returncode == 0, second.stdout + second.stderr
    results = json.loads((work / 'results.json').read_text())
    assert sorted(results) == sorted(f'{row}/{column}' for row, each in demo.NETWORKS.items() for column in each[3])
    table = (work / 'table.md').read_text()
    assert 'Small images: left out without CIFAR-10' in table
    for value in (f'{result["value"]:.1f}' for result in results.values()):
        assert value in table and value in second.stdout
    assert 'StrictPretrained: backbone <- ' in (work / 'atss/rm/console.log').read_text()
    assert cv2.imread(str(work / 'picture.png')).std() > 10 and is_report(work / 'report.html')
    written = {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
    third = subprocess.run(command, cwd='/', capture_output=True, text=True)
    assert third.returncode == 0 and '0 of 7 stages ran now' in third.stdout
    assert written == {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
