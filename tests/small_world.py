"""A small classifier and its data, made in a moment: two classes of noise in files, and a narrow network with RM."""

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmpretrain.registry import MODELS
from tiny_run import write_run


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
