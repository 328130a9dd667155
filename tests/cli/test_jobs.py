"""Runs side by side, one after the other, interrupted and taken up again, with a stand-in for train.py."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from stand_in import starts, use_stand_in, wait_for

from mmrm.cli import jobs
from mmrm.engine.hooks.non_finite import REMEDIES
from mmrm.utils.errors import UserError
from mmrm.utils.files import locked
from tools.runs import processes


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs of three epochs; a file two folders above them makes them wait or fail."""
    use_stand_in(tmp_path, monkeypatch)
    return [
        jobs.Job(name, Path('config.py'), {}, 0, tmp_path / 'runs' / name / 'seed0', 3)
        for name in ('unshared', 'shared')
    ]


def test_finished_runs_are_not_repeated_and_interrupted_ones_go_on(runs):
    first, second = runs
    assert jobs.train(first) == 'finished'
    log = second.work_dir / '0' / 'vis_data' / 'scalars.json'
    log.parent.mkdir(parents=True)
    log.write_text('{"accuracy/top1": 20.0, "step": 2}\n')
    for epoch in (1, 2):
        (second.work_dir / f'epoch_{epoch}.pth').touch()
    assert [run.state() for run in runs] == ['finished', 'epoch 2']
    assert set(jobs.run_all(runs, cpu=True).values()) == {'finished'}
    assert (starts(first), starts(second)) == ([0], [2])
    assert [run.validations()[3] for run in runs] == [30.0, 30.0]


@pytest.mark.parametrize('epoch', [2, 3])
def test_a_run_stopped_before_it_validated_an_epoch_goes_on_from_there(runs, epoch):
    run = runs[0]
    jobs.train(run)
    (log,) = run.work_dir.glob('*/vis_data/scalars.json')
    lines = log.read_text().splitlines()
    log.write_text('\n'.join(lines[: 2 * epoch - 1]) + '\n' + lines[-1][:10])  # killed in the middle of a line
    for later in range(epoch + 1, 4):
        (run.work_dir / f'epoch_{later}.pth').unlink()
    assert run.state() == f'epoch {epoch}'
    assert jobs.train(run) == 'finished'
    assert starts(run) == [0, epoch] and sorted(run.validations()) == [1, 2, 3]


def test_a_run_that_somebody_trains_is_left_to_him(runs):
    run = runs[0]
    run.work_dir.mkdir(parents=True)
    for name in (jobs.JOB_LOCK, jobs.RUN_LOCK):  # another's job, and a train.py that no job started
        with locked(run.work_dir / name):
            assert run.state() == 'running' and jobs.train(run) == 'running'
    assert not (run.work_dir / 'starts').exists()
    assert jobs.train(run) == 'finished'


def test_jobs_run_side_by_side(runs):
    gate = runs[0].work_dir.parents[1] / 'wait'
    gate.parent.mkdir(parents=True)
    gate.touch()
    thread = threading.Thread(target=jobs.run_all, args=(runs, 2, True))
    thread.start()
    try:
        wait_for(lambda: all((run.work_dir / 'starts').exists() for run in runs))
        assert [run.state() for run in runs] == ['running', 'running']
    finally:
        gate.unlink()
        thread.join()
    assert all(run.finished() for run in runs)


def test_a_run_waits_for_another_and_is_given_up_if_that_fails(runs):
    second, first = runs
    lines = []
    states = jobs.run_all(runs, 2, True, lines.append, ready=lambda run: run is first or first.finished())
    assert set(states.values()) == {'finished'}
    assert lines == ['shared: started', 'shared: finished', 'unshared: started', 'unshared: finished']
    for run in runs:
        shutil.rmtree(run.work_dir)
    states = jobs.run_all(runs, 2, True, ready=lambda run: run is first)
    assert states == dict(shared='finished', unshared='not started') and not second.work_dir.exists()


def test_a_failed_run_does_not_stop_the_others_and_a_diverged_one_is_not_trained_again(runs):
    folder = runs[0].work_dir.parents[1]
    folder.mkdir(parents=True)
    (folder / 'fail-unshared').write_text('2')
    assert list(jobs.run_all(runs, cpu=True).values()) == ['failed: no data', 'finished']
    assert list(jobs.run_all(runs, cpu=True).values()) == ['failed: no data', 'finished']
    assert starts(runs[0]) == [0, 0]  # data may have come
    (folder / 'fail-unshared').write_text(f'2 the loss is nan. {REMEDIES}')
    for _ in range(2):
        assert jobs.run_all(runs, cpu=True)['unshared'].startswith('failed: the loss is nan')
        assert runs[0].state().startswith('failed: the loss is nan')
    assert starts(runs[0]) == [0, 0, 0]
    (runs[0].work_dir / jobs.FAILED).unlink()
    (folder / 'fail-unshared').unlink()
    assert jobs.train(runs[0]) == 'finished'


def test_an_interrupt_ends_the_running_ones(runs):
    gate = runs[0].work_dir.parents[1] / 'wait'
    gate.parent.mkdir(parents=True)
    gate.touch()

    def interrupt(line):
        if 'epochs' in line and (runs[0].work_dir / 'starts').exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.run_all(runs, cpu=True, log=interrupt, every=0)
    assert runs[0].state() == 'new' and not runs[1].work_dir.exists()
    gate.unlink()
    assert set(jobs.run_all(runs, cpu=True).values()) == {'finished'}


def test_a_killed_call_is_completed_by_the_next_one_without_repeating_what_is_finished(runs):
    first, second = runs
    gate = first.work_dir.parents[1] / 'wait'
    assert jobs.train(first) == 'finished'
    gate.touch()

    def call():
        os.setsid()  # with the trainer that it starts in one group
        jobs.run_all(runs, cpu=True)

    killed = multiprocessing.get_context('fork').Process(target=call)
    killed.start()
    wait_for(lambda: (second.work_dir / 'starts').exists() and starts(second))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.join()
    gate.unlink()
    (second.work_dir / 'epoch_2.pth').touch()
    wait_for(lambda: second.state() == 'epoch 2')  # the lock is gone with its holders
    assert set(jobs.run_all(runs, cpu=True).values()) == {'finished'}
    assert (starts(first), starts(second)) == ([0], [0, 2])


def test_runs_on_the_cpu_share_its_cores_and_keep_their_memory(monkeypatch):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    monkeypatch.setattr(os, 'cpu_count', lambda: 5)
    monkeypatch.setenv('MALLOC_TOP_PAD_', '7')  # the user's own
    first, second = jobs.environments(2, 1, cpu=True)
    assert first == second and first['OMP_NUM_THREADS'] == first['MKL_NUM_THREADS'] == '2'
    assert {**jobs.KEEP_MEMORY, 'MALLOC_TOP_PAD_': '7'}.items() <= first.items()
    code = 'import os; print([os.environ[key] for key in sorted(os.environ) if key.startswith("MALLOC_")])'
    told = subprocess.run(
        [sys.executable, '-c', code], env=processes.environment(**first), capture_output=True, text=True
    )
    assert told.stdout.strip() == str(['0', '7', str(1 << 40)])


def test_jobs_have_gpus_of_their_own_or_are_refused(runs, monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3,5,6,7')
    first, second = jobs.environments(2, 2, cpu=False)
    assert (first['CUDA_VISIBLE_DEVICES'], second['CUDA_VISIBLE_DEVICES']) == ('3,5', '6,7')
    assert first['PORT'] != second['PORT']
    with pytest.raises(UserError, match=r'3 runs at a time, each on 2 GPU.* needs 6, and there are 4'):
        jobs.environments(3, 2, cpu=False)


def test_a_run_that_a_signal_stopped_has_not_failed(runs, tmp_path):
    runs[0].work_dir.mkdir(parents=True)
    (tmp_path / 'runs/fail-unshared').write_text('75')
    assert jobs.train(runs[0]).startswith('stopped')


def test_options_are_words_that_mmengine_reads_back(tmp_path):
    from mmengine.config import DictAction

    options = {'a.b': [0, 250], 'c': 0.5, 'd': 'OptimWrapper', 'e': False}
    command = jobs.Job('x', Path('c.py'), options, 0, tmp_path, 3).command()
    words = command[command.index('--cfg-options') + 1 :]
    assert {key: DictAction._parse_iterable(value) for key, value in (word.split('=') for word in words)} == options


def test_progress_is_lines(runs):
    gate = runs[0].work_dir.parents[1] / 'wait'
    gate.parent.mkdir(parents=True)
    gate.touch()
    lines = []
    more = dict(log=lines.append, finished=lambda run: 'at 30', every=0)
    thread = threading.Thread(target=jobs.run_all, args=(runs, 1, True), kwargs=more)
    thread.start()
    try:
        wait_for(lambda: any('of 6 epochs' in line for line in lines))
    finally:
        gate.unlink()
        thread.join()
    assert 'unshared: started' in lines and 'shared: finished at 30' in lines
    assert '0 of 6 epochs, time left unknown: unshared 0/3' in lines
