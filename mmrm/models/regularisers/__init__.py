"""The other regularisers of the paper's tables, one file each: the arithmetic as plain functions, and a batch augment.

None of them imports OpenMMLab; :mod:`mmrm.models.batch_augments` registers them.

Pairwise methods draw a permutation ``index`` and a share ``lam``: sample ``i`` keeps ``lam`` of itself and takes the
rest from sample ``index[i]``. Its label is ``mix_labels(scores, scores[index], 1 - lam)``, see :mod:`mmrm.core`.
"""
# ruff: noqa: F401

from .binding import BoundAugment, bind_augments, bound_augments, unbind_augments
from .dropblock import DropBlock
from .feature_cutmix import FeatureCutMix
from .layer_mix import LayerMix
from .manifold_mixup import ManifoldMixup
from .moex import CutMixMoEx, MoEx
from .puzzlemix import PuzzleMix
from .stylecutmix import StyleCutMix
