"""The other regularisers of the paper's tables in mmpretrain's registries; their arithmetic is in mmrm.regularisers."""

from .binding import BoundAugment, bind_augments, bound_augments, unbind_augments
from .dropblock import DropBlock
from .feature_cutmix import FeatureCutMix
from .layer_mix import LayerMix
from .manifold_mixup import ManifoldMixup
from .moex import CutMixMoEx, MoEx
from .puzzlemix import PuzzleMix
from .stylecutmix import StyleCutMix

__all__ = [
    'BoundAugment',
    'CutMixMoEx',
    'DropBlock',
    'FeatureCutMix',
    'LayerMix',
    'ManifoldMixup',
    'MoEx',
    'PuzzleMix',
    'StyleCutMix',
    'bind_augments',
    'bound_augments',
    'unbind_augments',
]
