"""The benchmarks at small scale: they run to their tables and find what is wrong. Their timings mean nothing here."""

import importlib.util
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from helpers import batch, classifier
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper

from benchmarks import fuzz_mixing
from mmrm import core


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a benchmark's ``main`` and returns what it returned and what it printed."""
    threads = torch.get_num_threads(), cv2.getNumThreads()

    def run(name, *arguments):
        monkeypatch.setattr('sys.argv', [f'{name}.py', *map(str, arguments)])
        code = importlib.import_module(f'benchmarks.{name}').main()
        return code, ' '.join(capsys.readouterr().out.split())

    yield run
    torch.set_num_threads(threads[0])
    cv2.setNumThreads(threads[1])


SMALL = {
    'scaling': ('--batches 2 --sizes 32 --classes 10 20 --channels 8 --rounds 2', ['RM adds', 'share_fc', '20']),
    'cost': ('--batch 2 --size 32 --classes 10 --depth 18 --rounds 1', ['RM in all', 'baseline step']),
    'regularisers': ('--depth 18 --size 32 --batch 2 --rounds 1', ['Baseline', '+ RM', '+ Manifold Mixup']),
    'loop': ('--rounds 1 --steps 2 --float32', ['baseline', 'rm']),
    'on_gpu': (
        '--device cpu --quick',
        ['| ms per step, float32 |', '| memory |', ' of eager', 'two processes |', 'skipped'],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', SMALL)
def test_benchmark_runs(name, run):
    options, expected = SMALL[name]
    _, printed = run(name, *options.split())
    assert all(text in printed for text in expected) and 'failed' not in printed, printed


@pytest.mark.slow
@pytest.mark.parametrize('processes', [1, 2, 3])
def test_killed_runs_end_like_the_uninterrupted_one(processes, run, tmp_path):
    options = f'--kills 8 --kills-per-run 4 --images 24 --processes {processes} --seed {processes} --keep {tmp_path}'
    code, printed = run('soak', *options.split())
    assert code == 0 and '8 kills in' in printed and '0 runs differ' in printed, printed


@pytest.mark.slow
def test_changed_files_are_read_or_refused():
    script = importlib.util.find_spec('benchmarks.fuzz_readers').origin
    done = subprocess.run([sys.executable, script, '--minutes', '0.1'], capture_output=True, text=True)
    assert done.returncode == 0 and 'refused' in done.stdout, done.stdout + done.stderr


def test_input_speed_compares_the_pipelines(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run('input_speed', '--files', tmp_path)
    assert stop.value.code == 2 and 'there is no JPEG in it' in capsys.readouterr().err
    image = np.random.RandomState(0).randint(0, 256, (80, 100, 3)).astype(np.uint8)
    for name in ('a.JPEG', 'b.jpg'):
        cv2.imwrite(str(tmp_path / name), image)
    _, printed = run('input_speed', '--files', tmp_path, '--rounds', 1)
    names = ('torchvision', "the authors'", 'timm, a worker', 'mmrm, in all', 'RMLoadResizedCrop')
    assert all(name in printed for name in names) and '2 JPEGs, 100 x 80' in printed


def test_random_settings_agree_with_the_slow_reference():
    assert fuzz_mixing.run(steps=600) >= 600


def swapped_labels(scores, history, lam, original=core.mix_labels):
    return original(scores, history, 1 - lam)


def shifted_box(lam, height, width, rng, original=core.sample_box):
    box = original(lam, height, width, rng)
    return core.Box(box.x1, box.y1, max(box.x2 - 1, box.x1), box.y2)


def with_nan(images, history, box, interpolation='nearest'):
    images[: len(history), :, box.y1 : box.y2, box.x1 : box.x2] = torch.nn.functional.interpolate(
        history[: len(images)], (box.y2 - box.y1, box.x2 - box.x1)
    )


@pytest.mark.parametrize(
    'name, wrong', [('mix_labels', swapped_labels), ('sample_box', shifted_box), ('resize_fill', with_nan)]
)
def test_a_wrong_label_box_or_nan_is_found_and_its_episode_named(name, wrong, monkeypatch):
    monkeypatch.setattr(core, name, wrong)
    with pytest.raises(fuzz_mixing.Wrong, match=r'--seed 1 --episode \d+: step \d+'):
        fuzz_mixing.run(steps=3000, seed=1)


def collectives(model):
    """Names and numbers of the collective operations in one step of DDP, as torch's profiler sees them."""
    ddp = MMDistributedDataParallel(model, device_ids=None, broadcast_buffers=False, find_unused_parameters=False)
    wrapper = OptimWrapper(torch.optim.SGD(ddp.parameters(), lr=0.01))
    for _ in range(3):  # DDP sorts its buckets after the first
        ddp.train_step(batch(), wrapper)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ddp.train_step(batch(), wrapper)
    return {event.key: event.count for event in profile.key_averages() if event.key.startswith('c10d::')}


def test_rm_adds_no_collective_to_a_step(one_process):
    plain = classifier(omega=0.0)
    plain.data_preprocessor.batch_augments, plain.data_preprocessor.to_onehot = None, False
    expected = collectives(plain)
    assert expected and sum(expected.values()) > 0
    assert collectives(classifier(omega=0.5)) == expected
