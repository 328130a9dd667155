_base_ = ['../../../configs/_base_/default_runtime.py']

# EfficientNet-Lite0 with its ImageNet weights, fine-tuned on the Oxford-IIIT pets at 112 px. projects/finetune/prepare.py
# writes the lists and the weights; run.py sets the learning rate, the length and the lists of a pilot.
data_root = 'data/oxford-iiit-pet'
data_preprocessor = dict(
    type='RMDataPreprocessor', num_classes=37, mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True, batch_augments=None)
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='TIMMBackbone',
        model_name='tf_efficientnet_lite0',
        init_cfg=dict(type='StrictPretrained', checkpoint=f'{data_root}/mmrm/efficientnet_lite0.safetensors')),
    neck=None,
    head=dict(
        type='RMConsistencyHead', num_classes=37, in_channels=1280, omega=0, loss=dict(type='CrossEntropyLoss')))

data = dict(type='CustomDataset', data_root=data_root, data_prefix='images')
train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    dataset=dict(
        data,
        ann_file='mmrm/trainval.txt',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomResizedCrop', scale=112, crop_ratio_range=(0.35, 1.0), interpolation='bicubic'),
            dict(type='RandomFlip', prob=0.5, direction='horizontal'),
            dict(type='PackInputs'),
        ]),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(
        data,
        ann_file='mmrm/test.txt',
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='ResizeEdge', scale=128, edge='short', interpolation='bicubic'),
            dict(type='CenterCrop', crop_size=112),
            dict(type='PackInputs'),
        ]),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_dataloader, test_evaluator = val_dataloader, val_evaluator

max_epochs = 45
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.015, momentum=0.9, weight_decay=1e-4, nesterov=True))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', by_epoch=True, begin=1, end=max_epochs, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=max_epochs)
val_cfg = dict()
test_cfg = dict()
custom_hooks = [*_base_.custom_hooks, dict(type='ChannelsLastHook')]  # faster on a CPU, too
default_hooks = dict(checkpoint=dict(interval=5, max_keep_ckpts=1, save_best=None))
