# Initialised by torch's defaults, as the authors' CIFAR networks are.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='RMDataPreprocessor',
        num_classes=100,
        # .4914 .4822 .4465 and .2023 .1994 .2010, in RGB as CIFAR is stored; the authors use them for CIFAR-100 too.
        mean=[125.307, 122.961, 113.8575],
        std=[51.5865, 50.847, 51.255],
        to_rgb=False),
    backbone=dict(type='ResNet_CIFAR', depth=18, zero_init_residual=False, init_cfg=[]),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=100,
        in_channels=512,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
        init_cfg=[]))
