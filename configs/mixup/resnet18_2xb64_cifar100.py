_base_ = '../baseline/resnet18_2xb64_cifar100.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='Mixup', alpha=1.0))))
