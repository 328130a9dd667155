"""The launcher's side: who is asked to end, who hangs, what a restart resumes."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest
from tiny_run import write_run

from mmrm.cli import launch, preflight, processes
from mmrm.engine import supervision
from mmrm.engine.supervision import Beat


@pytest.fixture
def sleepers(tmp_path):
    """Two processes that sleep, with signs of life; the second lets itself be asked to end."""
    traps = ('', 'trap "exit 0" USR1; ')
    started = [
        subprocess.Popen(['bash', '-c', f'{trap}echo ready; while :; do sleep 0.05; done'], stdout=subprocess.PIPE)
        for trap in traps
    ]
    for process in started:
        assert process.stdout.readline() == b'ready\n'
    # A suite that runs in the background ignores Ctrl-C, and so would the launcher.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield started
    signal.signal(signal.SIGINT, before)
    for process in started:
        process.kill()
        process.wait()


def write_beats(folder, sleepers, places=(10, 10)):
    for rank, (process, place) in enumerate(zip(sleepers, places)):
        (folder / f'beat-{rank}').write_text(f'{process.pid} 5 {place} got its batch of iteration {place}\n')


def watch(folder, limit=0.1, seconds=0.3):
    """A watcher that has found somebody, which takes long on a busy machine; with no limit, after some seconds."""
    watcher = processes.Watcher(folder, 2, 0, limit)
    watcher.TICK = 0.02
    deadline = time.monotonic() + (30 if limit else seconds)
    with watcher.running(SimpleNamespace(signals_to_handle='')):
        while not watcher.hung and time.monotonic() < deadline:
            time.sleep(0.02)
    return watcher


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_process_that_is_stopped_is_named_and_ended(tmp_path, sleepers, capfd):
    write_beats(tmp_path, sleepers, places=(10, 10))
    sleepers[1].send_signal(signal.SIGSTOP)
    assert watch(tmp_path).hung
    (line,) = capfd.readouterr().err.splitlines()[:1]
    assert 'process 1 of the run hangs (it is stopped' in line and 'got its batch of iteration 10' in line
    assert sleepers[1].wait(10) == -signal.SIGKILL and sleepers[0].poll() is None


def test_a_process_that_is_behind_is_named(tmp_path, sleepers, capfd):
    write_beats(tmp_path, sleepers, places=(9, 10))
    watch(tmp_path)
    assert 'process 0 of the run hangs: ' in capfd.readouterr().err
    assert sleepers[0].wait(10) == -signal.SIGKILL and sleepers[1].poll() is None


def test_where_none_is_behind_all_are_named():
    beats = {0: Beat(1 << 30, 1, 10, 'x'), 1: Beat(1 << 30, 1, 10, 'x'), 2: Beat(1 << 30, 1, 11, 'x')}
    assert processes.blamed(beats, [0, 1, 2]) == [0, 1]
    assert processes.blamed(beats, [0, 1, 2, 3]) == [3]  # it never came to life


def test_processes_that_get_on_are_left_alone(tmp_path, sleepers, capfd):
    watcher = processes.Watcher(tmp_path, 2, 0, 0.5)
    watcher.TICK = 0.02
    with watcher.running(SimpleNamespace(signals_to_handle='')):
        for place in range(60):
            write_beats(tmp_path, sleepers, places=(place, place))
            time.sleep(0.02)
    assert not watcher.hung and not capfd.readouterr().err


def test_zero_minutes_look_for_nobody_that_hangs(tmp_path, sleepers):
    write_beats(tmp_path, sleepers)
    assert not watch(tmp_path, limit=0).hung


def test_a_signal_goes_on_to_the_processes_as_sigusr1(tmp_path, sleepers):
    write_beats(tmp_path, sleepers)
    watcher = processes.Watcher(tmp_path, 2, 0, 0)
    with watcher.running(SimpleNamespace(signals_to_handle='')):
        os.kill(os.getpid(), signal.SIGTERM)
        assert sleepers[1].wait(10) == 0 and sleepers[0].wait(10) == -signal.SIGUSR1
    assert (tmp_path / supervision.STOP).read_text() == str(int(signal.SIGTERM))
    watcher.exit_if_stopped()  # nobody said that he lost nothing
    (tmp_path / supervision.STOPPED).write_text('saved')
    with pytest.raises(SystemExit) as stop:
        watcher.exit_if_stopped()
    assert stop.value.code == 75


def test_before_training_a_signal_ends_the_processes_at_once(tmp_path, sleepers, capfd):
    write_beats(tmp_path, sleepers, places=(0, 0))
    watcher = processes.Watcher(tmp_path, 2, 0, 0)
    with watcher.running(SimpleNamespace(signals_to_handle='')):
        os.kill(os.getpid(), signal.SIGINT)
        assert [process.wait(10) for process in sleepers] == [-signal.SIGKILL] * 2
    with pytest.raises(SystemExit) as stop:
        watcher.exit_if_stopped()
    assert stop.value.code == 75 and 'SIGINT before the first iteration' in capfd.readouterr().err


def test_what_one_process_was_asked_all_are_asked(tmp_path, sleepers):
    write_beats(tmp_path, sleepers)
    (tmp_path / supervision.STOPPED).write_text('saved')
    watch(tmp_path, limit=0)
    assert sleepers[1].wait(10) == 0


@pytest.mark.parametrize('newer', [True, False])
def test_torchrun_leaves_our_signals_alone_whatever_its_version(monkeypatch, newer):
    from torch.distributed.elastic.multiprocessing import api

    theirs, seen = [], []
    monkeypatch.setattr(api, '_terminate_process_handler', lambda number, frame: theirs.append(number))
    options = SimpleNamespace(**(dict(signals_to_handle='SIGTERM,SIGINT,SIGHUP,SIGQUIT') if newer else {}))
    processes.leave_signals_alone(options, lambda number, frame: seen.append(number))
    if newer:
        assert options.signals_to_handle == 'SIGHUP,SIGQUIT'
    else:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            api._terminate_process_handler(number, None)
        assert (seen, theirs) == ([signal.SIGTERM, signal.SIGINT], [signal.SIGHUP])


# ------------------------------------------------------------------------------------------------------- in the process
@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ('MMRM_LAUNCH', 'TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT', 'SLURM_JOB_ID', 'MMRM_RUN_DIR'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('MMRM_DEVICE', 'cpu')
    return write_run(tmp_path, epochs=1), tmp_path / 'work'


def train(run, *more):
    launch.train([str(run[0]), '--work-dir', str(run[1]), *more])


def test_a_signal_while_a_run_is_prepared_ends_it_with_75(run, monkeypatch, capsys):
    monkeypatch.setattr(preflight, 'check_free_space', lambda runner: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        train(run)
    assert stop.value.code == 75 and 'nothing is lost' in capsys.readouterr().err
    assert not list(run[1].glob('*.pth'))


def test_a_signal_does_not_leave_half_of_the_older_runs_checkpoints(run, monkeypatch, capsys):
    train(run)
    assert len(list(run[1].glob('*.pth'))) == 2
    set_aside = preflight.set_aside

    def signalled(runner):
        os.kill(os.getpid(), signal.SIGTERM)
        set_aside(runner)

    monkeypatch.setattr(preflight, 'set_aside', signalled)
    with pytest.raises(SystemExit) as stop:
        train(run, '--overwrite')
    assert stop.value.code == 75
    assert not list(run[1].glob('*.pth')) and len(list(run[1].glob('replaced-*/*.pth'))) == 2


def test_a_restart_goes_on_from_what_the_first_start_wrote_and_not_from_what_was_there_before(run, monkeypatch):
    cfg = SimpleNamespace(work_dir=str(run[1]), get=lambda key, default=None: default)
    run[1].mkdir()
    (run[1] / 'epoch_1.pth').touch()
    monkeypatch.setenv('MMRM_LAUNCH', 'a')
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '0')
    preflight.note_start(cfg)
    assert not preflight.is_restart(cfg)  # the first start does what was asked
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    assert preflight.is_restart(cfg)
    monkeypatch.setenv('MMRM_LAUNCH', 'b')  # it failed before it came to touch the folder
    assert not preflight.is_restart(cfg)
    preflight.note_start(cfg)
    (run[1] / 'epoch_1.pth').unlink()
    assert not preflight.is_restart(cfg)  # it wrote nothing: as the first time


def test_a_restart_resumes_also_where_overwrite_was_asked_for(run, monkeypatch):
    monkeypatch.setenv('MMRM_LAUNCH', 'a')
    train(run, '--overwrite')
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    train(run, '--overwrite', '--cfg-options', 'train_cfg.max_epochs=2')
    assert not list(run[1].glob('replaced-*')) and (run[1] / 'epoch_2.pth').exists()


def test_a_mistake_is_not_made_again_by_a_restart(run, monkeypatch, tmp_path):
    folder = tmp_path / 'notes'
    folder.mkdir()
    monkeypatch.setenv(supervision.FOLDER, str(folder))
    with pytest.raises(SystemExit) as stop:
        train(run, '--cfg-options', 'model.type=NoSuchModel')
    assert stop.value.code == 2 and (folder / supervision.MISTAKE).exists()
    monkeypatch.setattr(launch, 'train_supervised', lambda args: pytest.fail('it began'))
    with pytest.raises(SystemExit) as stop:
        train(run)
    assert stop.value.code == 2
    monkeypatch.setattr(supervision._State, 'file', None)
