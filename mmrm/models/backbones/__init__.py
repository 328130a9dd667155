"""Backbones that mmpretrain lacks. Its ``ResNet_CIFAR`` is the paper's ResNet-18 and -34, parameter for parameter."""

from ..necks import MapPooling
from .cifar_densenet import DenseNetCIFAR
from .pyramidnet import PyramidNetCIFAR

__all__ = ['DenseNetCIFAR', 'MapPooling', 'PyramidNetCIFAR']
