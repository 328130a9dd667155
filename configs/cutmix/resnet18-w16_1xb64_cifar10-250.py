_base_ = '../baseline/resnet18-w16_1xb64_cifar10-250.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='CutMix', alpha=1.0), probs=0.5)))
