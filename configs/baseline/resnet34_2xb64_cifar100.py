_base_ = [
    '../_base_/models/resnet34_cifar.py',
    '../_base_/datasets/cifar100_bs64.py',
    '../_base_/schedules/cifar_200e.py',
    '../_base_/default_runtime.py',
]
