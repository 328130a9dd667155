_base_ = './resnet18_cifar.py'

model = dict(backbone=dict(_delete_=True, type='DenseNetCIFAR', arch='121'), head=dict(in_channels=1024))
