"""The head of RecursiveMix in mmpretrain: a linear classifier and, in training, the consistency with the history."""

from typing import List, Optional, Tuple

import torch
from mmpretrain.models.heads import LinearClsHead
from mmpretrain.models.necks import GlobalAveragePooling
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample
from torch import nn

from ..core import ROI_LAYER, Mix, check_omega, consistency_loss, kl_divergence
from ..utils.errors import UserTypeError, UserValueError
from .data_preprocessor import MIX_FIELD


@MODELS.register_module()
class RMConsistencyHead(LinearClsHead):
    r"""Linear classifier on the pooled feature map, with RecursiveMix's consistency loss in training.

    It takes the backbone's feature map itself, so set ``neck=None``. Its ``fc`` is that of ``LinearClsHead``: a
    checkpoint loads into stock ``GlobalAveragePooling`` + ``LinearClsHead``, with ``fc_roi`` as the only extra layer.

    Losses: ``loss``, the classification loss, and ``loss_consistency``, :math:`\omega\lambda\,\mathrm{KL}`. Logged, not
    summed: ``rm_kl``, the mean KL of the mixed samples; ``rm_lambda``, the mean :math:`\lambda` of the batch; and, on
    request, ``rm_kl_blind``.

    Args:
        num_classes (int): Number of classes.
        in_channels (int): Channels of the last feature map.
        omega (float): Weight of the consistency loss, at least 0; 0 switches it off. 0.1 on CIFAR, 0.5 on ImageNet in
            the paper. Defaults to 0.1.
        share_fc (bool): Whether ``fc`` also classifies the region, instead of a layer ``fc_roi``. Defaults to False.
        log_blind_kl (bool): Whether to log ``rm_kl_blind``, the KL to the mean :math:`p^h` of the batch: the best that
            an answer without a look at the region can reach. Defaults to False.
        **kwargs: ``loss``, ``topk``, ``cal_acc`` and ``init_cfg`` of mmpretrain's ``LinearClsHead``.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        omega: float = 0.1,
        share_fc: bool = False,
        log_blind_kl: bool = False,
        **kwargs,
    ):
        check_omega('RMConsistencyHead', omega)
        for name, value in (('share_fc', share_fc), ('log_blind_kl', log_blind_kl)):
            if not isinstance(value, bool):
                raise UserTypeError(f'RMConsistencyHead: {name}={value!r} must be True or False.')
        super().__init__(num_classes=num_classes, in_channels=in_channels, **kwargs)
        self.omega = omega
        self.share_fc = share_fc
        self.log_blind_kl = log_blind_kl
        self.pool = GlobalAveragePooling()
        if omega > 0 and not share_fc:
            self.add_module(ROI_LAYER, nn.Linear(in_channels, num_classes))

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
        mix = data_samples[0].get(MIX_FIELD)
        layer = None if self.omega == 0 else self.fc if self.share_fc else getattr(self, ROI_LAYER)
        consistency, kl, lam = consistency_loss(mix, feature_map, logits, layer, self.omega)
        losses['rm_lambda'] = logits.new_full((), lam, dtype=torch.float32)
        if self.omega > 0:
            losses.update(loss_consistency=consistency, rm_kl=kl)
            if self.log_blind_kl:
                losses['rm_kl_blind'] = blind_kl(mix, logits)
        return losses

    def _feature_map(self, feats: Tuple[torch.Tensor]) -> torch.Tensor:
        feature_map = feats[-1] if isinstance(feats, (tuple, list)) else feats
        shape = tuple(feature_map.shape) if isinstance(feature_map, torch.Tensor) else type(feature_map).__name__
        if not isinstance(feature_map, torch.Tensor) or feature_map.ndim != 4:
            raise UserValueError(
                f'RMConsistencyHead needs the feature map, shape (N, {self.in_channels}, h, w), but got {shape}. '
                'A neck that pools must go: neck=None. A backbone that pools must not: ConvNeXt has '
                'gap_before_final_norm=False, VisionTransformer, DeiT, BEiT and their kin out_type="featmap".'
            )
        if feature_map.shape[1] != self.in_channels:
            raise UserValueError(
                f'RMConsistencyHead: in_channels={self.in_channels}, but the feature map has shape '
                f'{shape}: set in_channels={shape[1]}.'
            )
        return feature_map


def blind_kl(mix: Optional[Mix], logits: torch.Tensor) -> torch.Tensor:
    r"""The mean KL of the mixed samples' :math:`p^h` to their mean, a scalar; 0 if there is none. ``logits`` say where.

    No answer that is the same for all samples comes closer.
    """
    if mix is None or mix.historical_prediction is None:
        return logits.new_zeros((), dtype=torch.float32)
    history = mix.historical_prediction[: mix.count].to(logits.device)
    mean = history.mean(dim=0, keepdim=True).clamp(min=1e-12)
    return kl_divergence(history, mean.log().expand_as(history)).mean()
