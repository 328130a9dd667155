"""Signals and restarts in one process: what the launcher forwards, what a rank reports, what a restart resumes."""

import contextlib
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from tiny_run import write_run

from mmrm.cli import preflight
from mmrm.cli import train as command
from mmrm.engine import launch
from mmrm.utils.errors import UserFileError, UserValueError


@pytest.fixture
def status(tmp_path, monkeypatch):
    """The file of a launch, as its processes see it."""
    monkeypatch.setenv(launch.STATUS, str(tmp_path / 'status'))
    monkeypatch.setenv('TORCHELASTIC_RUN_ID', 'x')
    return tmp_path / 'status'


@pytest.fixture
def sleepers():
    """Two processes that end by SIGUSR1 with exit code 0, and this one's handlers as they were."""
    code = 'trap "exit 0" USR1; echo ready; while :; do sleep 0.05; done'
    started = [subprocess.Popen(['bash', '-c', code], stdout=subprocess.PIPE) for _ in range(2)]
    for process in started:
        assert process.stdout.readline() == b'ready\n'
    before = {number: signal.getsignal(number) for number in (*launch.signals.SIGNALS, signal.SIGHUP, signal.SIGQUIT)}
    yield started
    for number, handler in before.items():
        signal.signal(number, handler)
    for process in started:
        process.kill()
        process.wait()


def test_a_signal_is_forwarded_once_to_each_process(status, sleepers):
    forwarder = launch.Forwarder(2, saves=True)
    status.write_text('pid 1\n')  # of a start before
    with forwarder.installed():
        os.kill(os.getpid(), signal.SIGUSR1)
        with open(status, 'a') as file:
            file.write(f'pid {sleepers[0].pid}\n')
            forwarder.sent.add(1)
            file.flush()
            forwarder.forward()
            assert sleepers[0].wait(10) == 0 and sleepers[1].poll() is None
            file.write(f'pid {sleepers[1].pid}\n')  # it comes later
        forwarder.forward()
        assert sleepers[1].wait(10) == 0


def test_stop_of_one_process_stops_all(status, sleepers):
    status.write_text(''.join(f'pid {process.pid}\n' for process in sleepers))
    forwarder = launch.Forwarder(2, saves=True)
    forwarder.forward()
    assert not forwarder.sent
    launch.report('stopped', '75 saved')
    forwarder.forward()
    assert [process.wait(10) for process in sleepers] == [0, 0]


@pytest.mark.parametrize('kind', ['stopped', 'mistake'])
def test_restarted_process_exits_at_once_after_an_input_error(status, kind):
    launch.report(kind, 'two\nlines')
    assert launch.lines(kind) == ['two lines']
    with pytest.raises(SystemExit) as stop, launch.joined():
        pytest.fail('it began')
    assert stop.value.code == 0


def test_input_error_is_printed_once_and_a_missing_file_may_be_retried(status):
    def fail(error):
        with launch.joined():
            raise error

    with pytest.raises(UserFileError):
        fail(UserFileError('not there'))
    assert launch.lines('pid') == [str(os.getpid())] and not launch.lines('mistake')
    with pytest.raises(UserValueError):
        fail(UserValueError('wrong'))
    assert launch.lines('mistake') == ['']


@pytest.mark.parametrize(
    'codes, code, named', [({0: 1, 1: -9}, 137, 'process 1'), ({0: 3}, 3, 'process 0'), ({1: -15}, 143, 'SIGTERM')]
)
def test_the_process_that_failed_is_named(capsys, codes, code, named):
    failures = {rank: SimpleNamespace(exitcode=each, timestamp=rank) for rank, each in codes.items()}
    with pytest.raises(SystemExit) as stop:
        launch.exit_failed(SimpleNamespace(failures=failures))
    assert stop.value.code == code and named in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- in the process
@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ('MMRM_LAUNCH', 'TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT', 'SLURM_JOB_ID', launch.STATUS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('MMRM_DEVICE', 'cpu')
    return write_run(tmp_path, epochs=1, images=4), tmp_path / 'work'


def train(run, *more):
    command.main([str(run[0]), '--work-dir', str(run[1]), *more])


def test_a_signal_while_a_run_is_prepared_ends_it_with_76(run, monkeypatch, capsys):
    monkeypatch.setattr(preflight, 'check_placement', lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        train(run)
    assert stop.value.code == 76 and 'nothing is lost' in capsys.readouterr().err
    assert not list(run[1].glob('*.pth'))


@pytest.mark.parametrize('resumed', [False, True])
def test_a_stop_of_a_run_that_does_not_save_says_what_is_lost_and_ends_with_76(run, monkeypatch, capsys, resumed):
    if resumed:
        train(run)
        options = ('--resume', '--cfg-options', 'train_cfg.max_epochs=2', 'default_hooks.checkpoint.interval=-1')
    else:
        options = ('--cfg-options', 'default_hooks.checkpoint.interval=-1')
    monkeypatch.setattr(
        'mmrm.engine.hooks.ResetHistoryHook.after_train_iter',
        lambda self, runner, *args, **kwargs: runner.iter % 2 == 1 and os.kill(os.getpid(), signal.SIGTERM),
    )
    with pytest.raises(SystemExit) as stop:
        train(run, *options)
    told = capsys.readouterr().err.strip().splitlines()[-1]
    if resumed:
        assert f'after iteration 3; what came after {run[1]}/epoch_1.pth is lost. Run the same' in told
    else:
        assert 'after iteration 1; it had written no checkpoint' in told and told.endswith('all of it is lost.')
    assert stop.value.code == 76


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
    assert stop.value.code == 76
    assert not list(run[1].glob('*.pth')) and len(list(run[1].glob('replaced-*/*.pth'))) == 2


def test_restart_resumes_from_checkpoints_of_this_launch_only(run, monkeypatch):
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


def test_signal_after_a_failure_keeps_the_exit_code(run, monkeypatch):
    """torchrun sends SIGTERM to a process whose fellow has failed."""

    def fail(runner):
        raise RuntimeError('connection reset by peer')

    deferred = launch.signals.deferred

    @contextlib.contextmanager
    def deferred_until_a_signal():
        try:
            with deferred():
                yield
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(preflight, 'check_runner', fail)
    monkeypatch.setattr(launch.signals, 'deferred', deferred_until_a_signal)
    for name, value in dict(RANK='0', WORLD_SIZE='1', LOCAL_WORLD_SIZE='1').items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(preflight, 'build_runner', lambda cfg: None)
    with pytest.raises(RuntimeError, match='reset by peer'):
        train(run, '--launcher', 'pytorch')
