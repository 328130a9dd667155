"""The launchers as a user starts them: real processes, two nodes on one machine, kill -9, a Slurm that records."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

import pytest
import torch
from tiny_run import write_run

from mmrm.utils.checkpoints import read_checkpoint

TOOLS = Path(__file__).parents[2] / 'tools'


@pytest.fixture
def environment(tmp_path):
    """The environment of a launcher: this interpreter, the CPU, no settings of another run."""
    names = (
        'NNODES',
        'NODE_RANK',
        'MASTER_ADDR',
        'MASTER_PORT',
        'PORT',
        'MAX_RESTARTS',
        'HANG_MINUTES',
        'MMRM_PARENT',
        'MMRM_TRACEBACK',
        'SRUN_ARGS',
        'BATCH',
        'WARN_SECONDS',
        'GPUS',
        'GPUS_PER_NODE',
        'CPUS_PER_TASK',
    )
    env = {name: value for name, value in os.environ.items() if name not in names and not name.startswith('SLURM_')}
    return dict(
        env, PYTHON=sys.executable, MMRM_DEVICE='cpu', CUDA_VISIBLE_DEVICES='', OMP_NUM_THREADS='1', MKL_NUM_THREADS='1'
    )


def start(log: Path, env: dict, *command, cwd=None) -> subprocess.Popen:
    """Start a launcher; everything it prints goes to ``log``. Ctrl-C reaches it, also if these tests ignore it."""
    with open(log, 'w') as file:
        return subprocess.Popen(
            [str(word) for word in command],
            env=env,
            cwd=cwd,
            stdout=file,
            stderr=file,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def losses(log: str, epoch: int) -> list:
    """The losses of an epoch as they were logged."""
    return re.findall(rf'Epoch\(train\) +\[ *{epoch}\]\[ *\d+/\d+\].* loss: (\d+\.\d+)', log)


def children(pid: int) -> list:
    listed = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in listed.stdout.split()]


def alive(pid: int) -> bool:
    state = subprocess.run(['ps', '-o', 'stat=', '-p', str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state) and not state.startswith('Z')


def wait_for(condition, log: Path, process: Optional[subprocess.Popen] = None) -> None:
    """Wait until ``condition()`` holds; fail if the process ends before, or after minutes."""
    end = time.monotonic() + 300
    while not condition():
        assert process is None or process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.01)


def test_two_processes_killed_in_mid_epoch_resume_where_they_were(tmp_path, environment, free_port):
    """2 x 2 images a step, 32 steps an epoch: the run is killed in its third epoch and ends with the fourth."""
    config, work = write_run(tmp_path, epochs=4, images=128), tmp_path / 'work'
    env = dict(environment, PORT=str(free_port))
    command = (TOOLS / 'dist_train.sh', config.name, 2, '--work-dir', 'work')
    first = tmp_path / 'first.log'
    run = start(first, env, *command, cwd=tmp_path)
    wait_for(lambda: len(losses(first.read_text(), 3)) > 3, first, run)
    workers = children(run.pid)
    run.send_signal(signal.SIGKILL)  # the launcher alone: its processes must not train on without it
    run.wait()
    wait_for(lambda: not any(alive(worker) for worker in workers), first)
    before = first.read_text()
    assert len(workers) == 2
    assert 0 < len(losses(before, 3)) < 32
    assert [path.name for path in work.glob('epoch_*.pth')] == ['epoch_2.pth']

    second = tmp_path / 'second.log'
    assert start(second, env, *command, '--resume', 'auto', cwd=tmp_path).wait() == 0, second.read_text()[-3000:]
    after = second.read_text()
    assert f'going on from {work / "epoch_2.pth"}' in after
    assert 'resumed epoch: 2, iter: 64' in after
    assert [len(losses(after, epoch)) for epoch in (1, 2, 3, 4, 5)] == [0, 0, 32, 32, 0]
    # The loss goes on where it was, number for number, also through what the kill made the run repeat.
    repeated = losses(before, 3)
    assert losses(after, 3)[: len(repeated)] == repeated
    checkpoint = read_checkpoint(work / 'epoch_4.pth')
    assert (checkpoint['meta']['epoch'], checkpoint['meta']['iter']) == (4, 128)


@pytest.mark.slow
def test_two_nodes_of_one_process_each(tmp_path, environment, free_port):
    """On one machine; 12 images, 2 a process: 3 steps an epoch, and one node writes. SyncBN does not stop the CPU."""
    config = write_run(tmp_path, epochs=1, more='model["backbone"]["norm_cfg"] = dict(type="SyncBN")\n')
    work = tmp_path / 'work'
    env = dict(environment, NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free_port))
    logs = [tmp_path / f'node{rank}.log' for rank in range(2)]
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.mkdir()
    command = (TOOLS / 'dist_train.sh', config, 1, '--work-dir', work)
    nodes = [start(log, dict(env, NODE_RANK=str(rank)), *command, cwd=elsewhere) for rank, log in enumerate(logs)]
    assert [node.wait() for node in nodes] == [0, 0], '\n'.join(log.read_text()[-3000:] for log in logs)
    assert len(losses(logs[0].read_text(), 1)) == 3 and 'SyncBN has no CPU implementation' in logs[0].read_text()
    assert len(losses(logs[1].read_text(), 1)) == 0
    assert read_checkpoint(work / 'epoch_1.pth')['meta']['iter'] == 3


def test_train_and_test_from_another_folder(tmp_path, environment):
    """Also: no GPU and no word of the CPU is an error, and a mistake is a line."""
    config, work = write_run(tmp_path, epochs=1), tmp_path / 'work'
    log = tmp_path / 'log'
    train = (sys.executable, TOOLS / 'train.py', config, '--work-dir', work)
    if not torch.cuda.is_available():
        env = {name: value for name, value in environment.items() if name != 'MMRM_DEVICE'}
        assert start(log, env, *train, cwd='/').wait() == 2
        assert '--device cpu' in log.read_text() and 'Traceback' not in log.read_text() and not work.exists()
    assert start(log, environment, *train, '--device', 'cpu', cwd='/').wait() == 0, log.read_text()[-3000:]
    test = (
        sys.executable,
        TOOLS / 'test.py',
        config,
        'work/epoch_1.pth',
        '--work-dir',
        'work',
        '--out',
        'metrics.json',
    )
    assert start(log, environment, *test, cwd=tmp_path).wait() == 0, log.read_text()[-3000:]
    assert set(json.loads((tmp_path / 'metrics.json').read_text())) == {'accuracy/top1'}


@pytest.mark.parametrize('script, task', [('dist_train.sh', 'train'), ('dist_test.sh', 'test')])
def test_python_chooses_the_interpreter(tmp_path, environment, script, task):
    log = tmp_path / 'log'
    assert start(log, dict(environment, PYTHON='echo'), TOOLS / script, 'a', 'b').wait() == 0
    assert log.read_text() == f'{TOOLS / "dist.py"} {task} a b\n'


# ------------------------------------------------------------------------------------------- signals, restarts, hanging
def listeners() -> dict:
    """Process id -> addresses that it listens at."""
    shown = subprocess.run(['ss', '-ltnpH'], capture_output=True, text=True, check=True).stdout
    found: dict = {}
    for line in shown.splitlines():
        for pid in re.findall(r'pid=(\d+)', line):
            found.setdefault(int(pid), []).append(line.split()[3])
    return found


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_and_the_run_goes_on_where_it_was(tmp_path, environment):
    """On the way: on one node nothing listens but on loopback."""
    config, work = write_run(tmp_path, epochs=3, images=64), tmp_path / 'work'
    command = (TOOLS / 'dist_train.sh', config, 2, '--work-dir', work)
    log = tmp_path / 'first.log'
    run = start(log, environment, *command, cwd=tmp_path)
    wait_for(lambda: len(losses(log.read_text(), 2)) > 2, log, run)
    if shutil.which('ss'):
        there = listeners()
        mine = [address for pid in (run.pid, *children(run.pid)) for address in there.get(pid, ())]
        assert mine and all(address.startswith(('127.', '[::1]')) for address in mine), mine
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=120) == 75, log.read_text()[-3000:]
    text = log.read_text()
    last = text.strip().splitlines()[-1]
    assert re.match(r'stopped by SIGTERM after iteration \d+, and .*\.pth holds everything\. .*--resume', last), last
    assert 'Traceback' not in text and not (tmp_path / '.dist_test').exists()
    done = int(re.search(r'after iteration (\d+)', last)[1])
    second = tmp_path / 'second.log'
    assert start(second, environment, *command, '--resume', cwd=tmp_path).wait() == 0, second.read_text()[-3000:]
    steps = [len(losses(each, epoch)) for each in (text, second.read_text()) for epoch in (1, 2, 3)]
    assert sum(steps[:3]) == done and sum(steps[3:]) == 48 - done


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGUSR1, signal.SIGINT])
def test_other_signals_do_the_same_also_if_they_go_to_one_process_only(tmp_path, environment, number):
    config, log = write_run(tmp_path, epochs=3, images=64), tmp_path / 'log'
    run = start(log, environment, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    wait_for(lambda: len(losses(log.read_text(), 1)) > 2, log, run)
    os.kill(children(run.pid)[1], number)
    assert run.wait(timeout=120) == 75, log.read_text()[-3000:]
    assert f'stopped by {number.name} after iteration' in log.read_text()


@pytest.mark.slow
def test_a_second_interrupt_ends_everything_at_once(tmp_path, environment):
    more = "custom_imports['imports'].append('slow_step')\ncustom_hooks += [dict(type='SlowStep')]\n"
    (tmp_path / 'slow_step.py').write_text("""
import time
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class SlowStep(Hook):
    def after_train_iter(self, *args, **kwargs):
        time.sleep(60)
""")
    config, log = write_run(tmp_path, more=more), tmp_path / 'log'
    env = dict(environment, PYTHONPATH=f'{tmp_path}:{os.environ.get("PYTHONPATH", "")}')
    run = start(log, env, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    wait_for(lambda: 'Checkpoints will be saved to' in log.read_text(), log, run)
    time.sleep(5)
    workers = children(run.pid)
    run.send_signal(signal.SIGINT)
    time.sleep(1)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) == 130 and 'interrupted twice' in log.read_text()
    wait_for(lambda: not any(alive(worker) for worker in workers), log)


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_run_goes_on(tmp_path, environment):
    """Also where ``--overwrite`` was asked for: only the first start overwrites."""
    config, work, log = write_run(tmp_path, epochs=4, images=64), tmp_path / 'work', tmp_path / 'log'
    command = (TOOLS / 'dist_train.sh', config, 2, '--work-dir', work, '--overwrite')
    run = start(log, dict(environment, MAX_RESTARTS='1'), *command)
    wait_for(lambda: len(losses(log.read_text(), 3)) > 2, log, run)
    os.kill(children(run.pid)[1], signal.SIGKILL)
    assert run.wait(timeout=300) == 0, log.read_text()[-3000:]
    assert 'resumed epoch: 2, iter: 32' in log.read_text() and not list(work.glob('replaced-*'))
    assert read_checkpoint(work / 'epoch_4.pth')['meta']['iter'] == 64


@pytest.mark.slow
def test_a_killed_process_without_restarts_is_named(tmp_path, environment):
    config, log = write_run(tmp_path, epochs=9, images=64), tmp_path / 'log'
    run = start(log, environment, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    wait_for(lambda: len(losses(log.read_text(), 1)) > 2, log, run)
    os.kill(children(run.pid)[1], signal.SIGKILL)
    assert run.wait(timeout=120) == 137, log.read_text()[-3000:]
    assert 'stopped: process 1 of the run was killed by SIGKILL' in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize('restarts', [0, 1])
def test_a_stopped_process_is_found_named_and_ended(tmp_path, environment, restarts):
    config, log = write_run(tmp_path, epochs=4, images=64), tmp_path / 'log'
    env = dict(environment, HANG_MINUTES='0.5', MAX_RESTARTS=str(restarts))
    run = start(log, env, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    wait_for(lambda: len(losses(log.read_text(), 2)) > 2, log, run)
    os.kill(children(run.pid)[1], signal.SIGSTOP)
    assert run.wait(timeout=300) == (0 if restarts else 124), log.read_text()[-3000:]
    (line,) = re.findall('^error: process .*', log.read_text(), re.M)
    assert 'process 1 of the run hangs (it is stopped' in line and 'for 0.5 minutes' in line
    assert ('resumed epoch: 1' in log.read_text()) == bool(restarts)


@pytest.mark.slow
def test_kill_in_mid_checkpoint_leaves_the_older_one(tmp_path, environment):
    """With ``max_keep_ckpts=1``, where mmengine itself removes the older one first."""
    config, work, log = write_run(tmp_path, epochs=2), tmp_path / 'work', tmp_path / 'log'
    code = """
import os, signal, sys
import mmrm.cli.launch
from mmengine.fileio import LocalBackend
put = LocalBackend.put
def put_half(self, data, path):
    if 'epoch_2' in str(path):
        put(self, data[:len(data) // 2], path)
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, data, path)
LocalBackend.put = put_half
mmrm.cli.launch.train(sys.argv[1:])
"""
    command = (config, '--work-dir', work)
    assert start(log, environment, sys.executable, '-c', code, *command).wait() == -signal.SIGKILL, log.read_text()
    assert [path.name for path in work.glob('epoch_*.pth')] == ['epoch_1.pth']
    resume = (sys.executable, TOOLS / 'train.py', *command, '--resume')
    assert start(log, environment, *resume).wait() == 0, log.read_text()[-3000:]
    assert 'resumed epoch: 1' in log.read_text()
    assert [path.name for path in work.glob('*epoch_*.p*') if 'best' not in path.name] == ['epoch_2.pth']


# The exit code of a mistake; on a busy machine gloo's threads now and then abort a process that leaves.
DIVERGED = (2, 128 + signal.SIGABRT)
POISON = '''
import math, os, torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class Poison(Hook):
    """The loss that one process reports is NaN from the fourth iteration on; the weights stay as they are."""
    priority = 'HIGHEST'

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if os.environ['RANK'] == '1' and runner.iter >= 3:
            outputs['loss'] = torch.tensor(math.nan)
'''


def test_a_loss_that_is_nan_in_one_process_ends_both_with_one_message(tmp_path, environment, free_port):
    """Iterations 4, 5 and 6 of process 1; the processes agree every 5 iterations, so both end at the tenth."""
    (tmp_path / 'poison.py').write_text(POISON)
    more = (
        "custom_imports['imports'].append('poison')\n"
        "custom_hooks += [dict(type='Poison'), dict(type='NonFiniteLossHook', interval=5)]\n"
    )
    config, log = write_run(tmp_path, epochs=2, images=128, more=more), tmp_path / 'log'
    env = dict(environment, PORT=str(free_port), PYTHONPATH=f'{tmp_path}:{os.environ.get("PYTHONPATH", "")}')
    run = start(log, env, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    assert run.wait(timeout=300) in DIVERGED, log.read_text()[-3000:]
    text = log.read_text()
    assert 'Traceback' not in text and len(losses(text, 1)) == 10
    (error,) = set(re.findall('^error: .*', text, re.M))  # on a slow machine the second process tells it too
    assert 'the loss of process 1 was not finite in 7 iterations in a row, from iteration 4 on' in error


@pytest.mark.slow
def test_a_learning_rate_of_1e8_ends_two_processes_at_the_same_place(tmp_path, environment, free_port):
    config, log = write_run(tmp_path, epochs=3, images=32), tmp_path / 'log'
    run = start(
        log,
        dict(environment, PORT=str(free_port)),
        TOOLS / 'dist_train.sh',
        config,
        2,
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        'optim_wrapper.optimizer.lr=1e8',
    )
    assert run.wait(timeout=300) in DIVERGED, log.read_text()[-3000:]
    assert len(set(re.findall('^error: training was stopped: the loss.*', log.read_text(), re.M))) == 1
    assert not list((tmp_path / 'work').glob('*.pth'))


@pytest.mark.slow
def test_kill_between_two_best_checkpoints_leaves_one_at_the_next_start(tmp_path, environment):
    config, work, log = write_run(tmp_path, epochs=2), tmp_path / 'work', tmp_path / 'log'
    code = """
import os, signal, sys
import mmrm.cli.launch
from mmengine.hooks import CheckpointHook
from mmrm.engine.runner import Runner
CheckpointHook.rule_map['greater'] = lambda score, best: True
save = Runner.save_checkpoint
def save_and_die(self, out_dir, filename, *args, **kwargs):
    save(self, out_dir, filename, *args, **kwargs)
    if filename == 'best_accuracy_top1_epoch_2.pth':
        os.kill(os.getpid(), signal.SIGKILL)
Runner.save_checkpoint = save_and_die
mmrm.cli.launch.train(sys.argv[1:])
"""
    command = (config, '--work-dir', work)
    assert start(log, environment, sys.executable, '-c', code, *command).wait() == -signal.SIGKILL, log.read_text()
    assert len(list(work.glob('best_*.pth'))) == 2
    best = read_checkpoint(work / 'best_accuracy_top1_epoch_2.pth')['message_hub']['runtime_info']['best_score']
    out = tmp_path / 'backbone.pth'
    export = (sys.executable, TOOLS / 'export.py', 'backbone', work, out)
    assert start(log, environment, *export).wait() == 0, log.read_text()[-3000:]
    assert out.is_file()
    resume = (sys.executable, TOOLS / 'train.py', *command, '--resume')
    assert start(log, environment, *resume).wait() == 0, log.read_text()[-3000:]
    assert [path.name for path in work.glob('best_*.pth')] == ['best_accuracy_top1_epoch_2.pth']
    assert f'The best checkpoint so far is best_accuracy_top1_epoch_2.pth, with {best:0.4f}' in log.read_text()


@pytest.mark.slow
def test_launcher_that_is_stopped_stops_its_processes(tmp_path, environment, free_port):
    config, log = write_run(tmp_path, epochs=50, images=64), tmp_path / 'log'
    env = dict(environment, PORT=str(free_port))
    run = start(log, env, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    wait_for(lambda: losses(log.read_text(), 1), log, run)
    workers = children(run.pid)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == 75
    assert 'stopped by SIGTERM' in log.read_text() and 'Traceback' not in log.read_text()
    assert len(workers) == 2 and not any(alive(worker) for worker in workers)


@pytest.mark.slow
def test_process_that_dies_ends_the_run_with_one_line(tmp_path, environment, free_port):
    config, log = write_run(tmp_path, epochs=50, images=64), tmp_path / 'log'
    env = dict(environment, PORT=str(free_port))
    run = start(log, env, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    wait_for(lambda: losses(log.read_text(), 1), log, run)
    os.kill(children(run.pid)[1], signal.SIGKILL)
    assert run.wait(timeout=60) == 128 + signal.SIGKILL
    assert 'stopped: process 1 of the run was killed by SIGKILL' in log.read_text()
    assert 'ChildFailedError' not in log.read_text()


@pytest.mark.slow
def test_mistake_found_by_all_processes_is_told_once(tmp_path, environment, free_port):
    config, log = write_run(tmp_path, epochs=1), tmp_path / 'log'
    env = dict(environment, PORT=str(free_port))
    run = start(
        log,
        env,
        TOOLS / 'dist_train.sh',
        config,
        2,
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        'model.backbone.type=ResNett',
    )
    assert run.wait() == 2
    text = log.read_text()
    assert 'Traceback' not in text and len(re.findall('^error: .*ResNett', text, re.M)) == 1


@pytest.mark.slow
def test_nodes_that_do_not_share_the_work_dir_do_not_resume_apart(tmp_path, environment, free_port):
    config = write_run(tmp_path, epochs=2)
    env = dict(environment, NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free_port))
    logs = [tmp_path / f'node{rank}.log' for rank in range(2)]

    def run(epochs):
        nodes = [
            start(
                log,
                dict(env, NODE_RANK=str(rank)),
                TOOLS / 'dist_train.sh',
                config,
                1,
                '--work-dir',
                tmp_path / f'work{rank}',
                '--resume',
                '--cfg-options',
                f'train_cfg.max_epochs={epochs}',
            )
            for rank, log in enumerate(logs)
        ]
        return [node.wait() for node in nodes]

    assert run(1) == [0, 0], logs[0].read_text()[-3000:]
    assert all(run(2)), logs[0].read_text()[-3000:]
    assert any('do not start from the same checkpoint' in log.read_text() for log in logs)
    assert not list(tmp_path.glob('work*/epoch_2.pth'))


@pytest.mark.slow
def test_two_processes_test_like_one(tmp_path, environment, free_port):
    config, work = write_run(tmp_path, epochs=1), tmp_path / 'work'
    log = tmp_path / 'log'
    assert start(log, environment, sys.executable, TOOLS / 'train.py', config, '--work-dir', work).wait() == 0
    files, out = (config, work / 'epoch_1.pth'), ('--work-dir', work, '--out')
    test = (sys.executable, TOOLS / 'test.py', *files, *out, tmp_path / '1.json')
    assert start(log, environment, *test).wait() == 0, log.read_text()[-3000:]
    test = (TOOLS / 'dist_test.sh', *files, 2, *out, tmp_path / '2.json')
    assert start(log, dict(environment, PORT=str(free_port)), *test).wait() == 0, log.read_text()[-3000:]
    one, two = (json.loads((tmp_path / f'{number}.json').read_text()) for number in (1, 2))
    assert one == two


# --------------------------------------------------------------------------------------------------------------- Slurm
@pytest.fixture
def slurm(tmp_path, environment):
    """An environment with an ``srun`` that writes its arguments, one a line, to ``srun.txt``."""
    folder = tmp_path / 'bin'
    folder.mkdir()
    srun = folder / 'srun'
    srun.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" > {tmp_path}/srun.txt\n')
    srun.chmod(0o755)
    return dict(environment, PATH=f'{folder}:{os.environ["PATH"]}')


def test_slurm_asks_for_the_gpus_and_passes_the_options_on(tmp_path, slurm):
    config = tmp_path / 'a config.py'
    config.write_text('')
    env = dict(slurm, GPUS='16', CPUS_PER_TASK='3', SRUN_ARGS='--qos=long --exclusive', MMRM_DEVICE='')
    command = [
        TOOLS / 'slurm_train.sh',
        'gpu',
        'my job',
        config,
        tmp_path / 'work',
        '--seed',
        '1',
        '--cfg-options',
        'a=b c',
    ]
    subprocess.run([str(word) for word in command], env=env, check=True, cwd=tmp_path)
    assert (tmp_path / 'srun.txt').read_text().splitlines() == [
        '-p',
        'gpu',
        '--job-name=my job',
        '--gres=gpu:8',
        '--ntasks=16',
        '--ntasks-per-node=8',
        '--cpus-per-task=3',
        '--kill-on-bad-exit=1',
        '--signal=USR1@120',
        '--qos=long',
        '--exclusive',
        sys.executable,
        '-u',
        str(TOOLS / 'train.py'),
        str(config),
        '--work-dir',
        str(tmp_path / 'work'),
        '--seed',
        '1',
        '--cfg-options',
        'a=b c',
        '--launcher',
        'slurm',
    ]


@pytest.mark.parametrize('name', ['rm_resnet18_2xb64_cifar10', 'mmpretrain::resnet/resnet18_8xb32_in1k.py'])
def test_slurm_leaves_a_name_to_train_py(name, tmp_path, slurm):
    subprocess.run([str(TOOLS / 'slurm_train.sh'), 'gpu', 'job', name], env=slurm, check=True, cwd=tmp_path)
    assert name in (tmp_path / 'srun.txt').read_text()


def test_slurm_test_and_the_cpu(tmp_path, slurm):
    config = tmp_path / 'config.py'
    config.write_text('')
    command = [TOOLS / 'slurm_test.sh', 'cpu', 'job', 'config.py', 'a.pth', '--out', 'b.json']
    subprocess.run([str(word) for word in command], env=dict(slurm, GPUS='2'), check=True, cwd=tmp_path)
    assert (tmp_path / 'srun.txt').read_text().splitlines() == [
        '-p',
        'cpu',
        '--job-name=job',
        '--ntasks=2',
        '--ntasks-per-node=2',
        '--cpus-per-task=5',
        '--kill-on-bad-exit=1',
        sys.executable,
        '-u',
        str(TOOLS / 'test.py'),
        'config.py',
        'a.pth',
        '--out',
        'b.json',
        '--launcher',
        'slurm',
    ]


@pytest.mark.parametrize(
    'env, argv, named',
    [
        (dict(GPUS='0'), ('gpu', 'job', 'config.py'), 'GPUS=0'),
        (dict(GPUS_PER_NODE='many'), ('gpu', 'job', 'config.py'), 'GPUS_PER_NODE=many'),
        ({}, ('gpu', 'job', 'missing.py'), 'missing.py does not exist'),
        ({}, ('gpu', 'job'), 'usage'),
    ],
)
def test_slurm_mistakes_are_told_before_a_job_is_queued(tmp_path, slurm, env, argv, named):
    (tmp_path / 'config.py').write_text('')
    run = subprocess.run(
        [str(TOOLS / 'slurm_train.sh'), *argv],
        env=dict(slurm, **env),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2 and named in run.stderr and len(run.stderr.splitlines()) == 1
    assert not (tmp_path / 'srun.txt').exists()


def test_without_slurm_the_message_names_the_other_way(tmp_path, environment):
    (tmp_path / 'config.py').write_text('')
    # A PATH with what the script itself needs and nothing else.
    for name in ('bash', 'dirname', 'env'):
        found = subprocess.run(['bash', '-c', f'command -v {name}'], capture_output=True, text=True, check=True)
        (tmp_path / name).symlink_to(found.stdout.strip())
    run = subprocess.run(
        [str(TOOLS / 'slurm_train.sh'), 'gpu', 'job', 'config.py'],
        cwd=tmp_path,
        capture_output=True,
        env=dict(environment, PATH=str(tmp_path)),
        text=True,
        check=False,
    )
    assert run.returncode == 2 and 'dist_train.sh' in run.stderr


def test_slurm_queues_a_run_again_that_its_warning_stopped(tmp_path, slurm):
    """Twice, from where it was; an ``srun`` that ends with 75, 75 and 0."""
    (tmp_path / 'config.py').write_text('')
    (tmp_path / 'bin/srun').write_text(f"""#!/usr/bin/env bash
echo "$MMRM_LAUNCH $MMRM_RESTARTS" >> {tmp_path}/starts
[ $(wc -l < {tmp_path}/starts) -gt 2 ] || exit 75
""")
    run = subprocess.run(
        [str(TOOLS / 'slurm_train.sh'), 'cpu', 'job', 'config.py'],
        env=slurm,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0 and run.stderr.count('queued again') == 2
    names, counts = zip(*(line.split() for line in (tmp_path / 'starts').read_text().splitlines()))
    assert len(set(names)) == 1 and counts == ('0', '1', '2')


@pytest.mark.parametrize('code, queued', [(75, True), (0, False), (2, False), (143, False)])
def test_in_a_slurm_job_the_job_is_queued_again(tmp_path, slurm, code, queued):
    (tmp_path / 'config.py').write_text('')
    (tmp_path / 'bin/srun').write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" > {tmp_path}/srun.txt\nexit {code}\n')
    scontrol = tmp_path / 'bin/scontrol'
    scontrol.write_text(f'#!/usr/bin/env bash\necho "$@" > {tmp_path}/scontrol.txt\nkill $PPID\n')  # as Slurm does
    scontrol.chmod(0o755)
    run = subprocess.run(
        [str(TOOLS / 'slurm_train.sh'), 'cpu', 'job', 'config.py'],
        env=dict(slurm, SLURM_JOB_ID='12', GPUS='2'),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == code
    assert (tmp_path / 'scontrol.txt').exists() == queued
    if queued:
        assert (tmp_path / 'scontrol.txt').read_text() == 'requeue 12\n'
    assert '-p' not in (tmp_path / 'srun.txt').read_text().splitlines()  # the job has its partition


def test_slurm_run_that_somebody_ends_is_not_queued_again(tmp_path, slurm):
    (tmp_path / 'config.py').write_text('')
    (tmp_path / 'bin/srun').write_text(f'#!/usr/bin/env bash\necho start >> {tmp_path}/starts\nkill $PPID\nexit 75\n')
    command = [str(TOOLS / 'slurm_train.sh'), 'cpu', 'job', 'config.py']
    run = subprocess.run(command, env=slurm, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 75 and (tmp_path / 'starts').read_text() == 'start\n' and 'queued' not in run.stderr


def test_slurm_batch_job_is_submitted_with_its_warning(tmp_path, slurm):
    (tmp_path / 'config.py').write_text('')
    sbatch = tmp_path / 'bin/sbatch'
    sbatch.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" > {tmp_path}/sbatch.txt\n')
    sbatch.chmod(0o755)
    env = dict(slurm, BATCH='1', GPUS='2', WARN_SECONDS='300', SRUN_ARGS='--time=60')
    command = [str(TOOLS / 'slurm_train.sh'), 'cpu', 'job', 'config.py', 'a b', '--seed', '1']
    subprocess.run(command, env=env, cwd=tmp_path, check=True)
    words = (tmp_path / 'sbatch.txt').read_text().splitlines()
    assert {'--requeue', '--signal=USR1@300', '--open-mode=append', '--time=60', '--ntasks=2'} <= set(words)
    assert words[-1] == f'exec bash {TOOLS}/slurm.sh cpu job train config.py --work-dir a\\ b --seed 1 '


def has_slurm() -> bool:
    """Whether there is a Slurm with a partition that answers."""
    return bool(shutil.which('sbatch')) and subprocess.run(['sinfo'], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_slurm(), reason='there is no Slurm here')
def test_real_slurm_queues_a_run_again_and_it_goes_on(tmp_path, environment, free_port):
    """Minutes: Slurm waits before it starts a job again. The warning is sent by hand."""
    (partition,) = subprocess.run(['sinfo', '-ho', '%R'], capture_output=True, text=True, check=True).stdout.split()[:1]
    config, work = write_run(tmp_path, epochs=200, images=64), tmp_path / 'work'
    env = dict(environment, GPUS='2', CPUS_PER_TASK='1', BATCH='1', PORT=str(free_port))
    command = [str(TOOLS / 'slurm_train.sh'), partition, 'mmrm-test', str(config), str(work)]
    told = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    job = told.split()[-1]
    log = tmp_path / f'mmrm-test-{job}.log'
    try:
        wait_for(lambda: log.exists() and len(losses(log.read_text(), 2)) > 2, log)
        subprocess.run(['scancel', '--signal=USR1', job], check=True)
        wait_for(lambda: f'queued again: job {job}' in log.read_text(), log)
        saved = re.search(r'after iteration (\d+), and (\S+) holds', log.read_text())
        wait_for(lambda: f'going on from {saved[2]}' in log.read_text(), log)
        wait_for(lambda: f', iter: {saved[1]}' in log.read_text(), log)
    finally:
        subprocess.run(['scancel', job], check=True)
    wait_for(lambda: job not in subprocess.run(['squeue', '-ho', '%i'], capture_output=True, text=True).stdout, log)
    assert log.read_text().count('queued again') == 1


@pytest.mark.slow
def test_slurm_processes_find_each_other(tmp_path, slurm, free_port):
    """An ``srun`` that starts the tasks on this machine, with the variables that Slurm sets."""
    config, work = write_run(tmp_path, epochs=1), tmp_path / 'work'
    (tmp_path / 'bin/srun').write_text("""#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do [ "$1" = -p ] && shift; shift; done
for task in 0 1; do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 SLURM_NODELIST=node "$@" & pids="$pids $!"
done
for pid in $pids; do wait $pid || exit; done
""")
    (tmp_path / 'bin/scontrol').write_text('#!/usr/bin/env bash\necho 127.0.0.1\necho other\n')
    (tmp_path / 'bin/scontrol').chmod(0o755)
    log = tmp_path / 'log'
    run = start(log, dict(slurm, GPUS='2', PORT=str(free_port)), TOOLS / 'slurm_train.sh', 'cpu', 'job', config, work)
    assert run.wait() == 0, log.read_text()[-3000:]
    assert len(losses(log.read_text(), 1)) == 3 and (work / 'epoch_1.pth').exists()
