_base_ = [
    '../_base_/models/resnet18_cifar.py',
    '../_base_/datasets/cifar10_bs64.py',
    '../_base_/schedules/cifar_200e.py',
    '../_base_/default_runtime.py',
]

model = dict(data_preprocessor=dict(num_classes=10), head=dict(num_classes=10))
