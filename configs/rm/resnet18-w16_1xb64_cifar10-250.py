_base_ = '../baseline/resnet18-w16_1xb64_cifar10-250.py'

model = dict(
    data_preprocessor=dict(
        type='RMDataPreprocessor', batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5))),
    neck=None,
    head=dict(type='RMConsistencyHead', omega=0.1))
custom_hooks = [*_base_.custom_hooks, dict(type='LogConsistencyHook')]
