# A quarter of ResNet-18's width: small enough for a CPU.
_base_ = './resnet18_cifar.py'

model = dict(backbone=dict(stem_channels=16, base_channels=16), head=dict(in_channels=128))
