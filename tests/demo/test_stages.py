"""The demo: what is done is kept, what failed is told, and every step goes through the shipped tools."""

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
from mmengine.registry import MODELS, init_default_scope
from rich.console import Console

import mmrm.weights
from mmrm.demo import stages as demo
from mmrm.report.page import is_report
from mmrm.utils import paths
from mmrm.utils.errors import UserError, UserFileError, UserValueError

TOOL = paths.shipped() / 'tools' / 'demo.py'
# A stand-in for train.py and test.py: logs as mmengine does, for 2 epochs of 3 iterations.
FAKE = """
import json, pathlib, sys
name, metric, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder = pathlib.Path(name, f'run{start}', 'vis_data')
folder.mkdir(parents=True)
with open('order.txt', 'a') as order:
    order.write(name + chr(10))
pathlib.Path(name, 'last_checkpoint').write_text('x')
if name.endswith('untrained'):
    pathlib.Path(name, 'metrics.json').write_text(json.dumps({metric: 0.01}))
with open(folder / 'scalars.json', 'w') as log:
    for epoch in (1, 2):
        for step in range(3 * epoch - 2, 3 * epoch + 1):
            log.write(json.dumps(dict(lr=0.1, loss=1 / step, epoch=epoch, iter=step, step=step)) + chr(10))
        log.write(json.dumps({metric: 0.25 * epoch, 'step': epoch}) + chr(10))
"""


@pytest.fixture
def plan(tmp_path, monkeypatch) -> demo.Plan:
    """A plan whose stages end at once."""
    plan = demo.Plan(tmp_path, demo.QUICK_WORLD, quick=True)
    plan.epochs = dict.fromkeys(plan.epochs, 2)
    plan.runs = 0

    def commands(stage):
        plan.runs += 1
        return [[sys.executable, '-c', FAKE, stage.name, stage.metric, str(plan.runs)]]

    plan.commands = commands
    exported = []
    monkeypatch.setattr(mmrm.weights, 'export_backbone', lambda source, out, overwrite: exported.append(out.name))
    plan.exported = exported
    return plan


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def by_name(name: str) -> demo.Stage:
    return next(stage for stage in demo.STAGES if stage.name == name)


# ------------------------------------------------------------------------------------------------------------ stages
def test_every_stage_runs_once_and_fine_tuning_waits_for_its_weights(plan):
    ran = demo.run_stages(plan, 3, quiet())
    assert sorted(ran) == sorted(stage.name for stage in demo.STAGES)
    order = (plan.work_dir / 'order.txt').read_text().split()
    assert sorted(order) == sorted(ran)
    assert sorted(plan.exported) == ['baseline.pth', 'rm.pth']
    for weights in ('baseline', 'rm'):
        assert order.index(f'pretrain/{weights}') < min(order.index(f'{net}/{weights}') for net in ('atss', 'pspnet'))
    known = plan.read(by_name('atss/rm'))
    assert known['value'] == 50 and known['curve'] == {'1': 25.0, '2': 50.0} and not known['resumed']
    assert plan.read(by_name('pspnet/rm'))['value'] == 0.5
    assert plan.read(by_name('atss/untrained'))['value'] == 1

    assert demo.run_stages(plan, 3, quiet()) == []
    assert (plan.work_dir / 'order.txt').read_text().split() == order


def test_a_result_counts_only_for_what_it_was_made_of(plan, tmp_path):
    demo.run_stages(plan, 4, quiet())
    same = demo.Plan(tmp_path, demo.QUICK_WORLD, quick=True)
    assert all(same.done(stage) for stage in demo.STAGES)
    for other in (demo.Plan(tmp_path, demo.WORLD, quick=True), demo.Plan(tmp_path, demo.QUICK_WORLD, quick=False)):
        assert not any(other.done(stage) for stage in demo.STAGES)


def test_a_changed_config_redoes_what_depends_on_it(tmp_path, monkeypatch):
    before = demo.Plan(tmp_path, demo.QUICK_WORLD).stamps
    read_config = demo.read_config

    def changed(name, **variables):
        config = read_config(name, **variables)
        if name == 'rm_r18':
            config.model.head.omega = 0.7
        return config

    monkeypatch.setattr(demo, 'read_config', changed)
    after = demo.Plan(tmp_path, demo.QUICK_WORLD).stamps
    assert sorted(name for name in before if before[name] != after[name]) == ['atss/rm', 'pretrain/rm', 'pspnet/rm']


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


def test_a_run_killed_before_its_last_validation_is_run_again(plan, monkeypatch):
    """A resumed run that has nothing left to train does not validate, so it gives no result."""
    stage = by_name('atss/random')
    folder = plan.folder(stage)
    folder.mkdir(parents=True)
    plan.write(stage)
    (folder / 'last_checkpoint').write_text('x')
    commands, calls = plan.commands, []

    def first_does_nothing(which):
        if which is stage:
            calls.append(which)
            if len(calls) == 1:
                return [[sys.executable, '-c', '']]
        return commands(which)

    plan.commands = first_does_nothing
    demo.run_stages(plan, 2, quiet())
    assert len(calls) == 2 and plan.read(stage)['value'] == 50


def test_a_failure_ends_the_demo_with_the_end_of_its_log(plan):
    commands = plan.commands
    slow = [sys.executable, '-c', 'import time; time.sleep(60)']
    plan.commands = lambda stage: (
        [[sys.executable, '-c', 'print("error: the disk is full"); raise SystemExit(2)']]
        if stage.name == 'atss/rm'
        else [slow]
        if stage.name == 'atss/baseline'
        else commands(stage)
    )
    with pytest.raises(UserError, match=r'(?s)atss/rm ended with exit code 2.*the disk is full'):
        demo.run_stages(plan, 2, quiet())
    assert not plan.done(by_name('atss/rm')) and not plan.done(by_name('atss/baseline'))
    assert plan.done(by_name('pretrain/rm'))


def test_without_a_result_a_stage_is_not_done(plan):
    plan.commands = lambda stage: [[sys.executable, '-c', '']]
    with pytest.raises(UserError, match='gave no accuracy/top1'):
        demo.run_stages(plan, 1, quiet())


def test_progress_is_read_from_a_log_that_is_being_written(plan):
    stage = by_name('pretrain/rm')
    process = demo.Process(plan, stage)
    process.run()
    log = next(plan.folder(stage).glob('*/vis_data/scalars.json'))
    lines = log.read_text().splitlines(keepends=True)
    plan.iterations[stage.name] = 6
    log.write_text(''.join(lines[:5]) + lines[5][:7])
    assert process.progress() == (4 / 6, 'epoch 2/2, loss 0.25, top1 0.2')
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


def test_two_demos_do_not_share_a_work_dir(tmp_path):
    running = pytest.raises(UserFileError, match='another demo is running')
    with demo.claimed(tmp_path / 'demo'), running, demo.claimed(tmp_path / 'demo'):
        pass
    with demo.claimed(tmp_path / 'demo'):
        pass


def test_a_world_of_another_version_is_made_anew(tmp_path):
    small = dict(seed=0, classification=(2, 1), scenes=(1, 1))
    demo.remake_world(tmp_path / 'world', {**small, 'seed': 1}, quiet())
    demo.remake_world(tmp_path / 'world', small, quiet())
    assert json.loads((tmp_path / 'world/world.json').read_text())['seed'] == 0
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'file').write_text('x')
    with pytest.raises(UserFileError):
        demo.remake_world(tmp_path / 'other', small, quiet())


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


# -------------------------------------------------------------------------------------------------------------- results
def test_the_table_holds_the_results_and_nothing_else():
    results = {
        'pretrain/baseline': dict(value=91.26, seconds=100.2),
        'pretrain/rm': dict(value=90.04, seconds=101, resumed=True),
        'atss/random': dict(value=40.5, seconds=60),
        'pspnet/untrained': dict(value=1.25, seconds=9),
    }
    assert demo.make_table(results) == [
        ['', 'untrained', 'random', 'baseline', 'RM'],
        ['classification: top-1', '12.5 (chance)', '', '91.3', '90.0'],
        ['ATSS: box AP', '', '40.5', '', ''],
        ['PSPNet: mIoU', '1.2', '', '', ''],
        ['classification: time', '', '', '100 s', '101 s *'],
        ['ATSS: time', '', '60 s', '', ''],
        ['PSPNet: time', '9 s', '', '', ''],
    ]
    page = demo.table_as_markdown(demo.make_table(results))
    assert '| ATSS: box AP |  | 40.5 |  |  |' in page
    console = quiet()
    console.print(demo.table_for_console(demo.make_table(results)))
    assert '91.3' in console.file.getvalue()


# ------------------------------------------------------------------------------------------------------------- configs
def test_one_backbone_fits_all_three_toolboxes(tmp_path):
    """The classifier's backbone loads strictly into the detector and the segmentor, which are the toolboxes' own."""
    built = {}
    for name in ('baseline_r18', 'rm_r18', 'atss_r18', 'pspnet_r18'):
        config = demo.read_config(name, MMRM_WORLD=str(tmp_path))
        init_default_scope(config.default_scope)
        built[name] = MODELS.build(config.model)
    pretrained = built['rm_r18'].backbone.state_dict()
    for name, module in (('atss_r18', 'mmdet.'), ('pspnet_r18', 'mmseg.')):
        assert type(built[name]).__module__.startswith(module)
        assert type(built[name].backbone).__module__.startswith(module)
        built[name].backbone.load_state_dict(pretrained, strict=True)
    size = {name: sum(p.numel() for p in model.parameters()) for name, model in built.items()}
    assert size['rm_r18'] - size['baseline_r18'] == 128 * 8 + 8  # the RoI layer


def test_the_configs_take_the_weights_they_are_told(tmp_path, monkeypatch):
    from mmengine.config import Config

    monkeypatch.setenv('MMRM_BACKBONE', 'weights/rm.pth')
    for name in ('atss_r18', 'pspnet_r18'):
        config = Config.fromfile(demo.find_config(name))
        assert config.model.init_cfg == dict(type='StrictPretrained', checkpoint='weights/rm.pth')
        assert 'init_cfg' not in demo.read_config(name).model
    assert os.environ['MMRM_BACKBONE'] == 'weights/rm.pth'


def test_the_baseline_and_rm_differ_in_the_method_only(tmp_path):
    baseline, rm = (demo.read_config(name).to_dict() for name in ('baseline_r18', 'rm_r18'))
    assert {key for key in rm if rm[key] != baseline.get(key)} == {'model', 'custom_hooks'}
    assert rm['model']['backbone'] == baseline['model']['backbone']


def test_an_untrained_network_is_initialised_and_saved(tmp_path):
    out = tmp_path / 'untrained.pth'
    demo.save_untrained(str(demo.find_config('atss_r18')), str(out))
    state = torch.load(out, weights_only=True)['state_dict']
    assert state['backbone.conv1.weight'].shape == (16, 3, 7, 7)
    # The focal loss wants its bias at -log(99).
    assert torch.allclose(state['bbox_head.atss_cls.bias'], torch.tensor(-4.59512), atol=1e-4)


# ------------------------------------------------------------------------------------------------------------ all of it
@pytest.mark.slow
def test_the_quick_demo_end_to_end_with_a_kill_in_the_middle(tmp_path):
    work = tmp_path / 'a folder, with a comma' / 'demo'
    command = [sys.executable, TOOL, '--quick', '--work-dir', work, '--jobs', '2']
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
    for value in (f'{result["value"]:.1f}' for result in results.values()):
        assert value in table and value in second.stdout
    assert 'StrictPretrained: backbone <- ' in (work / 'atss/rm/log.txt').read_text()
    assert 'StrictPretrained' not in (work / 'atss/random/log.txt').read_text()

    import cv2

    assert cv2.imread(str(work / 'picture.png')).std() > 10
    assert is_report(work / 'report.html')
    written = {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
    third = subprocess.run(command, cwd='/', capture_output=True, text=True)
    assert third.returncode == 0 and f'0 of {len(demo.STAGES)} stages ran now' in third.stdout
    assert written == {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
    assert Path(work / 'table.md').read_text() == table
