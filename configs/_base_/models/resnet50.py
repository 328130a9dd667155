# RMDataPreprocessor applies the colours that the pipeline draws; in all else it is ClsDataPreprocessor.
# torchvision's initialisation, which the authors keep: no zero in the last BN of a block, and torch's default for fc.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='RMDataPreprocessor',
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True),
    backbone=dict(type='ResNet', depth=50, zero_init_residual=False),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=2048,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
        init_cfg=[]))
