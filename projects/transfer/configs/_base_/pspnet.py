# mmseg's PSPNet on the slim CIFAR ResNet-18 of the pretraining configs, with an output stride of 4.
_base_ = ['mmseg::_base_/models/pspnet_r50-d8.py', 'mmseg::_base_/default_runtime.py']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)

norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    # The pretraining's mean and deviation, in RGB.
    data_preprocessor=dict(size=(80, 80), mean=[125.307, 122.961, 113.8575], std=[51.5865, 50.847, 51.255], bgr_to_rgb=True),
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='mmpretrain.ResNet_CIFAR',
        depth=18,
        stem_channels=16,
        base_channels=16,
        out_indices=(0, 1, 2, 3),
        strides=(1, 2, 2, 1),
        dilations=(1, 1, 1, 2),
        # 4 keeps the backbone as it is.
        frozen_stages=-1),
    decode_head=dict(in_channels=128, channels=48, dropout_ratio=0, num_classes=11, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=64, channels=16, dropout_ratio=0, num_classes=11, norm_cfg=norm_cfg))

# The file or run that fills the backbone.
weights = '{{$MMRM_BACKBONE:random}}'
if weights != 'random':
    model['init_cfg'] = dict(type='StrictPretrained', checkpoint=weights)

# Of photographs, 128 x 96.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='Resize', scale=(128, 96)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 96)),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='BaseSegDataset', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='BaseSegDataset', pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

train_cfg = dict(by_epoch=True, max_epochs=5, val_interval=5)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=3e-3, weight_decay=0.05))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=30),
    dict(type='CosineAnnealingLR', T_max=5, by_epoch=True, convert_to_iter_based=True)
]
log_processor = dict(by_epoch=True)
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=10),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=5, max_keep_ckpts=1),
    sampler_seed=dict(type='DistSamplerSeedHook'))
custom_hooks = [dict(type='RandomStateHook'), dict(type='ChannelsLastHook')]
randomness = dict(seed=0)
