"""The configs of the other regularisers, their networks shrunk: they train under mmengine's Runner and learn."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from exact_masks import solve_exactly
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmpretrain.structures import DataSample
from tiny_run import write_run

from mmrm.cli.check import check
from mmrm.engine.runner import Runner as LongRunner
from mmrm.models.regularisers import PuzzleMix, bound_augments, stylecutmix
from mmrm.models.regularisers.dropblock import DropBlock

CONFIGS = Path(__file__).parents[2] / 'configs'
QUICK = [
    'dropblock/pyramidnet200_1xb64_cifar10',
    'moex/pyramidnet200_1xb64_cifar10',
    'manifold_mixup/resnet50_8xb64_in1k',
    'feature_cutmix/resnet50_8xb64_in1k',
    'cutmix_moex/resnet50_8xb64_in1k',
]
SLOW = [
    'manifold_mixup/pyramidnet200_1xb64_cifar10',
    'stochastic_depth/pyramidnet200_1xb64_cifar10',
    'dropblock/resnet50_8xb64_in1k',
    'moex/resnet50_8xb64_in1k',
    'mixup/resnet50_8xb64_in1k',
    'stochastic_depth/resnet50_8xb64_in1k',
    'baseline/resnet50_4xb64-steps_in1k',
    'cutmix/resnet50_4xb64-steps_in1k',
]
CLASSES = 4
AUGMENT = 'model.data_preprocessor.batch_augments.augments'


@DATASETS.register_module(force=True)
class ColouredNoise(torch.utils.data.Dataset):
    """Noise around a colour for each of four classes."""

    def __init__(self, number, size):
        self.number, self.size = number, size

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        rng = np.random.RandomState(index)
        label = index % CLASSES
        colour = np.array([[60, 60, 190], [60, 190, 60], [190, 60, 60], [150, 150, 150]][label])
        image = np.clip(colour[:, None, None] + rng.normal(0, 30, (3, self.size, self.size)), 0, 255)
        return dict(inputs=torch.from_numpy(image.astype(np.uint8)), data_samples=DataSample().set_gt_label(label))


def shrunk(name, tmp_path, iterations=15, **options):
    """The Runner of a config with a small network and small data; its hooks, augments and loss are its own."""
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    cfg.merge_from_dict(options)
    model, size = cfg.model, 48 if 'resnet' in name else 16
    if 'resnet' in name:
        model.backbone.update(depth=18, stem_channels=8, base_channels=8)
        model.head.in_channels = 64
    else:
        model.backbone.update(depth=11, alpha=6)
        model.head.in_channels = 88
    model.head.num_classes = model.data_preprocessor.num_classes = CLASSES
    model.head.topk = (1,)
    cfg.optim_wrapper.optimizer.lr = 0.02
    cfg.train_dataloader = dict(
        batch_size=16,
        num_workers=0,
        collate_fn=dict(type='default_collate'),
        sampler=dict(type='DefaultSampler', shuffle=True),
        dataset=dict(type='ColouredNoise', number=16 * iterations, size=size),
    )
    cfg.train_cfg.max_epochs = 1
    cfg.update(
        work_dir=str(tmp_path),
        log_level='ERROR',
        experiment_name=f'{name}_{tmp_path.name}'.replace('/', '_'),
        **{f'{part}_{kind}': None for part in ('val', 'test') for kind in ('dataloader', 'evaluator', 'cfg')},
    )
    cfg.param_scheduler = None
    cfg.default_hooks.update(checkpoint=None, logger=None)
    return Runner.from_cfg(cfg)


@torch.no_grad()
def loss_of_a_fixed_batch(model):
    """Of 32 images as they are: evaluation mode, with norms by the batch, as running means lag in so short a run."""
    samples = [ColouredNoise(1, 48 if model.head.in_channels == 64 else 16)[10_000 + index] for index in range(32)]
    data = dict(
        inputs=torch.stack([sample['inputs'] for sample in samples]),
        data_samples=[sample['data_samples'] for sample in samples],
    )
    for module in model.modules():
        module.train(isinstance(module, torch.nn.BatchNorm2d))
    data = model.data_preprocessor(data, training=False)
    labels = torch.cat([sample.gt_label for sample in data['data_samples']])
    return torch.nn.functional.cross_entropy(model(data['inputs']), labels).item()


def assert_learns(runner):
    model = runner.model
    model.init_weights()
    before = loss_of_a_fixed_batch(model)
    runner.train()
    assert loss_of_a_fixed_batch(model) < 0.8 * before
    for augment in bound_augments(model):  # nothing is left behind
        assert augment._model is None and not getattr(augment, '_handles', None)
    assert not any(isinstance(hook, DropBlock) for module in model.modules() for hook in module._forward_hooks.values())


@pytest.mark.parametrize('name', [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_config_learns(name, tmp_path):
    assert_learns(shrunk(name, tmp_path))


def test_puzzlemix_learns(tmp_path, monkeypatch):
    """Masks of up to 4 x 4 blocks by another solver, so that gco-wrapper is not needed."""
    monkeypatch.setattr(PuzzleMix, 'solve', staticmethod(solve_exactly))
    monkeypatch.setitem(sys.modules, 'gco', None)
    assert_learns(shrunk('puzzlemix/resnet50_8xb64_in1k', tmp_path, **{f'{AUGMENT}.blocks': [2, 4]}))


def test_stylecutmix_learns(tmp_path, monkeypatch):
    """With a style network that is quick; the real one is built in tests/models/test_stylecutmix.py."""
    monkeypatch.delenv('MMRM_DATA', raising=False)
    monkeypatch.chdir(tmp_path)  # paths stay short: mmengine is slow to print long ones
    encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 8, stride=8), torch.nn.ReLU()).requires_grad_(False)
    decoder = torch.nn.ConvTranspose2d(8, 3, 8, stride=8).requires_grad_(False)
    monkeypatch.setattr(stylecutmix, 'build_encoder', lambda weights, name: encoder)
    monkeypatch.setattr(stylecutmix, 'build_decoder', lambda weights, name: decoder)
    folder = tmp_path / 'data' / 'adain'
    folder.mkdir(parents=True)
    for name in ('vgg_normalised.pth', 'decoder.pth'):
        torch.save({}, folder / name)
    torch.save(torch.rand(CLASSES, CLASSES), folder / 'styleDistanceMatrix10.pt')
    name = 'stylecutmix/pyramidnet200_1xb64_cifar10'
    assert_learns(shrunk(name, tmp_path / 'run', **{f'{AUGMENT}.size': 16}))


def test_mmrms_runner_binds_whatever_hooks_a_config_has(tmp_path):
    mixing = "model['data_preprocessor']['batch_augments'] = dict(augments=dict(type='MoEx', layer='layer1'))\n"
    cfg = Config.fromfile(write_run(tmp_path, epochs=1, images=4, more=mixing))
    assert 'BindAugmentsHook' not in str(cfg.custom_hooks)
    cfg.update(work_dir=str(tmp_path / 'run'), log_level='ERROR')
    runner = LongRunner.from_cfg(cfg)
    runner.train()
    assert runner.iter == 2


@pytest.mark.parametrize(
    'folder, options, problem',
    [
        ('manifold_mixup', {f'{AUGMENT}.layers': ['input', 'stem']}, "layer 'stem' does not exist"),
        ('dropblock', {'custom_hooks.4.modules': ['stage*']}, "matches 'stage"),
        ('moex', {}, None),
    ],
)
def test_a_config_is_checked_without_training(folder, options, problem):
    options, config = {**options, 'model.backbone.depth': 11}, CONFIGS / folder / 'pyramidnet200_1xb64_cifar10.py'
    found = [text for text in check(config, options).problems if text.startswith('model')]
    assert (problem in found[0]) if problem else not found
