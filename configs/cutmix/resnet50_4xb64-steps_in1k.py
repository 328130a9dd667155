_base_ = '../baseline/resnet50_4xb64-steps_in1k.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='CutMix', alpha=1.0))))
