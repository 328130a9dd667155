"""A finished run of a classifier, made in a moment: checkpoint, log and config as mmengine writes them."""

from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmpretrain.registry import MODELS
from PIL import Image
from run_logs import write_session

CLASSES = ('otter', 'heron', 'pike')
BACKBONES = {
    'narrow': (dict(type='ResNet', depth=18, stem_channels=8, base_channels=8), 64),
    'short': (
        dict(type='ResNet', depth=18, num_stages=1, strides=[1], dilations=[1], out_indices=[0], base_channels=8),
        8,
    ),
    'resnet18': (dict(type='ResNet', depth=18), 512),
}


def settings(backbone='narrow', to_rgb=True):
    config, channels = BACKBONES[backbone]
    steps = [
        dict(type='LoadImageFromFile'),
        dict(type='ResizeEdge', scale=72, edge='short', backend='pillow', interpolation='bicubic'),
        dict(type='CenterCrop', crop_size=64),
        dict(type='PackInputs'),
    ]
    data = dict(batch_size=4, dataset=dict(type='CustomDataset', data_root='data/river', pipeline=steps))
    return dict(
        default_scope='mmpretrain',
        data_preprocessor=dict(
            type='RMDataPreprocessor',
            num_classes=3,
            mean=[120.0, 110.0, 100.0],
            std=[60.0, 50.0, 40.0],
            to_rgb=to_rgb,
            batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5)),
        ),
        model=dict(
            type='ImageClassifier',
            backbone=config,
            neck=None,
            head=dict(type='RMConsistencyHead', num_classes=3, in_channels=channels, omega=0.5),
        ),
        train_dataloader=data,
        test_dataloader=data,
        train_cfg=dict(by_epoch=True, max_epochs=3),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
    )


def write_run(folder: Path, backbone='narrow', accuracies=(50.0, 80.0, 75.0), to_rgb=True) -> Path:
    """A run of three epochs below ``folder``, its second the best."""
    cfg = Config(settings(backbone, to_rgb))
    init_default_scope('mmpretrain')
    torch.manual_seed(3)
    model = MODELS.build({**cfg.model, 'data_preprocessor': cfg.data_preprocessor})
    with torch.no_grad():
        for name, tensor in model.named_buffers():
            if name.endswith('running_var'):
                tensor.uniform_(0.5, 1.5)
        model.head.fc.weight.normal_(0, 0.5)
    records = []
    for epoch, value in enumerate(accuracies, 1):
        records.append(dict(lr=0.1, loss=1.0, epoch=epoch, iter=10 * epoch, step=10 * epoch))
        records.append({'accuracy/top1': value, 'accuracy/top5': 100.0, 'step': epoch})
    write_session(folder, '20260101_000000', records, cfg.pretty_text)
    meta = dict(epoch=2, iter=20, cfg=cfg.pretty_text, dataset_meta=dict(classes=CLASSES))
    best = folder / 'best_accuracy_top1_epoch_2.pth'
    torch.save(dict(meta=meta, state_dict=model.state_dict()), best)
    return folder


def write_images(folder: Path, number: int = 3) -> list:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    files = []
    for index in range(number):
        small = Image.fromarray(rng.integers(0, 256, (6, 9, 3)).astype('uint8'))
        files.append(folder / f'{index}.png')
        small.resize((120, 80), Image.BILINEAR).save(files[-1])
    return files


def call_main(main, capsys, *argv):
    """Call a command: its exit code, stdout and stderr."""
    code = 0
    try:
        main([str(each) for each in argv])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    return code, told.out, told.err
