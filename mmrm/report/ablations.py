"""The paper's ablations: what each of their values sets, and the configs that they run in.

``tools/analysis/sweep.py`` runs them, and the tables find their runs by these names.
"""

from dataclasses import dataclass
from typing import Dict, Tuple

AUGMENTS = 'model.data_preprocessor.batch_augments.augments'

# Where an ablation can run. The paper's four; the last one is small enough for a CPU.
SETTINGS = {
    'cifar10-pyramidnet200': 'configs/rm/pyramidnet200_1xb64_cifar10.py',
    'cifar100-resnet18': 'configs/rm/resnet18_2xb64_cifar100.py',
    'cifar100-pyramidnet164': 'configs/rm/pyramidnet164_2xb64_cifar100.py',
    'in1k-resnet50': 'configs/rm/resnet50_8xb64_in1k.py',
    'cifar10-resnet18-w16': 'configs/rm/resnet18-w16_2xb64_cifar10.py',
}


@dataclass(frozen=True)
class Sweep:
    """One ablation: what is set for each of its values, and the settings that the paper has it in."""

    values: Dict[str, dict]
    settings: Tuple[str, ...]


_CIFAR = ('cifar10-pyramidnet200', 'cifar100-resnet18')
_ALL = (*_CIFAR, 'in1k-resnet50')
SWEEPS = {
    'alpha': Sweep({f'{v:g}': {f'{AUGMENTS}.alpha': v} for v in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}, _CIFAR),
    'omega': Sweep(
        {f'{v:g}': {'model.head.omega': v} for v in (0.0, 0.01, 0.05, 0.08, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)}, _CIFAR
    ),
    'components': Sweep(
        {
            # CutMix with resizing instead of cutting: its lambda, its permutation and its probability on CIFAR.
            'rs': {
                f'{AUGMENTS}.type': 'ResizeFillMix',
                f'{AUGMENTS}.alpha': 1.0,
                'model.data_preprocessor.batch_augments.probs': 0.5,
                'model.head.omega': 0.0,
            },
            'rs+his': {'model.head.omega': 0.0},
            'rs+his+cl': {},
        },
        ('cifar100-pyramidnet164',),
    ),
    'fc': Sweep({'unshared': {'model.head.share_fc': False}, 'shared': {'model.head.share_fc': True}}, _ALL),
    'interpolation': Sweep({v: {f'{AUGMENTS}.interpolation': v} for v in ('nearest', 'bilinear')}, _ALL),
}
