_base_ = '../baseline/resnet50_8xb64_in1k.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='Mixup', alpha=1.0))))
