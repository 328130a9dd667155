"""DenseNet for 32 x 32 images."""

from mmpretrain.models.backbones import DenseNet
from mmpretrain.registry import MODELS
from torch import nn


@MODELS.register_module()
class DenseNetCIFAR(DenseNet):
    """mmpretrain's DenseNet with the two changes of the networks in the RecursiveMix paper.

    - The stem is a lone 3 x 3 convolution with stride 1: no BN, no ReLU, no pooling. A 32 x 32 image
      ends in a 4 x 4 map.
    - The transitions between stages have no ReLU (BN - conv1x1 - 2 x 2 average pooling).

    Layer names are mmpretrain's (``stem.0``, ``stages.S.block.B.conv1``, ``transitions.S.norm`` ...).

    Args:
        arch (str | dict): '121' (growth 32), '161' (growth 48), or another one of :class:`mmpretrain.models.DenseNet`.
            Defaults to '121'.
        in_channels (int): Channels of the image. Defaults to 3.
        **kwargs: Other arguments of :class:`mmpretrain.models.DenseNet`.
    """

    def __init__(self, arch='121', in_channels: int = 3, **kwargs):
        super().__init__(arch, in_channels=in_channels, **kwargs)
        self.stem = nn.Sequential(nn.Conv2d(in_channels, self.init_channels, 3, padding=1, bias=False))
        for transition in self.transitions[:-1]:
            transition.act = nn.Identity()
        self.feat_dim = self.transitions[-1][0].num_features
