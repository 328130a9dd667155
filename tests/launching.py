"""Starting the launchers as a user does, and looking at their processes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Optional

# Another checkout can be tested with these tests.
TOOLS = Path(os.environ.get('MMRM_ROOT') or Path(__file__).parents[1]) / 'tools'
SETTINGS = ('NNODES', 'NODE_RANK', 'MASTER_ADDR', 'MASTER_PORT', 'PORT', 'MAX_RESTARTS', 'MMRM_PARENT')
OTHERS = ('MMRM_TRACEBACK', 'SRUN_ARGS', 'BATCH', 'WARN_SECONDS', 'GPUS', 'GPUS_PER_NODE', 'CPUS_PER_TASK')


def clean_environment() -> dict:
    """The environment of a launcher: this interpreter, the CPU, no settings of another run."""
    unset = (*SETTINGS, *OTHERS)
    kept = {name: value for name, value in os.environ.items() if name not in unset and not name.startswith('SLURM_')}
    threads = dict(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')
    return dict(kept, PYTHON=sys.executable, MMRM_DEVICE='cpu', CUDA_VISIBLE_DEVICES='', **threads)


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


def losses(log: Path, epoch: int) -> List[str]:
    """The losses of an epoch as they were logged."""
    return re.findall(rf'Epoch\(train\) +\[ *{epoch}\]\[ *\d+/\d+\].* loss: (\d+\.\d+)', log.read_text())


def children(pid: int) -> List[int]:
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
