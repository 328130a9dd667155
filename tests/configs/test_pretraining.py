"""Every shipped classification config: what it says, and an epoch of it on tiny data in the data sets' real layouts."""

import functools
import pickle
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from mmpretrain.datasets.categories import IMAGENET_CATEGORIES

from mmrm.datasets import RMCIFAR10, RMCIFAR100, cifar
from mmrm.utils.errors import UserValueError
from projects.cifar10 import run as experiment
from tools import get_cifar10 as fetch_cifar10

CONFIGS = Path(__file__).parents[2] / 'configs'
# Parameters without the RoI layer, and what the RoI layer adds.
RECIPES = {
    'resnet18_2xb64_cifar100': (11_220_132, 51_300),
    'resnet34_2xb64_cifar100': (21_328_292, 51_300),
    'densenet121_2xb64_cifar100': (7_048_548, 102_500),
    'densenet161_2xb64_cifar100': (26_681_188, 220_900),
    'pyramidnet164_2xb64_cifar100': (27_319_071, 114_500),
    'pyramidnet200_1xb64_cifar10': (26_752_702, 10_250),
    'resnet18_2xb64_cifar10': (11_173_962, 5_130),
    'resnet18-w16_2xb64_cifar10': (701_466, 1_290),
    'resnet50_8xb64_in1k': (25_557_032, 2_049_000),
    'pvtv2-b1_8xb64_in1k': (14_009_000, 513_000),
}
RECIPES[experiment.CONFIG] = (701_466, 1_290)  # of the experiment on two cores
STEPS = 'resnet50_4xb64-steps_in1k'  # the recipe of the papers that some published numbers come from
PYRAMIDNET, RESNET = 'pyramidnet200_1xb64_cifar10', 'resnet50_8xb64_in1k'
TRAINED = [f'{folder}/{name}' for folder in ('baseline', 'mixup', 'cutmix', 'rm') for name in RECIPES]
TRAINED += [f'{folder}/{name}' for folder in ('cutout', 'stochastic_depth') for name in (PYRAMIDNET, RESNET)]
TRAINED += [f'label_smoothing/{PYRAMIDNET}']
# The regularisers of mmrm.models.regularisers: trained in test_regularisers.py.
LAYERS = [f'{folder}/{name}' for folder in ('dropblock', 'manifold_mixup', 'moex') for name in (PYRAMIDNET, RESNET)]
LAYERS += [f'{folder}/{RESNET}' for folder in ('feature_cutmix', 'cutmix_moex', 'puzzlemix')]
ALL = [*TRAINED, *LAYERS, f'stylecutmix/{PYRAMIDNET}', f'baseline/{STEPS}', f'cutmix/{STEPS}']
ALL += ['resize_fill/pyramidnet164_2xb64_cifar100']  # of the table of components
RM_HEADS = ('rm', 'resize_fill')  # folders whose configs have RM's head
# Each network with RM, each other regulariser once; -m slow trains all cells.
QUICK = [
    'rm/resnet18_2xb64_cifar100',
    'rm/densenet121_2xb64_cifar100',
    'rm/pyramidnet200_1xb64_cifar10',
    'rm/resnet50_8xb64_in1k',
    'rm/pvtv2-b1_8xb64_in1k',
    f'rm/{experiment.CONFIG}',
    'baseline/resnet18-w16_2xb64_cifar10',
    'mixup/resnet18-w16_2xb64_cifar10',
    'cutmix/resnet18-w16_2xb64_cifar10',
    'label_smoothing/pyramidnet200_1xb64_cifar10',
    'cutout/pyramidnet200_1xb64_cifar10',
    'stochastic_depth/pyramidnet200_1xb64_cifar10',
]


@functools.lru_cache(None)
def read(name):
    return Config.fromfile(CONFIGS / f'{name}.py')


def flat(node, prefix=''):
    """A config as ``{'a.b.0.c': value}``."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, (list, tuple)) else ()
    if not items and not isinstance(node, (dict, list, tuple)):
        return {prefix: node}
    found = {}
    for key, value in items:
        found.update(flat(value, f'{prefix}.{key}' if prefix else str(key)))
    return found or {prefix: node}


# ------------------------------------------------------------------------------------------------------ what they say
def test_the_shipped_classification_configs_are_the_tables_cells():
    found = {
        f'{path.parent.name}/{path.stem}'
        for path in CONFIGS.glob('*/*.py')
        if re.search(r'_\dxb64(-steps)?_(cifar10|cifar100|in1k)(-\d+)?$', path.stem)
    }
    assert found == set(ALL)


def settings_of(folder, recipe):
    """What a regulariser adds to the baseline; in the tables' networks it is published, but for what is said."""
    imagenet = recipe.endswith('in1k')
    smoothing = dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')  # chosen here
    blocks, stages = (
        (7, ('layer[34].*.bn[123]', 'layer[34]')) if imagenet else (4, ('layer[23].*.bn[234]', 'layer[23]'))
    )
    dropblock = dict(
        type='DropBlockHook', block_size=blocks, keep_prob=0.9, modules=[stages[0], f'{stages[1]}.*.downsample']
    )
    model = dict(
        label_smoothing={'head.loss': smoothing},
        stochastic_depth={'backbone.drop_path_rate': 0.25},
        rm={'neck': None, 'head.type': 'RMConsistencyHead', 'head.omega': 0.5 if imagenet else 0.1},
        resize_fill={'neck': None, 'head.type': 'RMConsistencyHead', 'head.omega': 0.0},
    ).get(folder, {})
    mixing = {
        'rm': dict(type='RecursiveMix', alpha=0.5),
        'resize_fill': dict(type='ResizeFillMix', alpha=1.0),
        'mixup': dict(type='Mixup', alpha=0.2 if 'pvt' in recipe else 1.0),  # PVTv2-B1's is chosen here
        'cutmix': dict(type='CutMix', alpha=1.0),
        'manifold_mixup': dict(type='ManifoldMixup', alpha=1.0, layers=['input', 'layer1', 'layer2']),
        'feature_cutmix': dict(
            type='FeatureCutMix', alpha=1.0, layers=['input', 'maxpool', 'layer1', 'layer2', 'layer3']
        ),
        'moex': dict(type='MoEx', **(dict(lam=0.9, layer='maxpool') if imagenet else dict(lam=0.5, layer='bn1'))),
        'cutmix_moex': dict(type='CutMixMoEx', alpha=1.0, lam=0.9, moex_prob=0.25, layer='maxpool'),
        'puzzlemix': dict(type='PuzzleMix', alpha=1.0),
        'stylecutmix': dict(type='StyleCutMix', r=0.7, delta=1.0),
    }.get(folder)
    if mixing:
        model['data_preprocessor.batch_augments.augments'] = mixing
    if folder in RM_HEADS:
        model['data_preprocessor.type'] = 'RMDataPreprocessor'
    if not imagenet and folder in ('cutmix', 'moex', 'stylecutmix', 'resize_fill'):
        model['data_preprocessor.batch_augments.probs'] = 0.25 if folder == 'moex' else 0.5
    hooks = {'custom_hooks.4': dropblock} if folder == 'dropblock' else {}
    if folder == 'rm' and recipe == experiment.CONFIG:
        hooks['custom_hooks.5.type'] = 'LogConsistencyHook'
    settings = {**{f'model.{key}': value for key, value in model.items()}, **hooks}
    return flat(settings) if settings else {}


@pytest.mark.parametrize('name', [name for name in ALL if not name.startswith('baseline/')])
def test_siblings_differ_in_the_settings_of_the_regulariser(name):
    folder, _, recipe = name.partition('/')
    base, own = read(f'baseline/{recipe}').to_dict(), read(name).to_dict()
    if folder == 'cutout':
        cifar = dict(type='Cutout', shape=16, pad_val=(125, 123, 114), prob=1.0)
        hole = dict(type='RMCutout', shape=112) if recipe.endswith('in1k') else cifar
        base['train_pipeline'].insert(-1, hole)
        base['train_dataloader']['dataset']['pipeline'] = base['train_pipeline']
    base, own = flat(base), flat(own)
    files = 'model.data_preprocessor.batch_augments.augments.' + r'(encoder|decoder|distances)'
    differ = {key for key in {**base, **own} if base.get(key, 'none') != own.get(key, 'none')}
    wanted = {key: value for key, value in settings_of(folder, recipe).items() if base.get(key, 'none') != value}
    differ -= {key for key in differ if re.fullmatch(files, key)}
    differ -= {'model.neck.type'} if folder in RM_HEADS else set()
    assert {key: own.get(key) for key in differ} == wanted


def test_the_authors_own_cifar10_run_differs_in_processes_and_in_what_is_logged():
    """Two processes of 32 that draw the same boxes; the recipe is that of the table's cell."""
    base, own = (flat(read(f'rm/pyramidnet200_{batch}_cifar10').to_dict()) for batch in ('1xb64', '2xb32'))
    differ = {key: own[key] for key in own if own[key] != base.get(key, 'none')}
    assert differ == {
        'train_dataloader.batch_size': 32,
        'randomness.diff_rank_seed': False,
        'default_hooks.logger.interval': 10,
        'custom_hooks.4.type': 'ChannelsLastHook',
        'custom_hooks.5.type': 'LogConsistencyHook',
    }


@pytest.mark.parametrize('name', [*(name for name in RECIPES if name != experiment.CONFIG), STEPS])
def test_the_baselines_follow_the_published_recipe(name):
    """The other configs are siblings of these."""
    cfg = read(f'baseline/{name}')
    gpus, batch, data = re.search(r'_(\d)xb(\d+)(?:-steps)?_(\w+)$', name).groups()
    optimizer, model = cfg.optim_wrapper.optimizer, cfg.model
    kind = 'pvt' if 'pvt' in name else 'steps' if '-steps' in name else ''
    kind = kind or ('in1k' if data == 'in1k' else '300' if 'pyramidnet200' in name else '200')
    wanted = {
        '200': ('SGD', 0.1, 5e-4, 0.9, None, 200, 'RMCosineLR'),
        '300': ('SGD', 0.25, 1e-4, 0.9, True, 300, 'RMStepLR'),
        'in1k': ('SGD', 0.2, 1e-4, 0.9, None, 300, 'RMCosineLR'),
        'steps': ('SGD', 0.1, 1e-4, 0.9, True, 300, 'RMStepLR'),
        'pvt': ('AdamW', 5e-4, 5e-2, None, None, 300, 'RMCosineLR'),
    }[kind]
    found = [optimizer.get(key) for key in ('type', 'lr', 'weight_decay', 'momentum', 'nesterov')]
    assert wanted == (*found, cfg.train_cfg.max_epochs, cfg.param_scheduler.type)
    assert cfg.train_dataloader.batch_size == int(batch)
    assert cfg.auto_scale_lr == dict(base_batch_size=int(gpus) * int(batch))
    classes = dict(cifar10=10, cifar100=100, in1k=1000)[data]
    assert model.head.num_classes == model.data_preprocessor.num_classes == classes
    mean, std = (
        ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
        if data != 'in1k'
        else ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    assert np.allclose(np.array(model.data_preprocessor.mean) / 255, mean)
    assert np.allclose(np.array(model.data_preprocessor.std) / 255, std)
    cifar, imagenet = ['RMCropFlip', 'PackInputs'], ['RMLoadResizedCrop', 'RandomFlip', 'RMColors', 'RMPackInputs']
    pvt = ['RMLoadResizedCrop', 'RandomFlip', 'RandomErasing', 'PackInputs']
    types = [step.type for step in cfg.train_dataloader.dataset.pipeline]
    assert types == (pvt if kind == 'pvt' else imagenet if data == 'in1k' else cifar)
    assert not model.data_preprocessor.get('batch_augments')
    assert model.backbone.get('drop_path_rate', 0.0) == (0.1 if kind == 'pvt' else 0.0)


def test_mmrm_data_moves_all_data_folders(monkeypatch):
    monkeypatch.setenv('MMRM_DATA', '/elsewhere')
    loaded = [Config.fromfile(CONFIGS / 'baseline' / f'{name}.py') for name in RECIPES]
    roots = {cfg[f'{part}_dataloader'].dataset.data_root for cfg in loaded for part in ('train', 'val', 'test')}
    assert roots == {'/elsewhere/cifar10', '/elsewhere/cifar100', '/elsewhere/imagenet'}


# -------------------------------------------------------------------------------------------------------- one epoch
@pytest.fixture(scope='session')
def data(tmp_path_factory):
    """CIFAR-10, CIFAR-100 and ImageNet, tiny but in their real layouts: batch files, and a folder for every class."""
    root, rng = tmp_path_factory.mktemp('data'), np.random.RandomState(0)

    def rows(number):
        return rng.randint(0, 256, (number, 3072), dtype=np.uint8)

    folder = root / 'cifar10' / RMCIFAR10.base_folder
    folder.mkdir(parents=True)
    names = [f'data_batch_{number}' for number in range(1, 6)] + ['test_batch']
    fetch_cifar10.write_batches(folder, {name: rows(2) for name in names}, {name: [3, 9] for name in names})
    folder = root / 'cifar100' / RMCIFAR100.base_folder
    folder.mkdir(parents=True)
    for name in ('train', 'test'):
        (folder / name).write_bytes(pickle.dumps(dict(data=rows(4), fine_labels=[3, 99, 0, 50])))
    jpeg = cv2.imencode('.jpg', rng.randint(0, 256, (48, 64, 3), dtype=np.uint8))[1].tobytes()
    for split in ('train', 'val'):
        for number in range(len(IMAGENET_CATEGORIES)):
            path = root / 'imagenet' / split / f'n{number:08d}'
            path.mkdir(parents=True)
            (path / f'ILSVRC2012_{split}_{number:08d}.JPEG').write_bytes(jpeg)
    return root


@pytest.fixture
def known(data, monkeypatch):
    """The tiny CIFAR files' checksums are known ones, and the configs look for data here."""
    monkeypatch.setenv('MMRM_DATA', str(data))
    for kind, name in ((RMCIFAR10, 'cifar10'), (RMCIFAR100, 'cifar100')):
        folder = data / name / kind.base_folder
        files = [file for file, _ in kind.train_list + kind.test_list]
        monkeypatch.setattr(kind, 'rewritten', {file: cifar.calculate_md5(str(folder / file)) for file in files})


class Notes(Hook):
    def __init__(self):
        self.losses, self.metrics, self.start = [], [], None

    def before_train(self, runner):
        self.start = {name: value.clone() for name, value in runner.model.head.named_parameters()}

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.losses.append({key: value.item() for key, value in outputs.items()})

    def after_val_epoch(self, runner, metrics=None):
        self.metrics.append(metrics)


def tiny(name, tmp_path, size=64, **options):
    """The runner of a config cut down to one epoch of one batch of two, and its notes. CIFAR keeps its 32 pixels.

    RecursiveMix has two batches, as it mixes from the second on.
    """
    cfg = Config.fromfile(CONFIGS / f'{name}.py')  # looks for data where MMRM_DATA is now
    cfg.merge_from_dict(options)
    for part in ('train', 'val'):
        loader = cfg[f'{part}_dataloader']
        loader.update(batch_size=2, num_workers=0, persistent_workers=False, pin_memory=False)
        if 'per_class' in loader.dataset:
            loader.dataset.per_class = (0, 2)
        loader.dataset.indices = 4 if part == 'train' and name.startswith('rm/') else 2
        for step in loader.dataset.pipeline:
            if step.type in ('RMLoadResizedCrop', 'ResizeEdge'):
                step.scale = size
            elif step.type == 'CenterCrop':
                step.crop_size = size
            elif 'Cutout' in step.type and step.shape > size:
                step.shape = size // 2
    if cfg.model.backbone.type == 'PyramidNetCIFAR':
        cfg.model.backbone.depth = 20  # its width grows to the same; the parameters are counted below
    cfg.train_cfg.max_epochs = 1
    cfg.default_hooks.checkpoint = None
    cfg.default_hooks.logger = None
    cfg.update(work_dir=str(tmp_path), log_level='ERROR', experiment_name=f'{name}_{tmp_path.name}'.replace('/', '_'))
    runner, notes = Runner.from_cfg(cfg), Notes()
    runner.register_hook(notes)
    return runner, notes


def test_colours_that_the_preprocessor_would_not_apply_stop_a_run(known, tmp_path):
    stock = {'model.data_preprocessor.type': 'ClsDataPreprocessor', 'model.backbone.depth': 18}
    with pytest.raises(UserValueError, match=r'RMColors only draws .* is ClsDataPreprocessor'):
        tiny('baseline/resnet50_8xb64_in1k', tmp_path, **stock)[0].train()


@pytest.mark.parametrize('name', RECIPES)
def test_a_network_has_the_published_number_of_parameters(name):
    init_default_scope('mmpretrain')
    network = MODELS.build({**read(f'rm/{name}').model, 'data_preprocessor': None})
    counts = {key: parameter.numel() for key, parameter in network.named_parameters()}
    roi = sum(number for key, number in counts.items() if key.startswith('head.fc_roi.'))
    assert (sum(counts.values()) - roi, roi) == RECIPES[name]


@pytest.mark.parametrize(
    'name', [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TRAINED]
)
def test_a_config_trains_and_validates(name, known, tmp_path):
    runner, notes = tiny(name, tmp_path)
    runner.train()
    assert len(notes.losses) == (2 if name.startswith('rm/') else 1)
    assert all(np.isfinite(list(losses.values())).all() for losses in notes.losses)
    assert set(notes.metrics[0]) == {'accuracy/top1', 'accuracy/top5'}
    assert ('loss_consistency' in notes.losses[0]) == name.startswith('rm/')
    assert not any(
        value.equal(notes.start[key])
        for key, value in runner.model.head.named_parameters()
        if not key.startswith('fc_roi')
    )
