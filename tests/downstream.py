"""What the tests of the downstream cells share: tiny pretrainings and cells on the generated world."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS, init_default_scope
from world import make_world

import mmrm
from mmrm.cli.preflight import set_loader_defaults
from mmrm.engine.runner import Runner

CONFIGS = mmrm.utils.paths.shipped() / 'configs'
PRETRAINING = dict(r50='resnet50_8xb64_in1k', pvt='pvtv2-b1_8xb64_in1k')

# A shipped ImageNet config on the world's eight classes: two iterations an epoch and a validation at the end.
SMALL_PRETRAINING = """
_base_ = [{base!r}]
model = dict(data_preprocessor=dict(num_classes=8), head=dict(num_classes=8, topk=(1, )))
pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
dataset = dict(_delete_=True, type='CustomDataset', data_root={data!r}, pipeline=pipeline)
train_dataloader = dict(batch_size=8, num_workers=0, dataset=dict(dataset, data_prefix='train'))
val_dataloader = dict(batch_size=8, num_workers=0, dataset=dict(dataset, data_prefix='val'))
test_dataloader = dict(batch_size=8, num_workers=0, dataset=dict(dataset, data_prefix='val'))
val_evaluator = dict(topk=(1, ))
test_evaluator = dict(topk=(1, ))
train_cfg = dict(max_epochs={epochs}, val_interval={epochs})
optim_wrapper = dict(optimizer=dict(lr={lr}))
default_hooks = dict(checkpoint=dict(interval={epochs}))
"""


def small_world(root: Path) -> Path:
    """A world of a few images."""
    return make_world(root, classification=(16, 8), scenes=(4, 2), image_size=32, scene_size=(96, 64))


def write_pretraining(network: str, world: Path, file: Path, epochs: int = 2) -> Path:
    """Write the config of a small pretraining with RM, 'r50' or 'pvt'."""
    base = str(CONFIGS / 'rm' / f'{PRETRAINING[network]}.py')
    lr = dict(r50=0.002, pvt=1e-3)[network]
    file.write_text(SMALL_PRETRAINING.format(base=base, data=str(world / 'classification'), lr=lr, epochs=epochs))
    return file


def pretrain(network: str, world: Path, work_dir: Path) -> Path:
    """Run a small pretraining with RM; returns the run's folder."""
    config = Config.fromfile(write_pretraining(network, world, work_dir / 'small.py'))
    runner_of(config, work_dir).train()
    return work_dir


def runner_of(config: Config, work_dir: Path) -> Runner:
    """The runner of a config, on the CPU."""
    config.work_dir = str(work_dir)
    for part in ('train', 'val', 'test'):
        config[f'{part}_dataloader'].num_workers = 0
    set_loader_defaults(config, 'cpu')
    return Runner.from_cfg(config)


def cell(file: Path, world: Path, weights: Path, long: int = 96) -> Config:
    """A detector's or segmentor's config on the world: its own network, recipe and data set class, small images."""
    config = Config.fromfile(file)
    config.model.init_cfg.checkpoint = str(weights)
    coco = config.train_dataloader.dataset.type == 'CocoDataset'
    for part in ('train', 'val', 'test'):
        dataset = config[f'{part}_dataloader'].dataset
        dataset.data_root = str(world / ('coco' if coco else 'ade'))
        for transform in dataset.pipeline:
            if transform['type'] in ('Resize', 'RandomResize'):
                transform.update(scale=(long, long))
            elif transform['type'] == 'RandomCrop':
                transform.update(crop_size=(long, long))
    if coco:
        for evaluator in (config.val_evaluator, config.test_evaluator):
            evaluator.ann_file = str(world / 'coco/annotations/instances_val2017.json')
    else:
        config.model.data_preprocessor.size = (long, long)
    return config


def build(config: Config) -> torch.nn.Module:
    """The model of a config, not initialised."""
    init_default_scope(config.default_scope)
    return MODELS.build(config.model)


@HOOKS.register_module(force=True)
class RememberBackbone(Hook):
    """Keeps the backbone as it is just before the first training iteration, in memory and in ``first.pth``."""

    tensors = None

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if self.tensors is None:
            self.tensors = {key: value.clone() for key, value in runner.model.backbone.state_dict().items()}
            torch.save(self.tensors, Path(runner.work_dir) / 'first.pth')


def train_and_validate(config: Config, work_dir: Path) -> tuple:
    """Train a cell for one iteration and validate it.

    Returns:
        tuple[Runner, dict]: The runner, and the backbone just before the iteration.
    """
    config.train_cfg = dict(type='IterBasedTrainLoop', max_iters=1, val_interval=1)
    config.train_dataloader.sampler = dict(type='InfiniteSampler', shuffle=True)
    config.param_scheduler = [schedule for schedule in config.param_scheduler if not schedule.by_epoch]
    config.default_hooks.checkpoint.update(by_epoch=False, interval=1)
    config.log_processor.by_epoch = False
    config.custom_hooks = [dict(type='RememberBackbone')]
    runner = runner_of(config, work_dir)
    runner.train()
    memory = next(hook for hook in runner.hooks if isinstance(hook, RememberBackbone))
    return runner, memory.tensors
