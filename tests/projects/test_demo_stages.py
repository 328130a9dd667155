"""The demo: what is done is kept, what failed is told, and every step goes through the shipped tools."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from rich.console import Console

from mmrm.report.page import is_report
from mmrm.utils import paths
from mmrm.utils.errors import UserError, UserFileError, UserValueError
from mmrm.weights import registry
from projects.demo import picture
from projects.demo import stages as demo

TOOL = paths.shipped() / 'projects' / 'demo' / 'run.py'
# A stand-in for train.py: logs as mmengine does, for 2 epochs of 3 iterations.
FAKE = """
import json, pathlib, sys
name, metric, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder = pathlib.Path(name, f'run{start}', 'vis_data')
folder.mkdir(parents=True)
with open('order.txt', 'a') as order:
    order.write(name + chr(10))
pathlib.Path(name, 'last_checkpoint').write_text('x')
with open(folder / 'scalars.json', 'w') as log:
    for epoch in (1, 2):
        for step in range(3 * epoch - 2, 3 * epoch + 1):
            rm = dict(rm_lambda=0.1 * step, loss_consistency=0.01 * step) if name == 'pretrain/rm' else {}
            log.write(json.dumps(dict(lr=0.1, loss=1 / step, epoch=epoch, iter=step, step=step, **rm)) + chr(10))
    log.write(json.dumps({metric: 0.5, 'step': 2}) + chr(10))
"""
# The command with other weights than the shipped ones, which one test alone is about.
COMMAND = """
import pathlib, sys
from projects.demo import run as demo
from projects.demo import stages
stages.weights_file = lambda method: pathlib.Path(sys.argv[1], f'{method}.safetensors')
demo.main(sys.argv[2:])
"""


@pytest.fixture
def plan(tmp_path, own_weights) -> demo.Plan:
    """A plan whose stages end at once."""
    plan = demo.Plan(tmp_path, demo.QUICK, quick=True)
    plan.epochs = dict.fromkeys(plan.epochs, 2)
    plan.iterations = lambda stage: 6
    plan.runs = 0

    def command(stage):
        plan.runs += 1
        return [sys.executable, '-c', FAKE, stage.name, stage.metric, str(plan.runs)]

    plan.command = command
    return plan


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def by_name(name: str) -> demo.Stage:
    return next(stage for stage in demo.STAGES if stage.name == name)


# ------------------------------------------------------------------------------------------------------------ stages
def test_every_stage_runs_once(plan):
    ran = demo.run_stages(plan, 3, quiet())
    assert sorted(ran) == sorted(stage.name for stage in demo.STAGES) and len(ran) == 7
    order = (plan.work_dir / 'order.txt').read_text().split()
    assert sorted(order) == sorted(ran)
    known = plan.read(by_name('atss/rm'))
    assert known['value'] == 50 and not known['resumed'] and 'method' not in known
    assert plan.read(by_name('pspnet/rm'))['value'] == 0.5
    method = plan.read(by_name('pretrain/rm'))['method']
    assert [step['iteration'] for step in method] == [1, 2, 3, 4, 5, 6]
    assert method[0] == dict(iteration=1, lam=0.1, consistency=0.01)

    assert demo.run_stages(plan, 3, quiet()) == []
    assert (plan.work_dir / 'order.txt').read_text().split() == order


def test_a_result_counts_only_for_what_it_was_made_of(plan, tmp_path):
    demo.run_stages(plan, 4, quiet())
    same = demo.Plan(tmp_path, demo.QUICK, quick=True)
    assert all(same.done(stage) for stage in demo.STAGES)
    for other in (demo.Plan(tmp_path, demo.COUNTS, quick=True), demo.Plan(tmp_path, demo.QUICK, quick=False)):
        assert not any(other.done(stage) for stage in demo.STAGES)


def test_a_changed_config_or_backbone_redoes_what_depends_on_it(tmp_path, own_weights, monkeypatch):
    def changed() -> list:
        after = demo.Plan(tmp_path, demo.QUICK).stamps
        return sorted(name for name in before if before[name] != after[name])

    before, read_config = demo.Plan(tmp_path, demo.QUICK).stamps, demo.read_config
    assert changed() == []

    def with_another_omega(name, **variables):
        config = read_config(name, **variables)
        if name == 'rm_cells':
            config.model.head.omega = 0.7
        return config

    with monkeypatch.context() as patch:
        patch.setattr(demo, 'read_config', with_another_omega)
        assert changed() == ['pretrain/rm']
    swapped = dict(baseline='baseline', cutmix='cutmix', rm='cutmix')
    monkeypatch.setattr(demo, 'weights_file', lambda method: own_weights / f'{swapped[method]}.safetensors')
    assert changed() == ['atss/rm', 'pspnet/rm']


def test_missing_weights_are_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, 'weights_file', lambda method: tmp_path / f'{method}.safetensors')
    with pytest.raises(UserFileError, match=r'rm\.safetensors is missing'):
        demo.run_demo(tmp_path / 'demo', console=quiet())


def test_leftovers_of_another_version_are_replaced(plan):
    stage = by_name('pretrain/rm')
    folder = plan.folder(stage)
    folder.mkdir(parents=True)
    (folder / 'stage.json').write_text(json.dumps(dict(stamp='older', value=99)))
    (folder / 'epoch_7.pth').write_text('of another config')
    process = demo.Process(plan, stage)
    process.run()
    assert not process.resumed and not (folder / 'epoch_7.pth').exists()
    assert plan.read(stage) == dict(stamp=plan.stamps[stage.name])


def test_a_run_killed_before_its_last_validation_is_run_again(plan):
    """A resumed run that has nothing left to train does not validate, so it gives no result."""
    stage = by_name('atss/cutmix')
    folder = plan.folder(stage)
    folder.mkdir(parents=True)
    plan.write(stage)
    (folder / 'last_checkpoint').write_text('x')
    command, calls = plan.command, []

    def first_does_nothing(which):
        if which is stage:
            calls.append(which)
            if len(calls) == 1:
                return [sys.executable, '-c', '']
        return command(which)

    plan.command = first_does_nothing
    demo.run_stages(plan, 2, quiet())
    assert len(calls) == 2 and plan.read(stage)['value'] == 50


def test_a_failure_ends_the_demo_with_the_end_of_its_log(plan):
    command = plan.command
    others = {
        'atss/baseline': 'import time; time.sleep(60)',
        'atss/cutmix': 'print("error: the disk is full"); raise SystemExit(2)',
    }
    plan.command = lambda stage: [sys.executable, '-c', others[stage.name]] if stage.name in others else command(stage)
    with pytest.raises(UserError, match=r'(?s)atss/cutmix ended with exit code 2.*the disk is full'):
        demo.run_stages(plan, 2, quiet())
    assert not plan.done(by_name('atss/cutmix')) and not plan.done(by_name('atss/baseline'))
    assert plan.done(by_name('pretrain/rm')) and plan.done(by_name('atss/rm'))


def test_without_a_result_a_stage_is_not_done(plan):
    plan.command = lambda stage: [sys.executable, '-c', '']
    with pytest.raises(UserError, match='gave no accuracy/top1'):
        demo.run_stages(plan, 1, quiet())


def test_progress_is_read_from_a_log_that_is_being_written(plan):
    stage = by_name('pretrain/rm')
    process = demo.Process(plan, stage)
    process.run()
    log = next(plan.folder(stage).glob('*/vis_data/scalars.json'))
    lines = log.read_text().splitlines(keepends=True)
    log.write_text(''.join(lines[:4]) + lines[4][:7])
    assert process.progress() == (4 / 6, 'epoch 2/2, loss 0.25, lambda 0.40, consistency 0.040')
    log.write_text('')
    assert process.progress() == (0, 'starting')


def test_lines_are_printed_where_there_is_no_terminal(plan, monkeypatch):
    monkeypatch.setattr(demo.Display.__init__, '__defaults__', (0,))
    console = quiet()
    demo.run_stages(plan, 2, console)
    text = console.file.getvalue()
    assert 'pretrain/rm: started' in text and 'atss/rm: bbox_mAP 50.0' in text and ' %: ' in text


# ------------------------------------------------------------------------------------------------------- the work dir
def test_a_work_dir_of_somebody_else_is_refused(tmp_path):
    (tmp_path / 'thesis.tex').write_text('years of work')
    with pytest.raises(UserFileError, match='not the demo'), demo.claimed(tmp_path):
        pass
    with pytest.raises(UserFileError, match='is a file'), demo.claimed(tmp_path / 'thesis.tex'):
        pass
    with pytest.raises(UserFileError, match='cannot be written'), demo.claimed(tmp_path / 'thesis.tex' / 'below'):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ['thesis.tex']
    (tmp_path / 'demo.json').write_text('{"scene": 1}')  # not the demo's, though named as its own
    with pytest.raises(UserFileError, match='not the demo'), demo.claimed(tmp_path):
        pass


def test_a_quick_demo_does_not_replace_a_full_one(tmp_path):
    with demo.claimed(tmp_path / 'demo'):
        pass
    refused = pytest.raises(UserFileError, match='holds a full demo, which a quick one')
    with refused, demo.claimed(tmp_path / 'demo', quick=True):
        pass
    with demo.claimed(tmp_path / 'demo', quick=False):
        pass


def test_two_demos_do_not_share_a_work_dir(tmp_path):
    running = pytest.raises(UserFileError, match='another demo is running')
    with demo.claimed(tmp_path / 'demo'), running, demo.claimed(tmp_path / 'demo'):
        pass
    with demo.claimed(tmp_path / 'demo'):
        pass


def test_photographs_of_another_version_are_written_anew(tmp_path):
    root = tmp_path / 'photographs'
    demo.remake_photographs(root, dict(train=2, val=1), quiet())
    demo.remake_photographs(root, dict(train=1, val=1), quiet())
    assert json.loads((root / 'photographs.json').read_text())['train'] == 1
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'file').write_text('x')
    with pytest.raises(UserFileError):
        demo.remake_photographs(tmp_path / 'other', dict(train=1, val=1), quiet())


def test_progress_knows_how_many_iterations_there_are(tmp_path, own_weights):
    plan = demo.Plan(tmp_path, dict(train=9, val=1))
    demo.remake_photographs(tmp_path / 'photographs', dict(train=9, val=1), quiet())
    assert plan.iterations(by_name('atss/rm')) == 2 * plan.epochs['atss/rm']
    cells = len(list((tmp_path / 'photographs/cells/train').glob('*/*')))
    assert plan.iterations(by_name('pretrain/rm')) == cells // 32 * plan.epochs['pretrain/rm']


@pytest.mark.parametrize('jobs', [0, -1, 1.5, True])
def test_bad_jobs_are_named(jobs, tmp_path):
    with pytest.raises(UserValueError, match='jobs='):
        demo.run_demo(tmp_path / 'demo', jobs=jobs)
    assert not (tmp_path / 'demo').exists()


def test_the_tool_tells_a_mistake_in_one_line(tmp_path):
    (tmp_path / 'thesis.tex').write_text('years of work')
    done = subprocess.run([sys.executable, TOOL, '--work-dir', tmp_path], cwd='/', capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith('error: --work-dir') and 'Traceback' not in done.stderr


def test_images_are_fetched_beside_a_training_only_and_a_new_result_is_drawn(plan, monkeypatch):
    wanted, drawn, small = [], [], {}

    @contextlib.contextmanager
    def fetched(work_dir, wish):
        wanted.append(wish)
        yield lambda: '' if small else 'no network [/]'

    monkeypatch.setattr(demo, 'Plan', lambda *args: plan)
    monkeypatch.setattr(demo, 'remake_photographs', lambda *args: None)
    monkeypatch.setattr(demo.small_images, 'fetched', fetched)
    monkeypatch.setattr(demo.SmallImages, 'known', lambda self: dict(small))
    monkeypatch.setattr(demo.SmallImages, 'measure', lambda self, missing: (dict(small), missing))
    monkeypatch.setattr(picture, 'draw', lambda work, results, noise, out: drawn.append(results) or out.touch())
    monkeypatch.setattr('mmrm.report.page.try_report', lambda *args: None)

    def run(**options) -> str:
        console = quiet()
        demo.run_demo(plan.work_dir, console=console, **options)
        return console.file.getvalue()

    (plan.work_dir / 'demo.json').write_text('{"mmrm": "0.3.0"}')  # of an earlier version
    assert 'no network [/]' in run() and wanted == [True] and len(drawn) == 1
    run()
    assert wanted == [True, False] and len(drawn) == 1  # all is done: nothing to wait for, nothing new
    small.update({f'small/{method}': dict(value=40.0, sides={'16': 40.0}) for method in demo.COLUMNS})
    assert 'CIFAR-10 at 16 x 16' in run() and len(drawn) == 2 and 'small/rm' in drawn[1]
    run()
    assert len(drawn) == 2
    monkeypatch.setattr(demo, 'measured_noise', lambda: dict(atss=9.9, pspnet=9.9))
    assert '9.9 points' in run() and len(drawn) == 3  # the picture shows the noise as well


# -------------------------------------------------------------------------------------------------------------- results
def test_the_table_holds_the_results_and_nothing_else():
    results = {
        'pretrain/rm': dict(value=90.04, seconds=101, resumed=True),
        'atss/baseline': dict(value=40.5, seconds=60),
        'pspnet/cutmix': dict(value=1.25, seconds=9),
    }
    assert demo.make_table(results) == [
        ['', 'baseline', 'CutMix', 'RM'],
        ['single cells: top-1', '', '', '90.0'],
        ['ATSS: box AP', '40.5', '', ''],
        ['PSPNet: mIoU', '', '1.2', ''],
        ['single cells: time', '', '', '101 s *'],
        ['ATSS: time', '60 s', '', ''],
        ['PSPNet: time', '', '9 s', ''],
    ]
    page = demo.table_as_markdown(demo.make_table(results), ['one', 'two'])
    assert '| ATSS: box AP | 40.5 |  |  |' in page and page.endswith('- one\n- two\n')
    console = quiet()
    console.print(demo.table_for_console(demo.make_table(results)))
    assert '90.0' in console.file.getvalue()


def test_the_method_in_a_sentence():
    steps = [dict(lam=0.1, consistency=0.5), dict(lam=0.3, consistency=0.25)]
    said = demo.method_line(dict(method=steps))
    assert 'fills 20 % of each image' in said and 'from 0.500 to 0.250' in said


# ------------------------------------------------------------------------------------------------- configs and weights
@pytest.mark.parametrize('name, toolbox', [('atss_cells', 'mmdet.'), ('pspnet_cells', 'mmseg.')])
def test_a_shipped_backbone_fills_the_stock_networks_and_stays_as_it_is(name, toolbox, weights, monkeypatch):
    monkeypatch.setenv('MMRM_BACKBONE', str(weights / 'rm.safetensors'))
    config = Config.fromfile(demo.find_config(name))
    assert config.model.init_cfg == dict(type='StrictPretrained', checkpoint=str(weights / 'rm.safetensors'))
    assert 'init_cfg' not in demo.read_config(name).model and os.environ['MMRM_BACKBONE'].startswith(str(weights))
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model)
    model.init_weights()
    assert type(model).__module__.startswith(toolbox)
    given = torch.load(weights / 'rm.pth', weights_only=True)['state_dict']
    for key, value in model.backbone.state_dict().items():
        assert torch.equal(value, given[f'backbone.{key}'].half().to(value.dtype)), key
    model.train()
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    assert not any(layer.training for layer in model.backbone.modules() if isinstance(layer, torch.nn.BatchNorm2d))


@pytest.mark.parametrize('method', ['baseline', 'cutmix', 'rm'])
def test_the_shipped_weights_are_there_and_listed(method):
    """The one test that needs the files themselves."""
    file = demo.weights_file(method)
    assert file.is_file(), f'{file} is not shipped yet'
    entries = [entry for entry in registry.read_list(registry.SHIPPED) if Path(entry.weights).name == file.name]
    assert len(entries) == 1, f'{registry.SHIPPED} does not list {file.name}'
    assert registry.weights_file(entries[0]) == file
    assert f'{method}/resnet18-w16_1xb64_cifar10-250' in entries[0].config


# ------------------------------------------------------------------------------------------------------------ all of it
@pytest.mark.slow
def test_the_quick_demo_end_to_end_with_a_kill_in_the_middle(tmp_path, weights, monkeypatch):
    work = tmp_path / 'a folder, with a comma' / 'demo'
    command = [sys.executable, '-c', COMMAND, weights, '--quick', '--work-dir', work, '--jobs', '2']
    monkeypatch.setenv('MMRM_DATA', str(tmp_path / 'no data'))  # a checkout may have CIFAR-10
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not any('value' in path.read_text() for path in work.glob('*/*/stage.json')):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    done = {path: path.stat().st_mtime_ns for path in work.glob('*/*/stage.json') if 'value' in path.read_text()}

    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert second.returncode == 0, second.stdout + second.stderr
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    results = json.loads((work / 'results.json').read_text())
    assert sorted(results) == sorted(stage.name for stage in demo.STAGES)
    table = (work / 'table.md').read_text()
    assert 'Small images: left out without CIFAR-10' in table
    for value in (f'{result["value"]:.1f}' for result in results.values()):
        assert value in table and value in second.stdout
    assert 'StrictPretrained: backbone <- ' in (work / 'atss/rm/log.txt').read_text()

    import cv2

    assert cv2.imread(str(work / 'picture.png')).std() > 10
    assert is_report(work / 'report.html')
    written = {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
    third = subprocess.run(command, cwd='/', capture_output=True, text=True)
    assert third.returncode == 0 and f'0 of {len(demo.STAGES)} stages ran now' in third.stdout
    assert written == {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
    assert Path(work / 'table.md').read_text() == table
