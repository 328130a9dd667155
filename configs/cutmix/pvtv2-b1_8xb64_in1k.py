_base_ = '../baseline/pvtv2-b1_8xb64_in1k.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='CutMix', alpha=1.0))))
