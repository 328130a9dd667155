_base_ = '../baseline/resnet50_8xb64_in1k.py'

# A hole of half the side in the mean colour, as in the CutMix paper.
train_pipeline = [
    *_base_.train_pipeline[:-1],
    dict(type='RMCutout', shape=112),
    _base_.train_pipeline[-1],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
