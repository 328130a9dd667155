"""Data sets: CIFAR and ImageNet with their files checked, and a generated world for trying things out."""
from .cifar import RMCIFAR10, RMCIFAR100
from .fetch_cifar10 import get_cifar10
from .imagenet import RMImageNet
from .transforms import RMColorJitter, RMLighting, RMRandomResizedCrop
from .world import make_world

__all__ = [
    'RMCIFAR10', 'RMCIFAR100', 'RMColorJitter', 'RMImageNet', 'RMLighting', 'RMRandomResizedCrop', 'get_cifar10',
    'make_world'
]
