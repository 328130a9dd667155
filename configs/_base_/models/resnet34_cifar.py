_base_ = './resnet18_cifar.py'

model = dict(backbone=dict(depth=34))
