_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

# A hole of 16 x 16 in the mean colour, which is 0 after normalisation: Cutout's own setting for CIFAR-10.
train_pipeline = [
    *_base_.train_pipeline[:-1],
    dict(type='Cutout', shape=16, pad_val=(125, 123, 114), prob=1.0),
    _base_.train_pipeline[-1],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
