# mmdet's ATSS on the slim CIFAR ResNet-18 of the pretraining configs, for images of 80 to 128 pixels.
_base_ = ['mmdet::atss/atss_r50_fpn_1x_coco.py']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)

model = dict(
    # The pretraining's mean and deviation, in RGB.
    data_preprocessor=dict(mean=[125.307, 122.961, 113.8575], std=[51.5865, 50.847, 51.255], bgr_to_rgb=True),
    backbone=dict(
        _delete_=True,
        type='mmpretrain.ResNet_CIFAR',
        depth=18,
        stem_channels=16,
        base_channels=16,
        out_indices=(1, 2, 3),
        # 4 keeps the backbone as it is.
        frozen_stages=-1),
    neck=dict(in_channels=[32, 64, 128], out_channels=32, start_level=0, num_outs=4),
    bbox_head=dict(
        num_classes=10,
        in_channels=32,
        feat_channels=32,
        stacked_convs=1,
        anchor_generator=dict(octave_base_scale=5, strides=[2, 4, 8, 16])),
    # As low as this, so that an untrained detector can be evaluated too.
    test_cfg=dict(score_thr=0.001))

# The file or run that fills the backbone.
weights = '{{$MMRM_BACKBONE:random}}'
if weights != 'random':
    model['init_cfg'] = dict(type='StrictPretrained', checkpoint=weights)

# Of photographs, 128 x 96.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(128, 96), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 96), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    batch_sampler=None,
    drop_last=True,
    dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=16, num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

train_cfg = dict(max_epochs=5, val_interval=5)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=3e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=10))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=30),
    dict(type='CosineAnnealingLR', T_max=5, by_epoch=True, convert_to_iter_based=True)
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=5, max_keep_ckpts=1))
custom_hooks = [dict(type='RandomStateHook'), dict(type='ChannelsLastHook')]
randomness = dict(seed=0)
