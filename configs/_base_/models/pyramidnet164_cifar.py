_base_ = './resnet18_cifar.py'

model = dict(backbone=dict(_delete_=True, type='PyramidNetCIFAR', depth=164, alpha=270), head=dict(in_channels=1144))
