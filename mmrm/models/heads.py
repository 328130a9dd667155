r"""The head of RecursiveMix: a linear classifier and, in training, the consistency with the history.

.. math::
    \mathcal L = \mathrm{CE}(\tilde p, \tilde y)
        + \omega \lambda\, \mathrm{KL}\big(p^h \,\|\, \mathcal H'(\mathrm{RoIAlign}(\mathcal F(\tilde x), B))\big)
"""
import math
import warnings
from typing import List, Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from mmpretrain.models.heads import LinearClsHead
from mmpretrain.models.necks import GlobalAveragePooling
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample
from torch import nn

from ..utils.errors import UserTypeError, UserValueError
from .batch_augments import Box, Mix
from .data_preprocessor import MIX_FIELD


def roi_weights(start: float, stop: float, scale: float, size: int) -> Tuple[int, np.ndarray]:
    """The weights that 1x1 RoIAlign gives to the cells of one axis.

    One bin, ``aligned=True`` and adaptive sampling: the bin is sampled at ``ceil(length)`` points, each interpolated
    linearly between two cells. The mean is separable, so an axis needs no knowledge of the other one.

    Args:
        start (float): First pixel of the box on this axis.
        stop (float): Past the last pixel of the box.
        scale (float): Cells per pixel.
        size (int): Number of cells.

    Returns:
        tuple[int, ndarray]: The first cell with a weight, and the float32 weights of the cells from there on.
    """
    # In float32, as the operator computes it: the number of sampling points jumps where a length rounds to an integer.
    scale, half = np.float32(scale), np.float32(0.5)
    first = np.float32(start) * scale - half
    length = np.float32(stop) * scale - half - first
    points = max(math.ceil(length), 1)
    at = first + (np.arange(points, dtype=np.float32) + half) * (length / np.float32(points))
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = at.astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    fraction = at - low
    weights = np.zeros(size, np.float32)
    np.add.at(weights, low[inside], (1 - fraction)[inside])
    np.add.at(weights, high[inside], fraction[inside])
    weights /= np.float32(points)
    begin, end = int(low.min()), int(high.max()) + 1
    return begin, weights[begin:end]


def roi_mean(feature_map: torch.Tensor, box: Box, image_size: Tuple[int, int]) -> torch.Tensor:
    """1x1 RoIAlign of the same box in every sample, as a separable weighted mean of the cells under it.

    Equal to RoIAlign (``aligned=True``, ``sampling_ratio=-1``) where the map's two scales agree; where they differ,
    rows and columns have a scale each. It is deterministic, needs no custom operator and takes any memory format.

    Args:
        feature_map (Tensor): Shape ``(N, C, h, w)``.
        box (Box): In pixels of the image.
        image_size (tuple[int, int]): Height and width of the image in pixels.

    Returns:
        Tensor: Shape ``(N, C)``, float32 at least.
    """
    height, width = feature_map.shape[-2:]
    top, rows = roi_weights(box.y1, box.y2, height / image_size[0], height)
    left, columns = roi_weights(box.x1, box.x2, width / image_size[1], width)
    weights = torch.from_numpy(np.outer(rows, columns)).to(feature_map.device)
    region = feature_map[:, :, top:top + len(rows), left:left + len(columns)]
    return (region * weights).sum(dim=(2, 3))


def kl_divergence(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    r""":math:`\mathrm{KL}(\mathrm{target} \,\|\, \mathrm{softmax}(\mathrm{logits}))`, summed over classes, in float32.

    Args:
        target (Tensor): Probabilities, shape ``(N, num_classes)``. A row of zeros gives 0.
        logits (Tensor): Shape ``(N, num_classes)``.

    Returns:
        Tensor: Shape ``(N, )``, never negative.
    """
    target = target.float()
    log_prediction = F.log_softmax(logits.float(), dim=1)
    kl = (torch.xlogy(target, target) - target * log_prediction).sum(dim=1)
    return kl.clamp(min=0)  # rounding can leave -1e-8 where the two agree


@MODELS.register_module()
class RMConsistencyHead(LinearClsHead):
    r"""Linear classifier on the pooled feature map, with RecursiveMix's consistency loss in training.

    It takes the backbone's feature map itself, so set ``neck=None``. Its ``fc`` is that of ``LinearClsHead``: a
    checkpoint loads into stock ``GlobalAveragePooling`` + ``LinearClsHead``, with ``fc_roi`` as the only extra layer.

    Losses: ``loss``, the classification loss, and ``loss_consistency``, :math:`\omega\lambda\,\mathrm{KL}`. Logged, not
    summed: ``rm_kl``, the mean KL of the mixed samples; ``rm_kl_blind``, the KL to the mean :math:`p^h`, the best that
    an answer without a look at the region can reach; ``rm_lambda``, the mean :math:`\lambda` of the batch.

    Args:
        num_classes (int): Number of classes.
        in_channels (int): Channels of the last feature map.
        omega (float): Weight of the consistency loss, at least 0; 0 switches it off. 0.1 on CIFAR, 0.5 on ImageNet in
            the paper. Defaults to 0.1.
        share_fc (bool): Whether ``fc`` also classifies the region, instead of a layer ``fc_roi``. Defaults to False.
        **kwargs: ``loss``, ``topk``, ``cal_acc`` and ``init_cfg`` of mmpretrain's ``LinearClsHead``.
    """

    def __init__(self, num_classes: int, in_channels: int, omega: float = 0.1, share_fc: bool = False, **kwargs):
        if isinstance(omega, bool) or not isinstance(omega, (int, float)) or not 0 <= omega < math.inf:
            raise UserValueError(f'RMConsistencyHead: omega={omega!r} must be a finite number >= 0.')
        if not isinstance(share_fc, bool):
            raise UserTypeError(f'RMConsistencyHead: share_fc={share_fc!r} must be True or False.')
        super().__init__(num_classes=num_classes, in_channels=in_channels, **kwargs)
        self.omega = omega
        self.share_fc = share_fc
        self.pool = GlobalAveragePooling()
        if omega > 0 and not share_fc:
            self.fc_roi = nn.Linear(in_channels, num_classes)
        self._warned = False

    def pre_logits(self, feats: Tuple[torch.Tensor]) -> torch.Tensor:
        """Pool the last feature map to ``(N, in_channels)``."""
        return self.pool(self._feature_map(feats))

    def loss(self, feats: Tuple[torch.Tensor], data_samples: List[DataSample], **kwargs) -> dict:
        """The classification loss and the consistency loss.

        Args:
            feats (tuple[Tensor]): The last one is the feature map, shape ``(N, in_channels, h, w)``.
            data_samples (list[DataSample]): With labels and, from ``RMDataPreprocessor``, what was mixed.
            **kwargs: Passed on to the loss module.
        """
        feature_map = self._feature_map(feats)
        logits = self.fc(self.pool(feature_map))
        losses = self._get_loss(logits, data_samples, **kwargs)
        losses.update(self._consistency(feature_map, logits, self._mix_of(data_samples)))
        return losses

    def _consistency(self, feature_map: torch.Tensor, logits: torch.Tensor, mix: Optional[Mix]) -> dict:
        """``loss_consistency``, ``rm_kl`` and ``rm_lambda`` of this iteration; answers the mix with its prediction."""
        number = len(logits)
        lam = mix.lam * mix.count / number if mix is not None else 0.0
        logged = dict(rm_lambda=logits.new_full((), lam, dtype=torch.float32))
        if self.omega == 0:
            if mix is not None:
                mix.answer(None)
            return logged
        if mix is not None and mix.lam > 0 and mix.historical_prediction is not None:
            region = roi_mean(feature_map[:mix.count], mix.box, mix.image_size)
            fc_roi = self.fc if self.share_fc else self.fc_roi
            history = mix.historical_prediction[:mix.count].to(logits.device)
            kl = kl_divergence(history, fc_roi(region.to(fc_roi.weight)))
            # The best that an answer without a look at the region could do.
            blind = history.mean(dim=0, keepdim=True).clamp(min=1e-12).log().expand_as(history)
            logged.update(loss_consistency=self.omega * mix.lam * kl.sum() / number, rm_kl=kl.detach().mean(),
                          rm_kl_blind=kl_divergence(history, blind).mean())
        else:
            zero = logits.new_zeros((), dtype=torch.float32)
            logged.update(loss_consistency=zero if self.share_fc else self._touch_fc_roi(), rm_kl=zero,
                          rm_kl_blind=zero)
        if mix is not None:
            prediction = F.softmax(logits.detach().float(), dim=1)
            # An overflowed row becomes zeros, whose KL and gradient are 0.
            finite = prediction.isfinite().all(dim=1, keepdim=True)
            mix.answer(torch.where(finite, prediction, torch.zeros_like(prediction)))
        return logged

    def _touch_fc_roi(self) -> torch.Tensor:
        """A zero that depends on ``fc_roi``: DDP waits for the gradient of every parameter in every iteration."""
        return 0.0 * (self.fc_roi.weight[0, 0] + self.fc_roi.bias[0]).float()

    def _mix_of(self, data_samples: List[DataSample]) -> Optional[Mix]:
        if MIX_FIELD not in data_samples[0]:
            if self.omega > 0 and not self._warned:
                self._warned = True
                warnings.warn(
                    'RMConsistencyHead gets batches that say nothing of RecursiveMix, so it trains as a linear head. '
                    'RM needs data_preprocessor=dict(type="RMDataPreprocessor", '
                    'batch_augments=dict(augments=dict(type="RecursiveMix"))).', stacklevel=2)
            return None
        return getattr(data_samples[0], MIX_FIELD)

    def _feature_map(self, feats: Tuple[torch.Tensor]) -> torch.Tensor:
        feature_map = feats[-1] if isinstance(feats, (tuple, list)) else feats
        shape = tuple(feature_map.shape) if isinstance(feature_map, torch.Tensor) else type(feature_map).__name__
        if not isinstance(feature_map, torch.Tensor) or feature_map.ndim != 4:
            raise UserValueError(
                f'RMConsistencyHead needs the feature map, shape (N, {self.in_channels}, h, w), but got {shape}. '
                'A neck that pools must go: neck=None. A backbone that pools must not: ConvNeXt has '
                'gap_before_final_norm=False, VisionTransformer, DeiT, BEiT and their kin out_type="featmap".')
        if feature_map.shape[1] != self.in_channels:
            raise UserValueError(f'RMConsistencyHead: in_channels={self.in_channels}, but the feature map has shape '
                                 f'{shape}: set in_channels={shape[1]}.')
        return feature_map
