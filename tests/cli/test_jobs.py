"""Runs side by side, one after the other, interrupted and taken up again, with a stand-in for train.py."""

import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
from stand_in import starts, use_stand_in, wait_for

from mmrm.cli import jobs
from mmrm.engine.hooks.non_finite import REMEDIES
from mmrm.utils.errors import UserError
from mmrm.utils.files import locked


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs of three epochs; a file two folders above them makes them wait or fail."""
    use_stand_in(tmp_path, monkeypatch)
    (tmp_path / 'runs').mkdir()
    return [
        jobs.Job(name, Path('config.py'), {}, 0, tmp_path / 'runs' / name / 'seed0', 3)
        for name in ('unshared', 'shared')
    ]


@pytest.fixture
def gate(runs, tmp_path):
    """A file that lets the runs wait as long as it is there."""
    (tmp_path / 'runs' / 'wait').touch()
    return tmp_path / 'runs' / 'wait'


def train(run):
    return jobs.run_all([run])[run.name]


def test_finished_runs_are_skipped_and_interrupted_ones_resume(runs):
    first, second = runs
    assert train(first) == 'finished'
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
def test_run_stopped_before_a_validation_resumes_there(runs, epoch):
    run = runs[0]
    train(run)
    (log,) = run.work_dir.glob('*/vis_data/scalars.json')
    lines = log.read_text().splitlines()
    log.write_text('\n'.join(lines[: 2 * epoch - 1]) + '\n' + lines[-1][:10])  # killed in the middle of a line
    for later in range(epoch + 1, 4):
        (run.work_dir / f'epoch_{later}.pth').unlink()
    assert run.state() == f'epoch {epoch}'
    assert train(run) == 'finished'
    assert starts(run) == [0, epoch] and sorted(run.validations()) == [1, 2, 3]


def test_a_run_that_another_process_trains_is_not_started(runs, gate):
    run = runs[0]
    run.work_dir.mkdir(parents=True)
    with locked(run.work_dir / jobs.RUN_LOCK):
        assert run.state() == 'running' and train(run) == 'running'
    assert not (run.work_dir / 'starts').exists()
    processes = [jobs.begin(run), jobs.begin(run)]  # before either has its lock
    wait_for(lambda: any(process.poll() is not None for process in processes))
    (late,) = (process for process in processes if process.poll() is not None)
    assert run.state() == 'running' and jobs.outcome(run, late.returncode) == 'running'
    gate.unlink()
    processes.remove(late)
    assert jobs.outcome(run, processes[0].wait()) == 'finished' and starts(run) == [0]


def test_jobs_run_side_by_side_and_log_their_progress(runs, gate):
    lines = []

    def log(line):
        lines.append(line)
        if all((run.work_dir / 'starts').exists() for run in runs) and gate.exists():
            assert [run.state() for run in runs] == ['running', 'running']
            gate.unlink()

    states = jobs.run_all(runs, 2, True, log, finished=lambda run: 'at 30', every=0)
    assert set(states.values()) == {'finished'} and all(run.finished() for run in runs)
    assert lines[:2] == ['unshared: started', 'shared: started'] and 'shared: finished at 30' in lines
    assert '0 of 6 epochs, time left unknown: unshared 0/3, shared 0/3' in lines
    lines.clear()
    jobs.run_all(runs, 2, True, log)
    assert lines == ['unshared: finished', 'shared: finished']  # and not: started


def test_a_run_waits_for_another_and_is_given_up_if_that_fails(runs):
    second, first = runs
    lines = []
    states = jobs.run_all(runs, 2, True, lines.append, ready=lambda run: run is first or first.finished())
    assert set(states.values()) == {'finished'}
    assert lines[0] == 'shared: started' and lines[-1] == 'unshared: finished' and len(lines) == 4
    for run in runs:
        shutil.rmtree(run.work_dir)
    states = jobs.run_all(runs, 2, True, ready=lambda run: run is first)
    assert states == dict(shared='finished', unshared='not started') and not second.work_dir.exists()


def test_a_failed_run_does_not_stop_the_others_and_a_diverged_one_is_not_trained_again(runs, tmp_path):
    fail = tmp_path / 'runs' / 'fail-unshared'
    fail.write_text('2')
    for _ in range(2):
        assert list(jobs.run_all(runs, cpu=True).values()) == ['failed: no data', 'finished']
    assert starts(runs[0]) == [0, 0]  # data may have come
    fail.write_text(f'2 the loss is nan. {REMEDIES}')
    for _ in range(2):
        assert jobs.run_all(runs, cpu=True)['unshared'].startswith('failed: the loss is nan')
        assert runs[0].state().startswith('failed: the loss is nan')
    assert starts(runs[0]) == [0, 0, 0]
    (runs[0].work_dir / jobs.FAILED).unlink()
    fail.write_text('75')
    assert train(runs[0]).startswith('stopped')
    fail.unlink()
    assert train(runs[0]) == 'finished'


def test_an_interrupt_ends_the_running_ones(runs, gate):
    def interrupt(line):
        if 'epochs' in line and (runs[0].work_dir / 'starts').exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.run_all(runs, cpu=True, log=interrupt, every=0)
    assert runs[0].state() == 'new' and not runs[1].work_dir.exists()
    gate.unlink()
    assert set(jobs.run_all(runs, cpu=True).values()) == {'finished'}


def test_a_killed_call_is_completed_by_the_next_one_without_repeating_what_is_finished(runs, gate):
    first, second = runs
    gate.unlink()
    assert train(first) == 'finished'
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


def test_runs_share_the_cores_of_the_cpu_and_have_gpus_of_their_own(runs, monkeypatch):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    monkeypatch.setattr(os, 'cpu_count', lambda: 64)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1, 2, 8, 9}, raising=False)  # Slurm, taskset
    monkeypatch.setenv('MALLOC_TOP_PAD_', '7')  # the user's own
    first, second = jobs.environments(2, 1, cpu=True)
    assert first == second and first['OMP_NUM_THREADS'] == first['MKL_NUM_THREADS'] == '2'
    assert {**jobs.KEEP_MEMORY, 'MALLOC_TOP_PAD_': '7'}.items() <= first.items()
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3,5,6,7')
    first, second = jobs.environments(2, 2, cpu=False)
    assert (first['CUDA_VISIBLE_DEVICES'], second['CUDA_VISIBLE_DEVICES']) == ('3,5', '6,7')
    assert first['PORT'] != second['PORT']
    with pytest.raises(UserError, match=r'3 runs at a time, each on 2 GPU.* needs 6, and there are 4'):
        jobs.environments(3, 2, cpu=False)


def test_options_are_words_that_mmengine_reads_back(tmp_path):
    from mmengine.config import DictAction

    options = {'a.b': [0, 250], 'c': 0.5, 'd': 'OptimWrapper', 'e': False}
    command = jobs.Job('x', Path('c.py'), options, 0, tmp_path, 3).command()
    words = command[command.index('--cfg-options') + 1 :]
    assert {key: DictAction._parse_iterable(value) for key, value in (word.split('=') for word in words)} == options
