"""Data sets: CIFAR, ImageNet and folders of images, with their files checked."""

# ruff: noqa: E402, F401
from .. import compat

compat.apply()  # before mmpretrain is imported

from .cifar import RMCIFAR10, RMCIFAR100
from .crop_flip import RMCropFlip
from .imagenet import RMImageNet
from .images import RMImageFolder
from .transforms import (
    RMColorJitter,
    RMColors,
    RMCutout,
    RMLighting,
    RMLoadResizedCrop,
    RMPackInputs,
    RMRandomResizedCrop,
)
