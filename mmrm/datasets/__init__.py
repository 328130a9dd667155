"""Data sets: CIFAR and ImageNet with their files checked."""

from .cifar import RMCIFAR10, RMCIFAR100
from .fetch_cifar10 import get_cifar10
from .imagenet import RMImageNet
from .transforms import RMColorJitter, RMLighting, RMRandomResizedCrop

__all__ = ['RMCIFAR10', 'RMCIFAR100', 'RMColorJitter', 'RMImageNet', 'RMLighting', 'RMRandomResizedCrop', 'get_cifar10']
