"""PyramidNet for 32 x 32 images."""

from typing import List, Optional, Sequence, Union

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks import DropPath
from mmpretrain.models.backbones.base_backbone import BaseBackbone
from mmpretrain.registry import MODELS
from torch import nn

from ...utils.errors import UserTypeError, UserValueError

STEM_CHANNELS = 16
NUM_STAGES = 3
EXPANSION = 4


def pyramid_widths(depth: int, alpha: float) -> List[int]:
    """Width of every bottleneck: from 16 it grows by the same amount in each block, by ``alpha`` in all.

    Args:
        depth (int): Number of layers, ``9 n + 2`` (three stages of n bottlenecks with three convolutions each).
        alpha (float): Widening factor, the paper's alpha with a tilde.

    Returns:
        list[int]: 3 n widths; a block puts out four times its width in channels.
    """
    blocks = (depth - 2) // 3
    return [round(STEM_CHANNELS + alpha * (index + 1) / blocks) for index in range(blocks)]


class PyramidBottleneck(nn.Module):
    """BN - conv1x1 - BN - ReLU - conv3x3 - BN - ReLU - conv1x1 - BN, plus the shortcut.

    There is no ReLU before the first convolution and none after the addition.

    The shortcut has no parameters: 2 x 2 average pooling where the stage shrinks, zeros for the channels that are new.

    Args:
        in_channels (int): Channels of the input.
        width (int): Channels of the 3 x 3 convolution; the output has four times as many.
        stride (int): Stride of the 3 x 3 convolution, 1 or 2. Defaults to 1.
        drop_path_rate (float): Probability of dropping the residual branch of a sample in training. Defaults to 0.
    """

    def __init__(self, in_channels: int, width: int, stride: int = 1, drop_path_rate: float = 0.0):
        super().__init__()
        self.out_channels = width * EXPANSION
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, self.out_channels, 1, bias=False)
        self.bn4 = nn.BatchNorm2d(self.out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) to (N, 4 * width, H / stride, W / stride)."""
        out = self.conv1(self.bn1(x))
        out = self.conv2(self.relu(self.bn2(out)))
        out = self.conv3(self.relu(self.bn3(out)))
        out = self.drop_path(self.bn4(out))
        shortcut = self.downsample(x)
        return out + F.pad(shortcut, (0, 0, 0, 0, 0, out.size(1) - shortcut.size(1)))


@MODELS.register_module()
class PyramidNetCIFAR(BaseBackbone):
    """PyramidNet with bottlenecks for 32 x 32 images (`Deep Pyramidal Residual Networks <https://arxiv.org/abs/1610.02915>`_).

    The network ends with BN and ReLU, so the last map is what the classifier pools: 8 x 8 for a 32 x 32 input.

    Args:
        depth (int): Number of layers, ``9 n + 2``: 200 and 164 in the RecursiveMix paper.
        alpha (float): Widening factor: 240 for 200 layers, 270 for 164 layers.
        in_channels (int): Channels of the image. Defaults to 3.
        drop_path_rate (float): Stochastic depth: block l of L drops its branch with probability ``rate * l / L``.
            Defaults to 0.
        out_indices (Sequence[int]): Stages to return, of 0, 1, 2. Only the last one passes the final BN and ReLU.
            Defaults to (2, ).
        init_cfg (dict | list, optional): Weight initialisation. Defaults to None, Kaiming normal with fan out.

    Example:
        >>> net = PyramidNetCIFAR(depth=29, alpha=24)
        >>> net(torch.rand(2, 3, 32, 32))[0].shape
        torch.Size([2, 160, 8, 8])
    """

    def __init__(
        self,
        depth: int,
        alpha: float,
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        out_indices: Sequence[int] = (2,),
        init_cfg: Optional[Union[dict, list]] = None,
    ):
        if not isinstance(depth, int) or depth < 11 or (depth - 2) % 9:
            raise UserValueError(f'depth={depth!r}: a PyramidNet with bottlenecks has 9 n + 2 layers (164, 200, ...)')
        if not isinstance(alpha, (int, float)) or alpha <= 0:
            raise UserValueError(f'alpha={alpha!r} must be a positive number')
        if not 0 <= drop_path_rate < 1:
            raise UserValueError(f'drop_path_rate={drop_path_rate!r} must be in [0, 1)')
        if not isinstance(out_indices, Sequence):
            raise UserTypeError(f'out_indices={out_indices!r} must be a sequence of stages')
        if not out_indices or not set(out_indices) <= set(range(NUM_STAGES)):
            raise UserValueError(f'out_indices={out_indices!r} must name stages of 0, 1, 2')
        super().__init__(init_cfg or dict(type='Kaiming', layer='Conv2d'))
        self.depth, self.alpha, self.out_indices = depth, alpha, tuple(out_indices)

        self.conv1 = nn.Conv2d(in_channels, STEM_CHANNELS, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM_CHANNELS)
        widths = pyramid_widths(depth, alpha)
        per_stage = len(widths) // NUM_STAGES
        channels = STEM_CHANNELS
        for stage in range(NUM_STAGES):
            blocks: List[PyramidBottleneck] = []
            for index in range(stage * per_stage, (stage + 1) * per_stage):
                stride = 2 if stage > 0 and not blocks else 1
                blocks.append(
                    PyramidBottleneck(channels, widths[index], stride, drop_path_rate * (index + 1) / len(widths))
                )
                channels = blocks[-1].out_channels
            self.add_module(f'layer{stage + 1}', nn.Sequential(*blocks))
        self.bn_final = nn.BatchNorm2d(channels)
        self.relu_final = nn.ReLU(inplace=True)
        self.feat_dim = channels

    def forward(self, x: torch.Tensor) -> tuple:
        """(N, 3, 32, 32) to a tuple of maps, the last (N, C, 8, 8)."""
        x = self.bn1(self.conv1(x))
        outs = []
        for stage in range(NUM_STAGES):
            x = getattr(self, f'layer{stage + 1}')(x)
            if stage in self.out_indices:
                outs.append(self.relu_final(self.bn_final(x)) if stage == NUM_STAGES - 1 else x)
        return tuple(outs)
