"""A classification run of seconds: two classes of noise, one darker than the other, and a narrow ResNet with RM."""

from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmpretrain.registry import MODELS
from PIL import Image

CONFIG = """
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet', depth=18, stem_channels=8, base_channels=8),
    neck=None,
    head=dict(type='RMConsistencyHead', num_classes=2, in_channels=64, omega=0.5, topk=(1, )),
    data_preprocessor=dict(
        type='RMDataPreprocessor', num_classes=2, mean=[127.5] * 3, std=[50.] * 3,
        batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5))))
dataset = dict(
    type='CustomDataset', data_root={data_root!r},
    pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')])
train_dataloader = dict(
    batch_size=2, num_workers=0, dataset=dataset, sampler=dict(type='DefaultSampler', shuffle=True),
    worker_init_fn=dict(type='rm_worker_init'))
val_dataloader = dict(batch_size=4, num_workers=0, dataset=dataset, sampler=dict(type='DefaultSampler', shuffle=False))
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator
train_cfg = dict(by_epoch=True, max_epochs={epochs}, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
param_scheduler = dict(type='ConstantLR', factor=1.0)
auto_scale_lr = dict(base_batch_size=4)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1, save_best='accuracy/top1', rule='greater'))
custom_hooks = [dict(type='RandomStateHook'), dict(type='ResetHistoryHook')]
log_processor = dict(window_size=1)
randomness = dict(seed=0)
"""
# What a config in pure Python names by its class, and where that is.
CLASSES = dict(
    RecursiveMix='mmrm',
    RMConsistencyHead='mmrm',
    RMDataPreprocessor='mmrm',
    ResetHistoryHook='mmrm.engine.hooks',
    RandomStateHook='mmrm.engine.hooks',
    ImageClassifier='mmpretrain.models',
    CheckpointHook='mmengine.hooks',
    SGD='torch.optim',
)
# Lines that put the preprocessor where mmpretrain's own configs have it.
BESIDE = "data_preprocessor = model.pop('data_preprocessor')\n"


def write_images(folder: Path, images: int, classes: int = 2, size: int = 32) -> Path:
    """Noise, the brighter the higher its class, in ``folder/class0`` and so on."""
    rng = np.random.default_rng(0)
    for index in range(images):
        path = folder / f'class{index % classes}' / f'{index}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 156, (size, size, 3)) + 100 * (index % classes) // (classes - 1)
        Image.fromarray(pixels.astype('uint8')).save(path)
    return folder


def write_run(folder: Path, epochs: int = 2, images: int = 12, more: str = '') -> Path:
    """Write the images to ``folder/data`` and the config, with ``more`` lines at its end, to ``folder/tiny.py``."""
    write_images(folder / 'data', images)
    config = folder / 'tiny.py'
    config.write_text(CONFIG.format(data_root=str(folder / 'data'), epochs=epochs) + more)
    return config


def write_trained(folder, seed=0, more=''):
    """Write data, config and a checkpoint of random weights below ``folder``; returns (config, checkpoint)."""
    config = write_run(folder, images=8, more=more)
    init_default_scope('mmpretrain')
    torch.manual_seed(seed)
    model = MODELS.build(Config.fromfile(config).model)
    checkpoint = folder / f'seed{seed}.pth'
    torch.save(
        dict(meta=dict(epoch=7, dataset_meta=dict(classes=('class0', 'class1'))), state_dict=model.state_dict()),
        checkpoint,
    )
    return config, checkpoint


def in_pure_python(config: Path) -> Path:
    """Rewrite a config of :func:`write_run` as one of mmengine's newer kind, which names classes, not strings."""
    text = config.read_text().replace(
        "custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)\n", ''
    )
    for name, module in CLASSES.items():
        text = f'from {module} import {name}\n' + text.replace(f"type='{name}'", f'type={name}')
    config.write_text(text)
    return config
