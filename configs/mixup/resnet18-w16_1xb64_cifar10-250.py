_base_ = '../baseline/resnet18-w16_1xb64_cifar10-250.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='Mixup', alpha=1.0))))
