"""The other regularisers of the paper's tables as plain functions: torch, numpy and :mod:`mmrm.core` alone.

Who mixes pairs of a batch draws a permutation ``index`` and a share ``lam``: sample ``i`` keeps ``lam`` of itself and
takes the rest from sample ``index[i]``. :func:`mix_labels` does that to the labels, for every method.
"""

from .dropblock import drop_block, gamma, keep_rate
from .feature_cutmix import box_mask, draw_box, feature_cutmix
from .labels import mix_labels
from .manifold_mixup import manifold_mixup
from .moex import exchange_moments, moments
from .puzzlemix import puzzle_mix, saliency_map
from .stylecutmix import class_distances, style_cut_mix

__all__ = [
    'box_mask',
    'class_distances',
    'draw_box',
    'drop_block',
    'exchange_moments',
    'feature_cutmix',
    'gamma',
    'keep_rate',
    'manifold_mixup',
    'mix_labels',
    'moments',
    'puzzle_mix',
    'saliency_map',
    'style_cut_mix',
]
