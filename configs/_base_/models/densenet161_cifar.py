_base_ = './densenet121_cifar.py'

model = dict(backbone=dict(arch='161'), head=dict(in_channels=2208))
