"""The examples, each on a few tiny images."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from tiny_run import write_images

from mmrm.core import Consistency
from mmrm.utils.paths import in_checkout, shipped

pytestmark = pytest.mark.skipif(not in_checkout(), reason='needs the source tree')
FOLDER = Path(shipped()) / 'examples'
EXAMPLES = ('plain_loop_timm', 'timm_task', 'torchvision_recipe', 'lightning_module', 'huggingface_trainer')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data')
    for split in ('train', 'val'):
        write_images(folder / split, 24, classes=3, size=40)
    return folder


def example(name):
    return runpy.run_path(FOLDER / f'{name}.py')['main']


@pytest.fixture
def mixed(monkeypatch):
    """The shares and losses of the batches that a run mixes."""
    seen, forward = [], Consistency.forward

    def spy(self, mix, feature_map, logits):
        loss = forward(self, mix, feature_map, logits)
        seen.append((mix.lam, float(loss.detach())))
        return loss

    monkeypatch.setattr(Consistency, 'forward', spy)
    return seen


def shows_rm(mixed, epochs, steps):
    """Every epoch starts unmixed; most of the other batches are mixed, and then there is a consistency loss."""
    assert len(mixed) == epochs * steps
    assert all(mixed[epoch * steps][0] == 0 for epoch in range(epochs))
    shares = [lam for lam, _ in mixed if lam > 0]
    assert len(shares) >= epochs * (steps - 1) // 2
    assert all((loss > 0) == (lam > 0) for lam, loss in mixed)


TIMM = 'test_resnet'
NETWORK = ['--model', 'shufflenet_v2_x0_5', '--layer', 'conv5']  # the smallest of torchvision's
COMMON = ['--epochs', '2', '--batch-size', '4', '--size', '64']


def test_examples_are_short_and_each_has_a_test():
    files = sorted(FOLDER.glob('*.py'))
    assert [file.stem for file in files] == sorted(EXAMPLES)
    assert all(len(file.read_text().splitlines()) < 100 for file in files)


def test_plain_loop_timm(data, tmp_path, mixed):
    timm = pytest.importorskip('timm')
    out = tmp_path / 'model.pth'
    example('plain_loop_timm')([str(data), '--model', TIMM, '--workers', '0', '--out', str(out), *COMMON])
    shows_rm(mixed, epochs=2, steps=6)
    timm.create_model(TIMM, num_classes=3).load_state_dict(torch.load(out))


def test_timm_task_resumes_and_is_off_at_the_end(data, tmp_path, mixed, capsys):
    timm = pytest.importorskip('timm')
    arguments = [str(data), '--model', TIMM, '--workers', '0', '--out', str(tmp_path), *COMMON]
    run = example('timm_task')
    run(arguments)
    shows_rm(mixed, epochs=2, steps=6)
    timm.create_model(TIMM, num_classes=3, checkpoint_path=str(tmp_path / 'model_best.pth.tar'))
    state = torch.load(tmp_path / 'last.pth.tar')
    assert set(state['task_state']['consistency']) == {'fc_roi.weight', 'fc_roi.bias'} and 'state_dict_ema' in state
    last = ['--epochs', '3', '--off-epochs', '1', '--bce', '--resume', str(tmp_path / 'last.pth.tar')]
    run([*arguments, *last])
    assert len(mixed) == 18 and all(lam == 0 for lam, _ in mixed[12:])
    printed = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in printed if line.startswith('epoch')] == ['epoch 1:', 'epoch 2:', 'epoch 3:']


def test_torchvision_recipe_resumes(data, tmp_path, mixed, capsys):
    run, arguments = example('torchvision_recipe'), [str(data), *NETWORK, '--workers', '0']
    run([*arguments, *COMMON, '--out', str(tmp_path)])
    shows_rm(mixed, epochs=2, steps=6)
    torchvision.models.shufflenet_v2_x0_5(num_classes=3).load_state_dict(torch.load(tmp_path / 'model.pth'))
    assert 'fc_roi' in str(torch.load(tmp_path / 'last.pth')['model'].keys())
    run([*arguments, *COMMON, '--epochs', '3', '--out', str(tmp_path)])
    shows_rm(mixed, epochs=3, steps=6)
    assert [line.split(':')[0] for line in capsys.readouterr().out.splitlines()] == ['epoch 1', 'epoch 2', 'epoch 3']


@pytest.mark.slow
def test_torchvision_recipe_in_two_processes(data, tmp_path, free_port):
    launch = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node', '2', '--master_port', str(free_port)]
    script = [str(FOLDER / 'torchvision_recipe.py'), str(data), *NETWORK, '--workers', '0', *COMMON]
    command = [*launch, *script, '--epochs', '1', '--out', str(tmp_path)]
    paths = os.pathsep.join([str(shipped()), os.environ.get('PYTHONPATH', '')])
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': paths})
    assert run.returncode == 0, run.stderr
    assert run.stdout.count('epoch 1: loss') == 1
    torchvision.models.shufflenet_v2_x0_5(num_classes=3).load_state_dict(torch.load(tmp_path / 'model.pth'))


def test_lightning_module(data, tmp_path, mixed):
    pytest.importorskip('lightning')
    out = tmp_path / 'model.pth'
    settings = dict(accelerator='cpu', enable_progress_bar=False, default_root_dir=tmp_path, logger=False)
    arguments = [str(data), *NETWORK, '--workers', '0', '--out', str(out), *COMMON]
    trainer = example('lightning_module')(arguments, num_sanity_val_steps=0, **settings)
    shows_rm(mixed, epochs=2, steps=6)
    assert 0 <= trainer.callback_metrics['val/accuracy'] <= 1 and 'train/consistency' in trainer.callback_metrics
    torchvision.models.shufflenet_v2_x0_5(num_classes=3).load_state_dict(torch.load(out))


def test_huggingface_trainer(data, tmp_path, mixed, monkeypatch):
    transformers = pytest.importorskip('transformers')
    pytest.importorskip('accelerate')
    # Here the folder tests/datasets would pass for Hugging Face's package of that name.
    monkeypatch.setattr('transformers.trainer.is_datasets_available', lambda: False)
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=64)
    start, out = tmp_path / 'start', tmp_path / 'out'
    transformers.ViTForImageClassification(transformers.ViTConfig(**size)).save_pretrained(start)
    arguments = [str(data), '--model', str(start), '--layer', 'vit', '--out', str(out), *COMMON]
    settings = dict(use_cpu=True, disable_tqdm=True, gradient_accumulation_steps=2)
    trainer = example('huggingface_trainer')(arguments, **settings)
    assert not trainer.model_accepts_loss_kwargs  # else it would sum the accumulated losses, not average them
    assert [log['epoch'] for log in trainer.state.log_history if 'eval_accuracy' in log] == [1, 2]
    transformers.AutoModelForImageClassification.from_pretrained(out / 'model')
    shows_rm(mixed, epochs=2, steps=6)
