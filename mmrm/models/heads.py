"""The head of RecursiveMix in mmpretrain: a linear classifier and, in training, the consistency with the history."""

import warnings
from typing import Any, List, Optional, Sequence, Tuple

import torch
from mmengine.model import ModuleList
from mmpretrain.models.heads import LinearClsHead, MultiLabelClsHead, StackedLinearClsHead
from mmpretrain.models.necks import GlobalAveragePooling
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample
from torch import nn

from ..core import ROI_LAYER, Mix, check_omega, consistency_loss, pool
from ..utils.errors import UserTypeError, UserValueError
from .samples import MIX_FIELD, SampleBatch


@MODELS.register_module()
class RMConsistencyHead(LinearClsHead):
    r"""Classifier on the pooled feature map, with RecursiveMix's consistency loss in training.

    It takes the backbone's feature map itself, so set ``neck=None``. Its ``fc`` is that of ``LinearClsHead``: a
    checkpoint loads into stock ``GlobalAveragePooling`` + ``LinearClsHead``, with ``fc_roi`` as the only extra layer.

    With ``mid_channels`` it has the hidden layers of ``StackedLinearClsHead`` (MobileNetV3's head) under the same names
    and takes the same arguments, so that a base config's ``head`` needs another ``type`` and no more. The region goes
    through the same hidden layers; only the last layer has its copy ``fc_roi``.

    Losses: ``loss``, the classification loss, and ``loss_consistency``, ω λ KL. Logged, not
    summed: ``rm_kl``, the mean KL of the mixed samples; ``rm_lambda``, the mean λ of the batch.
    ``LogConsistencyHook`` logs more.

    Args:
        num_classes (int): Number of classes.
        in_channels (int): Channels of the last feature map.
        omega (float): Weight of the consistency loss, at least 0; 0 switches it off. Defaults to 0.1, the paper's on
            CIFAR; on ImageNet it has 0.5.
        share_fc (bool): Whether ``fc`` also classifies the region, instead of a layer ``fc_roi``. Defaults to False.
        mid_channels (Sequence[int], optional): Widths of the hidden layers. Defaults to None: one linear layer.
        dropout_rate, norm_cfg, act_cfg: After each hidden layer, as in ``StackedLinearClsHead``.
        hidden_dim (int, optional): What ``VisionTransformerClsHead`` calls its one hidden layer:
            ``mid_channels=[hidden_dim]``, with tanh unless ``act_cfg`` says otherwise. Defaults to None.
        roi_layers (str): 'last' or 'all': which layers the region has a copy of. 'all' gives it hidden layers of its
            own as well. Defaults to 'last'.
        **kwargs: ``loss``, ``topk``, ``cal_acc`` and ``init_cfg`` of mmpretrain's ``LinearClsHead``.
    """

    multi_label = False

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        omega: float = 0.1,
        share_fc: bool = False,
        mid_channels: Optional[Sequence[int]] = None,
        dropout_rate: float = 0.0,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
        hidden_dim: Optional[int] = None,
        roi_layers: str = 'last',
        **kwargs,
    ):
        check_omega('RMConsistencyHead', omega)
        if not isinstance(share_fc, bool):
            raise UserTypeError(f'RMConsistencyHead: share_fc={share_fc!r} must be True or False.')
        for name in ('log_blind_kl', 'log_entropy'):  # of 0.3, whose runs can still be loaded
            if kwargs.pop(name, False):
                warnings.warn(
                    f"RMConsistencyHead: {name} is now dict(type='LogConsistencyHook') in custom_hooks.", stacklevel=2
                )
        mid_channels, act_cfg = check_layers(mid_channels, hidden_dim, act_cfg, roi_layers, share_fc)
        if mid_channels:
            kwargs.setdefault('init_cfg', None)  # as in StackedLinearClsHead
        super().__init__(num_classes=num_classes, in_channels=in_channels, **kwargs)
        self.omega = omega
        self.share_fc = share_fc
        self.pool = GlobalAveragePooling()
        self.layers: Optional[ModuleList] = None
        if mid_channels:

            def stack() -> ModuleList:
                return StackedLinearClsHead(
                    num_classes, in_channels, mid_channels, dropout_rate, norm_cfg, act_cfg
                ).layers

            self.layers = stack()
            del self.fc  # it is the last of them
        if omega > 0 and not share_fc:
            own = stack() if mid_channels and roi_layers == 'all' else None
            width = mid_channels[-1] if mid_channels else in_channels
            self.add_module(ROI_LAYER, nn.Linear(width, num_classes) if own is None else own)

    def pre_logits(self, feats: Tuple[torch.Tensor]) -> torch.Tensor:
        """Pool the last feature map to ``(N, in_channels)``, then the hidden layers, if there are any."""
        return self._hidden(self.pool(self._feature_map(feats)))

    def forward(self, feats: Tuple[torch.Tensor]) -> torch.Tensor:
        """The logits, shape ``(N, num_classes)``."""
        return self._last_layer()(self.pre_logits(feats))

    def _hidden(self, pooled: torch.Tensor) -> torch.Tensor:
        return pooled if self.layers is None else run_hidden(self.layers, pooled)

    def _last_layer(self) -> Any:
        return self.fc if self.layers is None else self.layers[-1].fc

    def _region_branch(self) -> Any:
        """What classifies the region: a linear layer, or one after hidden layers; None if nothing does."""
        if self.omega == 0:
            return None
        layer = self._last_layer() if self.share_fc else getattr(self, ROI_LAYER)
        if self.layers is None:
            return layer
        return RegionBranch(layer) if isinstance(layer, ModuleList) else RegionBranch([*self.layers[:-1], layer])

    def loss(self, feats: Tuple[torch.Tensor], data_samples: List[DataSample], **kwargs) -> dict:
        """The classification loss and the consistency loss.

        Args:
            feats (tuple[Tensor]): The last one is the feature map, shape ``(N, in_channels, h, w)``.
            data_samples (list[DataSample]): With labels and, from ``RMDataPreprocessor``, what was mixed.
            **kwargs: Passed on to the loss module.
        """
        if not self.multi_label:
            check_single_label(data_samples)
        feature_map, mix = self._feature_map(feats), data_samples[0].get(MIX_FIELD)
        logits, features = self._classify(feature_map, mix)
        losses = self._get_loss(logits, data_samples, **kwargs)
        losses.update(self.consistency_losses(mix, features, logits))
        return losses

    def _classify(self, feature_map: torch.Tensor, mix: Optional[Mix]) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """The logits, and what the consistency needs of the map: its region, pooled in the same pass as the mean."""
        if type(self.pool) is not GlobalAveragePooling or self.omega == 0:
            return self._last_layer()(self._hidden(self.pool(feature_map))), feature_map
        mean, region = pool(feature_map, mix)
        return self._last_layer()(self._hidden(mean)), region

    def consistency_losses(self, mix: Optional[Mix], features: Optional[torch.Tensor], logits: torch.Tensor) -> dict:
        """``loss_consistency`` and what is logged beside it; ``mix`` gets its answer."""
        losses, branch = dict(), self._region_branch()
        consistency, kl, losses['rm_lambda'] = consistency_loss(
            mix, features, logits, branch, self.omega, self.multi_label
        )
        if isinstance(branch, RegionBranch):
            consistency = consistency + branch.nothing()
        if self.omega > 0:
            losses.update(loss_consistency=consistency, rm_kl=kl)
        return losses

    def _feature_map(self, feats: Tuple[torch.Tensor]) -> torch.Tensor:
        feature_map = feats[-1] if isinstance(feats, (tuple, list)) else feats
        shape = tuple(feature_map.shape) if isinstance(feature_map, torch.Tensor) else type(feature_map).__name__
        if not isinstance(feature_map, torch.Tensor) or feature_map.ndim != 4:
            raise UserValueError(
                f'RMConsistencyHead needs the feature map, shape (N, {self.in_channels}, h, w), but got {shape}. '
                'Remove a neck that pools (neck=None), and let the backbone return its map: ConvNeXt with '
                'gap_before_final_norm=False, VisionTransformer, DeiT, BEiT and similar with out_type="featmap".'
            )
        if feature_map.shape[1] != self.in_channels:
            raise UserValueError(
                f'RMConsistencyHead: in_channels={self.in_channels}, but the feature map has shape '
                f'{shape}: set in_channels={shape[1]}.'
            )
        return feature_map


@MODELS.register_module()
class RMMultiLabelHead(RMConsistencyHead):
    """:class:`RMConsistencyHead` for several labels per image: sigmoid, and the consistency by binary KL.

    Data, loss and predictions are those of mmpretrain's ``MultiLabelLinearClsHead``, into which a checkpoint loads.

    Args:
        args, kwargs: As for :class:`RMConsistencyHead`.
        loss (dict): Takes logits and scores ``(N, num_classes)``. Defaults to the binary cross entropy.
        thr, topk: Which classes are predicted, as in ``MultiLabelLinearClsHead``.
    """

    multi_label = True

    def __init__(
        self,
        *args,
        loss: dict = dict(type='CrossEntropyLoss', use_sigmoid=True),  # noqa: B006 (mmpretrain builds a copy)
        thr: Optional[float] = None,
        topk: Optional[int] = None,
        **kwargs,
    ):
        super().__init__(*args, loss=loss, **kwargs)
        self.thr, self.topk = 0.5 if thr is None and topk is None else thr, topk

    _get_loss = MultiLabelClsHead._get_loss
    _get_predictions = MultiLabelClsHead._get_predictions


def run_hidden(layers: Sequence[nn.Module], features: torch.Tensor) -> torch.Tensor:
    """Features after all layers but the last."""
    for layer in list(layers)[:-1]:
        features = layer(features)
    return features


class RegionBranch:
    """Hidden layers and a linear one as what :func:`mmrm.core.consistency_loss` takes for the region's layer.

    It owns no layer: they are the head's.

    Args:
        layers: The last one is linear, or a block of ``StackedLinearClsHead`` around a linear one.
    """

    def __init__(self, layers: Sequence[nn.Module]):
        self.layers = list(layers)
        last: Any = self.layers[-1]
        self.last: nn.Linear = last if isinstance(last, nn.Linear) else last.fc
        self.weight, self.bias = self.last.weight, self.last.bias

    def __call__(self, region: torch.Tensor) -> torch.Tensor:
        return self.last(run_hidden(self.layers, region))

    def nothing(self) -> torch.Tensor:
        """A zero that depends on every hidden parameter: DDP waits for all of them, also where nothing was mixed."""
        parameters = [parameter for layer in self.layers[:-1] for parameter in layer.parameters()]
        return 0.0 * torch.stack([parameter.flatten()[0].float() for parameter in parameters]).sum()


def check_layers(mid_channels, hidden_dim, act_cfg, roi_layers, share_fc) -> tuple:
    """Check what says which layers :class:`RMConsistencyHead` has; return ``mid_channels`` and ``act_cfg``."""
    name = 'RMConsistencyHead'
    if hidden_dim is not None:
        if mid_channels is not None:
            raise UserValueError(f'{name}: give mid_channels={mid_channels!r} or hidden_dim={hidden_dim!r}, not both.')
        mid_channels, act_cfg = [hidden_dim], act_cfg or dict(type='Tanh')
    if mid_channels is not None:
        widths = list(mid_channels) if isinstance(mid_channels, (list, tuple)) else None
        if not widths or not all(isinstance(width, int) and width > 0 for width in widths):
            raise UserValueError(f'{name}: mid_channels={mid_channels!r} must be a list of widths, such as [1024].')
    if roi_layers not in ('last', 'all'):
        raise UserValueError(f"{name}: roi_layers={roi_layers!r} must be 'last' or 'all'.")
    if roi_layers == 'all' and share_fc:
        raise UserValueError(f"{name}: share_fc=True and roi_layers='all' exclude each other.")
    return mid_channels, act_cfg or dict(type='ReLU')


def check_single_label(data_samples: Sequence[DataSample]) -> None:
    """Raise if a sample has several labels or none: the consistency compares softmax distributions."""
    if isinstance(data_samples, SampleBatch):  # one each
        return
    for sample in data_samples:
        if 'gt_label' in sample and len(sample.gt_label) != 1:
            raise UserValueError(
                f'RMConsistencyHead needs one label per image, but one has {len(sample.gt_label)}: its consistency '
                "compares softmax distributions. For several labels per image use type='RMMultiLabelHead'."
            )
