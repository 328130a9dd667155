_base_ = '../baseline/pyramidnet164_2xb64_cifar100.py'

model = dict(
    data_preprocessor=dict(
        type='RMDataPreprocessor', batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5))),
    neck=None,
    head=dict(type='RMConsistencyHead', omega=0.1))
