"""benchmarks/soak.py in small: real processes, every signal, compared with the run that nobody killed."""

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[1] / 'benchmarks' / 'soak.py'


@pytest.mark.slow
@pytest.mark.parametrize('processes', [1, 2, 3])
def test_runs_that_are_killed_end_as_the_one_that_was_not(processes, tmp_path):
    options = f'--kills 9 --kills-per-run 3 --images 24 --processes {processes} --seed {processes}'.split()
    command = [sys.executable, SOAK, *options, '--keep', tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '9 kills in' in done.stdout and '0 runs differ' in done.stdout.replace('\n', ' ')
