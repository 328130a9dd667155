_base_ = '../baseline/resnet50_8xb64_in1k.py'

model = dict(data_preprocessor=dict(batch_augments=dict(
    augments=dict(type='CutMixMoEx', alpha=1.0, lam=0.9, moex_prob=0.25, layer='maxpool'))))
