_base_ = '../baseline/resnet50_8xb64_in1k.py'

model = dict(
    data_preprocessor=dict(
        type='RMDataPreprocessor', batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5))),
    neck=None,
    head=dict(type='RMConsistencyHead', omega=0.5))
