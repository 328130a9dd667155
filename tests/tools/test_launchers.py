"""The launchers as a user starts them: real processes, two nodes on one machine, kill -9, a Slurm that records."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from launching import TOOLS, alive, children, clean_environment, losses, start, wait_for
from tiny_run import write_run

from mmrm.utils.checkpoints import read_checkpoint


@pytest.fixture
def environment():
    return clean_environment()


@pytest.mark.slow
def test_two_nodes_of_one_process_each_and_a_restart_of_both(tmp_path, environment, free_port):
    """On one machine; 32 images, 2 a process: 8 steps an epoch, and one node writes. SyncBN does not stop the CPU."""
    config = write_run(tmp_path, epochs=3, images=32, more='model["backbone"]["norm_cfg"] = dict(type="SyncBN")\n')
    work, elsewhere = tmp_path / 'work', tmp_path / 'elsewhere'
    env = dict(environment, NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free_port), MAX_RESTARTS='1')
    logs = [tmp_path / f'node{rank}.log' for rank in range(2)]
    elsewhere.mkdir()
    command = (TOOLS / 'dist_train.sh', config, 1, '--work-dir', work)
    nodes = [start(log, dict(env, NODE_RANK=str(rank)), *command, cwd=elsewhere) for rank, log in enumerate(logs)]

    def logged(epoch):
        return [losses(log, epoch) for log in logs]

    wait_for(lambda: any(logged(2)), logs[1], nodes[1])
    first = logged(1)
    os.kill(children(nodes[1].pid)[0], signal.SIGKILL)
    assert [node.wait(timeout=300) for node in nodes] == [0, 0], '\n'.join(log.read_text()[-3000:] for log in logs)
    assert sorted(map(len, logged(1))) == [0, 8] and logged(1) == first  # it went on from there
    assert any('SyncBN has no CPU implementation' in log.read_text() for log in logs)
    assert read_checkpoint(work / 'epoch_3.pth')['meta']['iter'] == 24


@pytest.mark.parametrize(
    'script, argv, called',
    [
        ('dist_train.sh', 'a.py 2 --amp', 'train.py a.py --gpus 2 --amp'),
        ('dist_test.sh', 'a.py b.pth 2 --tta', 'test.py a.py b.pth --gpus 2 --tta'),
    ],
)
def test_dist_scripts_call_the_tools_with_gpus(tmp_path, environment, script, argv, called):
    log = tmp_path / 'log'
    assert start(log, dict(environment, PYTHON='echo'), TOOLS / script, *argv.split()).wait() == 0
    assert log.read_text() == f'{TOOLS}/{called}\n'
    assert start(log, environment, TOOLS / script, 'a.py').wait() == 2 and log.read_text().startswith('usage: ')


# ------------------------------------------------------------------------------------------------- signals and restarts
HOOKS = """
import os, time
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmrm.utils.errors import UserValueError

@HOOKS.register_module()
class SlowStep(Hook):
    def after_train_iter(self, *args, **kwargs):
        print('stepped', flush=True)
        time.sleep(60)

@HOOKS.register_module()
class Mistake(Hook):
    def before_train_epoch(self, runner):
        if runner.rank == 1:
            raise UserValueError('a mistake of one process')
"""


def with_hook(tmp_path, environment, name: str):
    """A config with a hook of ``HOOKS``, and the environment that finds it."""
    (tmp_path / 'own_hooks.py').write_text(HOOKS)
    more = f"custom_imports['imports'].append('own_hooks')\ncustom_hooks += [dict(type='{name}')]\n"
    environment['PYTHONPATH'] = f'{tmp_path}:{os.environ.get("PYTHONPATH", "")}'
    return write_run(tmp_path, more=more), environment


@pytest.mark.slow
def test_a_second_interrupt_ends_everything_at_once(tmp_path, environment):
    (config, env), log = with_hook(tmp_path, environment, 'SlowStep'), tmp_path / 'log'
    run = start(log, env, TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    wait_for(lambda: 'stepped' in log.read_text(), log, run)
    ranks = children(run.pid)
    run.send_signal(signal.SIGINT)
    time.sleep(1)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) == 130 and 'interrupted twice' in log.read_text()
    wait_for(lambda: not any(map(alive, ranks)), log)


@pytest.mark.slow
def test_a_mistake_of_one_process_ends_all_and_is_not_restarted(tmp_path, environment):
    (config, env), log = with_hook(tmp_path, environment, 'Mistake'), tmp_path / 'log'
    run = start(log, dict(env, MAX_RESTARTS='2'), TOOLS / 'dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    assert run.wait(timeout=300) == 2, log.read_text()[-3000:]
    assert log.read_text().count('error: a mistake of one process') == 1


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
    """Call a Slurm script in a folder with ``config.py``: ``slurm(script, *argv, **variables)``.

    ``srun`` writes its arguments, one per line, to ``srun.txt``; ``slurm.command(name, text)`` makes another command.
    """
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'config.py').write_text('')
    (tmp_path / 'a config.py').write_text('')

    def command(name, text):
        path = tmp_path / 'bin' / name
        path.write_text(f'#!/usr/bin/env bash\n{text}\n')
        path.chmod(0o755)

    def call(script, *argv, **variables):
        env = dict(environment, PATH=f'{tmp_path / "bin"}:{os.environ["PATH"]}', **variables)
        words = [str(TOOLS / script), *map(str, argv)]
        return subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    call.command = command
    command('srun', f'printf "%s\\n" "$@" > {tmp_path}/srun.txt')
    return call


def test_slurm_asks_for_the_gpus_and_passes_the_options_on(tmp_path, slurm):
    settings = dict(GPUS='16', CPUS_PER_TASK='3', SRUN_ARGS='--qos=long --exclusive', MMRM_DEVICE='')
    argv = ('gpu', 'my job', 'a config.py', 'my work', '--seed', '1', '--cfg-options', 'a=b c')
    assert slurm('slurm_train.sh', *argv, **settings).returncode == 0
    resources = '-p|gpu|--job-name=my job|--gres=gpu:8|--ntasks=16|--ntasks-per-node=8|--cpus-per-task=3'
    options = '--kill-on-bad-exit=1|--signal=USR1@120|--qos=long|--exclusive'
    command = f'{sys.executable}|-u|{TOOLS}/train.py|a config.py|--work-dir|my work|--seed|1|--cfg-options|a=b c'
    assert (tmp_path / 'srun.txt').read_text().splitlines() == (
        f'{resources}|{options}|{command}|--launcher|slurm'.split('|')
    )


def test_slurm_test_and_the_cpu(tmp_path, slurm):
    assert slurm('slurm_test.sh', 'cpu', 'job', 'config.py', 'a.pth', '--out', 'b.json', GPUS='2').returncode == 0
    assert (tmp_path / 'srun.txt').read_text().split() == (
        '-p cpu --job-name=job --ntasks=2 --ntasks-per-node=2 --cpus-per-task=5 --kill-on-bad-exit=1 '
        f'{sys.executable} -u {TOOLS}/test.py config.py a.pth --out b.json --launcher slurm'
    ).split()


@pytest.mark.parametrize('name', ['rm_resnet18_2xb64_cifar10', 'mmpretrain::resnet/resnet18_8xb32_in1k.py'])
def test_slurm_leaves_a_name_to_train_py(name, tmp_path, slurm):
    assert slurm('slurm_train.sh', 'gpu', 'job', name).returncode == 0
    assert name in (tmp_path / 'srun.txt').read_text()


@pytest.mark.parametrize(
    'variables, argv, named',
    [
        (dict(GPUS='0'), ('gpu', 'job', 'config.py'), 'GPUS=0'),
        (dict(GPUS_PER_NODE='many'), ('gpu', 'job', 'config.py'), 'GPUS_PER_NODE=many'),
        ({}, ('gpu', 'job', 'missing.py'), 'missing.py does not exist'),
        ({}, ('gpu', 'job'), 'usage'),
    ],
)
def test_slurm_input_errors_come_before_a_job_is_queued(tmp_path, slurm, variables, argv, named):
    run = slurm('slurm_train.sh', *argv, **variables)
    assert run.returncode == 2 and named in run.stderr and len(run.stderr.splitlines()) == 1
    assert not (tmp_path / 'srun.txt').exists()


def test_without_slurm_the_message_names_the_other_way(tmp_path, environment):
    (tmp_path / 'config.py').write_text('')
    for name in ('bash', 'dirname', 'env'):  # a PATH with what the script itself needs and nothing else
        (tmp_path / name).symlink_to(shutil.which(name))
    command = [str(TOOLS / 'slurm_train.sh'), 'gpu', 'job', 'config.py']
    env = dict(environment, PATH=str(tmp_path))
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, env=env, text=True, check=False)
    assert run.returncode == 2 and 'dist_train.sh' in run.stderr


def test_slurm_queues_a_run_again_that_its_warning_stopped(tmp_path, slurm):
    """Twice; an ``srun`` that ends with 75, 75 and 0."""
    starts = tmp_path / 'starts'
    count = f'[ $(wc -l < {starts}) -gt 2 ] || exit 75'
    slurm.command('srun', f'echo "$MMRM_LAUNCH $MMRM_RESTARTS" >> {starts}\n{count}')
    run = slurm('slurm_train.sh', 'cpu', 'job', 'config.py')
    assert run.returncode == 0 and run.stderr.count('requeued') == 2
    names, counts = zip(*(line.split() for line in starts.read_text().splitlines()))
    assert len(set(names)) == 1 and counts == ('0', '1', '2')


@pytest.mark.parametrize('code, queued', [(75, True), (76, False), (0, False), (2, False), (143, False)])
def test_in_a_slurm_job_the_job_is_queued_again(tmp_path, slurm, code, queued):
    slurm.command('srun', f'printf "%s\\n" "$@" > {tmp_path}/srun.txt\nexit {code}')
    slurm.command('scontrol', f'echo "$@" > {tmp_path}/scontrol.txt\nkill $PPID')  # as Slurm does
    assert slurm('slurm_train.sh', 'cpu', 'job', 'config.py', SLURM_JOB_ID='12', GPUS='2').returncode == code
    asked = tmp_path / 'scontrol.txt'
    assert (asked.read_text() if asked.exists() else '') == ('requeue 12\n' if queued else '')
    assert '-p' not in (tmp_path / 'srun.txt').read_text().splitlines()  # the job has its partition


def test_cancelled_slurm_run_is_not_requeued(tmp_path, slurm):
    slurm.command('srun', f'echo start >> {tmp_path}/starts\nkill $PPID\nexit 75')
    run = slurm('slurm_train.sh', 'cpu', 'job', 'config.py')
    assert run.returncode == 75 and (tmp_path / 'starts').read_text() == 'start\n' and 'queued' not in run.stderr


def test_slurm_batch_job_is_submitted_with_its_warning(tmp_path, slurm):
    slurm.command('sbatch', f'printf "%s\\n" "$@" > {tmp_path}/sbatch.txt')
    settings = dict(BATCH='1', GPUS='2', WARN_SECONDS='300', SRUN_ARGS='--time=60')
    assert slurm('slurm_train.sh', 'cpu', 'job', 'config.py', 'a b', '--seed', '1', **settings).returncode == 0
    words = (tmp_path / 'sbatch.txt').read_text().splitlines()
    assert {'--requeue', '--signal=USR1@300', '--open-mode=append', '--time=60', '--ntasks=2'} <= set(words)
    assert words[-1] == f'exec bash {TOOLS}/slurm.sh cpu job train config.py --work-dir a\\ b --seed 1 '


def has_slurm() -> bool:
    """Whether there is a Slurm with a partition that answers."""
    return bool(shutil.which('sbatch')) and subprocess.run(['sinfo'], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_slurm(), reason='there is no Slurm here')
def test_real_slurm_requeues_a_run_and_it_resumes(tmp_path, environment, free_port):
    """Minutes: Slurm waits before it starts a job again. The warning is sent by hand."""
    (partition,) = subprocess.run(['sinfo', '-ho', '%R'], capture_output=True, text=True, check=True).stdout.split()[:1]
    config, work = write_run(tmp_path, epochs=200, images=64), tmp_path / 'work'
    env = dict(environment, GPUS='2', CPUS_PER_TASK='1', BATCH='1', PORT=str(free_port))
    command = [str(TOOLS / 'slurm_train.sh'), partition, 'mmrm-test', str(config), str(work)]
    told = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    job = told.split()[-1]
    log = tmp_path / f'mmrm-test-{job}.log'
    try:
        wait_for(lambda: log.exists() and len(losses(log, 2)) > 2, log)
        subprocess.run(['scancel', '--signal=USR1', job], check=True)
        wait_for(lambda: f'requeued: job {job}' in log.read_text(), log)
        saved = re.search(r'after iteration (\d+), and (\S+) holds', log.read_text())
        wait_for(lambda: f'resuming from {saved[2]}' in log.read_text(), log)
        wait_for(lambda: f', iter: {saved[1]}' in log.read_text(), log)
    finally:
        subprocess.run(['scancel', job], check=True)
    wait_for(lambda: job not in subprocess.run(['squeue', '-ho', '%i'], capture_output=True, text=True).stdout, log)
    assert log.read_text().count('requeued') == 1


@pytest.mark.slow
def test_slurm_processes_find_each_other(tmp_path, slurm, free_port):
    """An ``srun`` that starts the tasks on this machine, with the variables that Slurm sets."""
    config, work = write_run(tmp_path, epochs=1), tmp_path / 'work'
    slurm.command(
        'srun',
        """
while [ "${1#-}" != "$1" ]; do [ "$1" = -p ] && shift; shift; done
for task in 0 1; do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 SLURM_NODELIST=node "$@" & pids="$pids $!"
done
for pid in $pids; do wait $pid || exit; done
""",
    )
    slurm.command('scontrol', 'echo 127.0.0.1\necho other')
    run = slurm('slurm_train.sh', 'cpu', 'job', config, work, GPUS='2', PORT=str(free_port))
    assert run.returncode == 0, run.stderr[-3000:]
    assert (work / 'epoch_1.pth').exists()
