_base_ = './pyramidnet164_cifar.py'

model = dict(backbone=dict(depth=200, alpha=240), head=dict(in_channels=1024))
