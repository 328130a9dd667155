"""Commands of the pages, run by bash: docs/your_images.md in its order on drawn photographs, the others as they are."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from photographs import SHAPES, draw, write_photographs
from test_pages import AS_THEY_ARE, ROOT

import mmrm

PAGE = ROOT / 'docs' / 'your_images.md'
# What the test adds to a command of the page: minutes, and a log of RM.
SHORTER = {'init': '--method rm --epochs 4 --size 64 --batch 4'}  # RM leaves the last epoch plain
PRINTED = dict(
    init=(r'zero.jpg is empty \(0 bytes\)', 'resnet18 from torchvision://resnet18'),
    check=('images decoded, 0 broken', r'ready\nnext +mmrm train'),
    train=(
        r'(?i)resumed epoch: 1|resum(ed|es|ing) from',
        r'rm_lambda: 0\.[0-9]*[1-9]',
        r'loss_consistency: [0-9.]*[1-9]',
    ),
    test=(r'accuracy/top1: [0-9.]+',),
    predict=(r'0\.jpg.*1\.jpg.*2\.jpg', '|'.join(SHAPES)),
)
PRINTED['predict_onnx.py'] = PRINTED['predict']
WRITTEN = dict(init=('photos.py', 'photos_val.txt'), train=('work_dirs/photos/epoch_4.pth',))
NEEDED = {'onnx': 'onnxruntime', 'timm': 'timm', 'huggingface': 'timm'}


def blocks():
    """The fenced blocks of the page: (language, text)."""
    return re.findall(r'^```(bash|python)\n(.*?)^```', PAGE.read_text(encoding='utf-8'), re.M | re.S)


def steps():
    """One for each command and each block of Python."""
    for language, text in blocks():
        if language == 'python':
            yield language, text
        else:
            yield from (('bash', line.partition('  #')[0].strip()) for line in text.splitlines() if line.strip())


STEPS = list(steps())


def test_page_has_all_commands():
    words = [text.split()[1] for language, text in STEPS if language == 'bash']
    commands = ['init', 'check', 'train', 'train', 'test', 'predict', 'export', 'export', 'predict_onnx.py']
    assert words == commands and 'timm.create_model' in STEPS[-1][1]


@pytest.fixture(scope='module')
def here(tmp_path_factory):
    """A user's folder: photographs, new ones, torchvision's weights in torch's cache (a stand-in), mmrm on the path."""
    folder = tmp_path_factory.mktemp('user')
    write_photographs(folder / 'photos', 8)
    (folder / 'photos' / 'circle' / 'zero.jpg').touch()
    (folder / 'new').mkdir()
    for index, kind in enumerate(SHAPES):
        draw(kind, np.random.default_rng(100 + index)).save(folder / 'new' / f'{index}.jpg')
    for name, target in dict(RUN='work_dirs/photos', holiday='new').items():
        (folder / name).symlink_to(target)
    shutil.copy(folder / 'new' / '0.jpg', folder / 'photo.jpg')
    for name in ('configs', 'docs', 'projects', 'tools'):
        (folder / name).symlink_to(ROOT / name)
    weights = folder / 'torch' / 'hub' / 'checkpoints' / 'resnet18-f37072fd.pth'
    weights.parent.mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18().state_dict(), weights)
    (folder / 'bin').mkdir()
    for name, module in (('mmrm', '-W ignore -m mmrm'), ('python', '')):
        (folder / 'bin' / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (folder / 'bin' / name).chmod(0o755)
    return folder


@pytest.fixture(scope='module')
def environment(here):
    return dict(
        os.environ,
        PATH=f'{here / "bin"}:{os.environ["PATH"]}',
        PYTHONPATH=str(Path(mmrm.__file__).parents[1]),
        TORCH_HOME=str(here / 'torch'),
        HF_HUB_OFFLINE='1',
        MMRM_DEVICE='cpu',
        OMP_NUM_THREADS='1',
        MKL_NUM_THREADS='1',
    )


def skip_if_missing(text: str) -> None:
    for word, module in NEEDED.items():
        if re.search(rf'\b{word}\b', text) and importlib.util.find_spec(module) is None:
            pytest.skip(f'{module} is not installed')


def kill_after_first_epoch(command: str, here: Path, environment: dict) -> None:
    """A crash, so that there is something to resume."""
    with open(here / 'train.log', 'w') as log:
        run = subprocess.Popen(
            ['bash', '-c', command], cwd=here, env=environment, start_new_session=True, stdout=log, stderr=log
        )
    first = here / 'work_dirs' / 'photos' / 'epoch_1.pth'
    while not first.exists():
        assert run.poll() is None, (here / 'train.log').read_text()
        time.sleep(0.2)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def bash(command: str, here: Path, environment: dict) -> str:
    """What a command prints; it must succeed."""
    run = subprocess.run(
        ['bash', '-c', command],
        cwd=here,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    'number', range(len(STEPS)), ids=[f'{i}-{" ".join(t.split()[:3])}' for i, (_, t) in enumerate(STEPS)]
)
def test_a_step_of_the_page(number, here, environment):
    """In order: each needs what the ones before it left."""
    language, text = STEPS[number]
    skip_if_missing(text)
    if language == 'python':
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', text], cwd=here, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert 'torch.Size([1, 3])' in done.stdout
        return
    command = text.split()[1]
    if text == 'mmrm train photos.py':
        kill_after_first_epoch(text, here, environment)
        assert not (here / 'work_dirs' / 'photos' / 'epoch_2.pth').exists()
        return
    printed = bash(f'{text} {SHORTER.get(command, "")}', here, environment)
    for pattern in PRINTED.get(command, ()):
        assert re.search(pattern, printed, re.S), (pattern, printed)
    files = [text.split()[4]] if command == 'export' else WRITTEN.get(command, ())
    assert all((here / name).exists() for name in files)


@pytest.mark.slow
@pytest.mark.parametrize('page', AS_THEY_ARE, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_run_as_they_are(page, here, environment):
    if 'RUN' in str(AS_THEY_ARE[page]) and not (here / 'RUN').exists():
        bash('mmrm init photos --epochs 1 --size 64 --batch 8 && mmrm train photos.py', here, environment)
    for command in AS_THEY_ARE[page]:
        skip_if_missing(command)
        bash(command, here, environment)
