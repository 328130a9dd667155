_base_ = '../baseline/resnet50_8xb64_in1k.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='MoEx', lam=0.9, layer='maxpool'))))
