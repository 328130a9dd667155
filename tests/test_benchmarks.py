"""The benchmarks of speed run, in small, and count what they say they count. Their timings mean nothing here."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers import batch, classifier
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper

FOLDER = Path(__file__).resolve().parents[1] / 'benchmarks'
SMALL = {
    'scaling': ('--batches 2 --sizes 32 --classes 10 20 --channels 8 --rounds 2', ['RM adds', 'share_fc', '20']),
    'compile': ('--steps 6 --batch 3 --size 32', ['| 6 |', '| 2 | 0 |']),
    'cost': ('--batch 2 --size 32 --classes 10 --depth 18 --rounds 1', ['RM in all', 'baseline step']),
    'on_gpu': (
        '--device cpu --quick',
        ['| ms per step, float32 |', '| memory |', ' of eager', 'two processes |', 'skipped'],
    ),
    'loop': ('--rounds 1 --steps 2 --float32', ['baseline', 'rm']),
}


def run(name, options, timeout=600):
    command = [sys.executable, str(FOLDER / f'{name}.py'), *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize('name', SMALL)
def test_it_runs_in_small(name):
    options, told = SMALL[name]
    printed = run(name, options)
    assert all(text in printed for text in told) and 'failed' not in printed, printed


@pytest.mark.slow
def test_two_processes_are_timed():
    printed = run('scaling', '--processes 2 --batches 2 --sizes 32 --classes 10 --depth 18 --rounds 1')
    assert '| rm |' in printed and '2 processes' in printed


@pytest.fixture
def group(tmp_path):
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def collectives(model):
    """Names and numbers of the collective operations in one step of DDP, as torch's profiler sees them."""
    ddp = MMDistributedDataParallel(model, device_ids=None, broadcast_buffers=False, find_unused_parameters=False)
    wrapper = OptimWrapper(torch.optim.SGD(ddp.parameters(), lr=0.01))
    for _ in range(3):  # DDP sorts its buckets after the first
        ddp.train_step(batch(), wrapper)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ddp.train_step(batch(), wrapper)
    return {event.key: event.count for event in profile.key_averages() if event.key.startswith('c10d::')}


def test_rm_adds_no_collective_to_a_step(group):
    plain = classifier(omega=0.0)
    plain.data_preprocessor.batch_augments, plain.data_preprocessor.to_onehot = None, False
    expected = collectives(plain)
    assert expected and sum(expected.values()) > 0
    assert collectives(classifier(omega=0.5)) == expected
