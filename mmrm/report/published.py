"""Every result table of the paper as data: published numbers, the metric behind each, the config that fills the row.

A row's configs stand in the order in which a run of theirs is looked for. Rows of the ablations also name the run of
``tools/analysis/sweep.py`` that fills them. Errors are 100 - accuracy.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple


class Metric(NamedTuple):
    """What a column shows and where it comes from.

    Args:
        header (str): The paper's name of it.
        key (str): Its name in mmengine's logs (or in the results of tools/analysis/efficiency.py).
        factor (float): ``offset + factor * logged`` is what the paper shows.
        offset (float): See ``factor``.
        decimals (int): Digits after the point in the paper.
        lower (bool): Whether less is better.
        source (str): 'validation' and 'training' records of the log, or 'efficiency'.
    """

    header: str
    key: str
    factor: float = 1.0
    offset: float = 0.0
    decimals: int = 2
    lower: bool = False
    source: str = 'validation'

    def shown(self, logged: float) -> float:
        """A logged number as the paper shows it."""
        return self.offset + self.factor * logged


METRICS = {
    'top1': Metric('Top-1 Err (%)', 'accuracy/top1', -1, 100, lower=True),
    'top5': Metric('Top-5 Err (%)', 'accuracy/top5', -1, 100, lower=True),
    'ap': Metric('AP', 'coco/bbox_mAP', 100, decimals=1),
    'ap50': Metric('AP50', 'coco/bbox_mAP_50', 100, decimals=1),
    'ap75': Metric('AP75', 'coco/bbox_mAP_75', 100, decimals=1),
    'box': Metric('AP box', 'coco/bbox_mAP', 100, decimals=1),
    'box50': Metric('AP50 box', 'coco/bbox_mAP_50', 100, decimals=1),
    'box75': Metric('AP75 box', 'coco/bbox_mAP_75', 100, decimals=1),
    'mask': Metric('AP mask', 'coco/segm_mAP', 100, decimals=1),
    'mask50': Metric('AP50 mask', 'coco/segm_mAP_50', 100, decimals=1),
    'mask75': Metric('AP75 mask', 'coco/segm_mAP_75', 100, decimals=1),
    'miou': Metric('mIoU', 'mIoU'),
    'macc': Metric('mAcc', 'mAcc'),
    'aacc': Metric('aAcc', 'aAcc'),
    'memory': Metric('Memory (MB)', 'memory', decimals=1, lower=True, source='training'),
    'flops': Metric('Flops (G)', 'flops', 1e-9, lower=True, source='efficiency'),
    'train_params': Metric('#P train (M)', 'train_params', 1e-6, lower=True, source='efficiency'),
    'deploy_params': Metric('#P deploy (M)', 'deploy_params', 1e-6, lower=True, source='efficiency'),
    'hours': Metric('Hours', 'hours', decimals=1, lower=True, source='training'),
}


class Row(NamedTuple):
    """One line of a table.

    Args:
        labels (tuple[str, ...]): One for each of the table's ``columns``.
        published (tuple[float, ...]): One for each of its ``metrics``.
        configs (tuple[str, ...]): What fills it.
        sweep (tuple[str, str, str], optional): Sweep, setting and value of tools/analysis/sweep.py that fill it.
        runs (int, optional): Of how many runs it is the mean, where that differs from the table's.
        recipe (str): Of :data:`RECIPES`: how the published number was trained, where rows of a table differ in that.
    """

    labels: Tuple[str, ...]
    published: Tuple[float, ...]
    configs: Tuple[str, ...] = ()
    sweep: Optional[Tuple[str, str, str]] = None
    runs: Optional[int] = None
    recipe: str = ''

    @property
    def name(self) -> str:
        return ' '.join(self.labels)


class Table(NamedTuple):
    """One table of the paper.

    Args:
        title (str): What it compares.
        label (str): Its label in the paper's source.
        columns (tuple[str, ...]): Headers of the rows' labels.
        metrics (tuple[str, ...]): Of :data:`METRICS`; the first one decides which epoch is the best.
        rows (list[Row]): Top to bottom as in the paper.
        runs (int): Of how many runs the published numbers are the mean.
        reported (str): 'best' over epochs or 'last' epoch, whichever the published numbers are.
    """

    title: str
    label: str
    columns: Tuple[str, ...]
    metrics: Tuple[str, ...]
    rows: List[Row]
    runs: int = 1
    reported: str = 'best'


# How a published number was trained. The paper took some from other papers, which trained otherwise than RM.
RECIPES = {
    'RM': "RM's recipe, that of the row's config",
    'CutMix': "the CutMix paper's for CIFAR: as the row's config, but without a warm-up",
    'steps': "the CutMix and PuzzleMix papers' for ImageNet: batch 256, lr 0.1, x 0.1 after 75, 150 and 225 epochs, "
    'no warm-up. configs/baseline/resnet50_4xb64-steps_in1k.py and '
    'configs/cutmix/resnet50_4xb64-steps_in1k.py train so',
    'unknown': 'how the number was trained is not stated',
}
# The paper's names of what a folder of configs/ trains.
FOLDERS = {
    'Baseline': 'baseline',
    '+ Label Smoothing': 'label_smoothing',
    '+ DropBlock': 'dropblock',
    '+ Stochastic Depth': 'stochastic_depth',
    '+ Cutout': 'cutout',
    '+ Mixup': 'mixup',
    '+ Manifold Mixup': 'manifold_mixup',
    '+ Feature CutMix': 'feature_cutmix',
    '+ CutMix': 'cutmix',
    '+ PuzzleMix': 'puzzlemix',
    '+ MoEx': 'moex',
    '+ CutMix + MoEx': 'cutmix_moex',
    '+ StyleCutMix': 'stylecutmix',
    '+ RM': 'rm',
}
# Which of the published numbers are whose. What is not listed is RM's own.
_OF_CUTMIX = ('Baseline', '+ Cutout', '+ Mixup', '+ Manifold Mixup', '+ CutMix')
_CIFAR10 = dict.fromkeys(FOLDERS, 'unknown') | dict.fromkeys(_OF_CUTMIX, 'CutMix') | {'+ RM': 'RM'}
_IN1K_R50 = dict.fromkeys(FOLDERS, 'steps') | dict.fromkeys(('+ MoEx', '+ CutMix + MoEx'), 'unknown') | {'+ RM': 'RM'}


def _configs(regulariser: str, *names: str) -> Tuple[str, ...]:
    return tuple(f'configs/{FOLDERS[regulariser]}/{name}.py' for name in names)


def _rows(
    values: Dict[str, Tuple[float, ...]],
    *names: str,
    before: Tuple[str, ...] = (),
    recipes: Optional[Dict[str, str]] = None,
    also: Optional[Dict[str, str]] = None,
) -> List[Row]:
    """The rows of one network: regulariser -> published numbers, config names, and the labels before the first.

    ``recipes`` gives the recipe by regulariser, ``also`` the name of one more config, which is looked for last.
    """
    return [
        Row(
            (*before, regulariser),
            published,
            _configs(regulariser, *names, *([also[regulariser]] if also and regulariser in also else [])),
            recipe=recipes[regulariser] if recipes else '',
        )
        for regulariser, published in values.items()
    ]


def _networks(
    values: Dict[Tuple[str, ...], tuple],
    recipes: Optional[Dict[Tuple[str, ...], Dict[str, str]]] = None,
    also: Optional[Dict[Tuple[str, ...], Dict[str, str]]] = None,
) -> List[Row]:
    """The rows of several networks: labels -> (config names, numbers of the baseline, of ...)."""
    rows = []
    for labels, (names, *numbers) in values.items():
        kinds = ('Baseline', '+ Mixup', '+ CutMix', '+ RM') if len(numbers) == 4 else ('Baseline', '+ CutMix', '+ RM')
        rows += _rows(
            dict(zip(kinds, numbers)),
            *names,
            before=labels,
            recipes=(recipes or {}).get(labels),
            also=(also or {}).get(labels),
        )
    return rows


_SETTINGS = {
    'CIFAR-10': ('cifar10-pyramidnet200', 'configs/rm/pyramidnet200_1xb64_cifar10.py'),
    'CIFAR-100': ('cifar100-resnet18', 'configs/rm/resnet18_2xb64_cifar100.py'),
    'ImageNet': ('in1k-resnet50', 'configs/rm/resnet50_8xb64_in1k.py'),
}


def _ablation(sweep: str, values: Dict[str, Tuple[str, Tuple[float, ...]]]) -> List[Row]:
    """The rows of a two-way ablation: label -> (the sweep's value, numbers in the order of _SETTINGS).

    The first one is the configs' own choice, so that their runs fill it too.
    """
    rows = []
    for number, (label, (value, errors)) in enumerate(values.items()):
        for (data, (setting, config)), error in zip(_SETTINGS.items(), errors):
            runs = 1 if data == 'ImageNet' else None
            rows.append(Row((label, data), (error,), () if number else (config,), (sweep, setting, value), runs))
    return rows


_P164 = 'pyramidnet164_2xb64_cifar100'
_R50 = 'resnet50_8xb64_in1k'
# The recipe of the published numbers.
_R50_STEPS = dict.fromkeys(('Baseline', '+ CutMix'), 'resnet50_4xb64-steps_in1k')

TABLES = {
    'cifar10': Table(
        'CIFAR-10, PyramidNet-200 (alpha 240), 300 epochs',
        'table:cifar-10',
        ('Regulariser',),
        ('top1',),
        _rows(
            {
                'Baseline': (3.85,),
                '+ Label Smoothing': (3.74,),
                '+ DropBlock': (3.27,),
                '+ Stochastic Depth': (3.11,),
                '+ Cutout': (3.10,),
                '+ Mixup': (3.09,),
                '+ Manifold Mixup': (3.15,),
                '+ CutMix': (2.88,),
                '+ MoEx': (3.44,),
                '+ StyleCutMix': (2.55,),
                '+ RM': (2.35,),
            },
            'pyramidnet200_1xb64_cifar10',
            recipes=_CIFAR10,
            also={'+ RM': 'pyramidnet200_2xb32_cifar10'},  # the same in two processes, as the authors ran it
        ),
        runs=3,
    ),
    'cifar100': Table(
        'CIFAR-100, several networks, 200 epochs',
        'table:cifar100-many-networks',
        ('Network', 'Regulariser'),
        ('top1',),
        _networks(
            {
                ('ResNet-18',): (('resnet18_2xb64_cifar100',), (21.70,), (20.99,), (19.61,), (18.64,)),
                ('ResNet-34',): (('resnet34_2xb64_cifar100',), (20.62,), (19.19,), (17.89,), (17.15,)),
                ('DenseNet-121',): (('densenet121_2xb64_cifar100',), (19.51,), (17.71,), (17.21,), (16.22,)),
                ('DenseNet-161',): (('densenet161_2xb64_cifar100',), (18.78,), (16.84,), (16.64,), (15.54,)),
                ('PyramidNet-164',): ((_P164,), (16.67,), (16.02,), (15.59,), (14.65,)),
            }
        ),
        runs=3,
    ),
    'components': Table(
        'Components of RM: CIFAR-100, PyramidNet-164 (alpha 270), 200 epochs',
        'table_ablation_history',
        ('Model',),
        ('top1',),
        [
            Row(('PyramidNet',), (16.67,), _configs('Baseline', _P164)),
            Row(('+ CutMix',), (15.59,), _configs('+ CutMix', _P164)),
            Row(('+ RS',), (15.36,), (), ('components', 'cifar100-pyramidnet164', 'rs')),
            Row(('+ RS + HIS',), (14.81,), (), ('components', 'cifar100-pyramidnet164', 'rs+his')),
            Row(
                ('+ RS + HIS + CL',),
                (14.65,),
                _configs('+ RM', _P164),
                ('components', 'cifar100-pyramidnet164', 'rs+his+cl'),
            ),
        ],
        runs=3,
    ),
    'fc': Table(
        'Linear layer of the RoI: CIFAR-10 PyramidNet-200, CIFAR-100 ResNet-18, ImageNet ResNet-50',
        'table_ablation_shared_fc',
        ('Weights', 'Data'),
        ('top1',),
        _ablation('fc', {'Unshared': ('unshared', (2.35, 18.64, 20.80)), 'Shared': ('shared', (2.61, 18.66, 20.92))}),
        runs=3,
    ),
    'interpolation': Table(
        'Interpolation of the historical image: CIFAR-10 PyramidNet-200, CIFAR-100 ResNet-18, ImageNet ResNet-50',
        'table_ablation_interpolation_mode',
        ('Mode', 'Data'),
        ('top1',),
        _ablation(
            'interpolation',
            {'nearest': ('nearest', (2.35, 18.64, 20.80)), 'bilinear': ('bilinear', (2.58, 18.78, 20.86))},
        ),
        runs=3,
    ),
    'imagenet': Table(
        'ImageNet, several networks, 300 epochs',
        'table:imagenet-300epoch',
        ('Network', 'Regulariser'),
        ('top1', 'top5'),
        _networks(
            {
                ('ResNet-50',): ((_R50,), (23.68, 7.05), (22.58, 6.40), (21.40, 5.92), (20.80, 5.42)),
                ('PVTv2-B1',): (('pvtv2-b1_8xb64_in1k',), (24.92, 8.06), (23.23, 6.65), (22.92, 6.42), (22.22, 6.17)),
            },
            {('ResNet-50',): _IN1K_R50, ('PVTv2-B1',): dict.fromkeys(FOLDERS, 'RM')},
            {('ResNet-50',): _R50_STEPS},
        ),
    ),
    'imagenet-r50': Table(
        'ImageNet, ResNet-50, several regularisers, 300 epochs',
        'table:imagenet-r50-300epoch',
        ('Regulariser',),
        ('top1', 'top5'),
        _rows(
            {
                'Baseline': (23.68, 7.05),
                '+ Cutout': (22.93, 6.66),
                '+ Stochastic Depth': (22.46, 6.27),
                '+ Mixup': (22.58, 6.40),
                '+ Manifold Mixup': (22.50, 6.21),
                '+ DropBlock': (21.87, 5.98),
                '+ Feature CutMix': (21.80, 6.06),
                '+ CutMix': (21.40, 5.92),
                '+ PuzzleMix': (21.24, 5.71),
                '+ MoEx': (21.90, 6.10),
                '+ CutMix + MoEx': (20.90, 5.70),
                '+ RM': (20.80, 5.42),
            },
            _R50,
            recipes=_IN1K_R50,
            also=_R50_STEPS,
        ),
    ),
    'coco-dense': Table(
        'COCO, ATSS and GFL, 1x',
        'table:coco_gfl',
        ('Detector', 'Backbone', 'Pretraining'),
        ('ap', 'ap50', 'ap75'),
        _networks(
            {
                ('ATSS', 'ResNet-50'): (
                    ('atss_r50_fpn_1x_coco',),
                    (39.4, 57.6, 42.8),
                    (40.1, 58.4, 43.4),
                    (41.5, 59.9, 45.1),
                ),
                ('ATSS', 'PVTv2-B1'): (
                    ('atss_pvtv2-b1_fpn_1x_coco',),
                    (39.3, 57.2, 42.5),
                    (41.8, 60.3, 45.5),
                    (42.3, 61.0, 45.6),
                ),
                ('GFL', 'ResNet-50'): (
                    ('gfl_r50_fpn_1x_coco',),
                    (40.2, 58.4, 43.3),
                    (41.3, 59.5, 44.6),
                    (41.9, 60.2, 45.6),
                ),
                ('GFL', 'PVTv2-B1'): (
                    ('gfl_pvtv2-b1_fpn_1x_coco',),
                    (40.2, 58.1, 43.2),
                    (42.1, 60.7, 45.5),
                    (43.0, 61.6, 46.5),
                ),
            }
        ),
        reported='last',
    ),
    'coco-mask': Table(
        'COCO, Mask R-CNN and HTC, 1x',
        'table:coco_mask_rcnn',
        ('Detector', 'Backbone', 'Pretraining'),
        ('box', 'box50', 'box75', 'mask', 'mask50', 'mask75'),
        _networks(
            {
                ('Mask R-CNN', 'ResNet-50'): (
                    ('mask-rcnn_r50_fpn_1x_coco',),
                    (38.2, 58.8, 41.4, 34.7, 55.7, 37.2),
                    (38.5, 58.9, 42.2, 34.8, 56.0, 37.4),
                    (39.6, 60.4, 43.1, 35.8, 57.3, 38.2),
                ),
                ('Mask R-CNN', 'PVTv2-B1'): (
                    ('mask-rcnn_pvtv2-b1_fpn_1x_coco',),
                    (38.5, 60.7, 41.5, 36.1, 57.7, 38.4),
                    (40.6, 63.1, 44.1, 37.6, 59.9, 40.1),
                    (41.2, 63.5, 44.4, 38.1, 60.5, 40.9),
                ),
                # Whether the paper's HTC had its semantic branch is not known.
                ('HTC', 'ResNet-50'): (
                    ('htc_r50_fpn_1x_coco', 'htc-without-semantic_r50_fpn_1x_coco'),
                    (41.9, 60.5, 45.5, 37.1, 57.8, 40.1),
                    (42.2, 60.7, 46.0, 37.4, 58.2, 40.4),
                    (42.8, 61.4, 46.5, 37.7, 58.5, 40.8),
                ),
                ('HTC', 'PVTv2-B1'): (
                    ('htc_pvtv2-b1_fpn_1x_coco', 'htc-without-semantic_pvtv2-b1_fpn_1x_coco'),
                    (43.0, 62.9, 46.4, 39.2, 60.5, 42.1),
                    (45.2, 65.0, 49.2, 40.7, 62.4, 44.2),
                    (45.8, 65.6, 49.8, 41.0, 63.0, 44.6),
                ),
            }
        ),
        reported='last',
    ),
    'ade20k': Table(
        'ADE20K, PSPNet and UperNet, 80k iterations',
        'table:ade20k_uperNet',
        ('Segmentor', 'Backbone', 'Pretraining'),
        ('miou', 'macc', 'aacc'),
        _networks(
            {
                ('PSPNet', 'ResNet-50'): (
                    ('pspnet_r50_8xb2-80k_ade20k-512x512',),
                    (40.90, 51.11, 79.52),
                    (40.96, 51.16, 79.93),
                    (41.73, 52.47, 80.01),
                ),
                ('PSPNet', 'PVTv2-B1'): (
                    ('pspnet_pvtv2-b1_8xb2-80k_ade20k-512x512',),
                    (36.48, 46.26, 76.79),
                    (37.99, 48.70, 77.50),
                    (38.67, 49.40, 77.93),
                ),
                ('UperNet', 'ResNet-50'): (
                    ('upernet_r50_8xb2-80k_ade20k-512x512',),
                    (40.40, 51.00, 79.54),
                    (41.24, 51.79, 79.69),
                    (42.30, 52.61, 80.14),
                ),
                ('UperNet', 'PVTv2-B1'): (
                    ('upernet_pvtv2-b1_8xb2-80k_ade20k-512x512',),
                    (39.94, 50.75, 79.02),
                    (41.73, 52.99, 80.02),
                    (43.26, 54.21, 80.36),
                ),
            }
        ),
        reported='last',
    ),
    'efficiency': Table(
        'Cost of training, ImageNet, ResNet-50, 300 epochs on 8 TITAN Xp',
        'table:efficiency',
        ('Regulariser',),
        ('top1', 'memory', 'flops', 'train_params', 'deploy_params', 'hours'),
        _rows(
            {
                'Baseline': (23.68, 5832.0, 4.12, 25.56, 25.56, 73.0),
                '+ Mixup': (22.58, 5870.0, 4.12, 25.56, 25.56, 73.5),
                '+ CutMix': (21.40, 5832.0, 4.12, 25.56, 25.56, 73.8),
                '+ RM': (20.80, 5887.0, 4.12, 27.61, 25.56, 73.8),
            },
            _R50,
        ),
    ),
}

# The only points of the paper's two curves (error against alpha and omega) that its text and tables give.
CURVES = {'cifar10-pyramidnet200': dict(baseline=3.85, rm=2.35), 'cifar100-resnet18': dict(baseline=21.70, rm=18.64)}
CHOSEN = dict(alpha='0.5', omega='0.1')
