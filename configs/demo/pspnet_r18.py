"""Segmentation in the demo: mmseg's PSPNet, slimmed, on the generated world's ADE20K layout."""
_base_ = ['mmseg::_base_/models/pspnet_r50-d8.py', 'mmseg::_base_/default_runtime.py']
custom_imports = dict(imports=['mmrm'], allow_failed_imports=False)

norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(size=(96, 128)),
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='ResNet',
        depth=18,
        stem_channels=16,
        base_channels=16,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        dilations=(1, 1, 2, 4),
        strides=(1, 2, 1, 1),
        norm_cfg=norm_cfg,
        norm_eval=False,
        style='pytorch',
        contract_dilation=True),
    decode_head=dict(
        in_channels=128,
        channels=32,
        num_classes=14,
        norm_cfg=norm_cfg,
        # Nine pixels in ten are ground, which is learnt at once.
        sampler=dict(type='OHEMPixelSampler', thresh=0.7, min_kept=1000)),
    auxiliary_head=dict(in_channels=64, channels=16, num_classes=14, norm_cfg=norm_cfg))

# The file that initialises the backbone; an untrained one otherwise.
weights = '{{$MMRM_BACKBONE:random}}'
if weights != 'random':
    model['init_cfg'] = dict(type='StrictPretrained', checkpoint=weights)

data_root = '{{$MMRM_WORLD:work_dirs/demo/world}}/ade'
metainfo = dict(
    classes=('airplane', 'bus', 'boat', 'traffic light', 'bottle', 'chair', 'clock', 'vase', 'floor', 'grass', 'sand', 'sea',
             'sky', 'wall'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='ADE20KDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=16,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ADE20KDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='ClasswiseIoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=2)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=5e-3, weight_decay=0.05))
param_scheduler = dict(type='CosineAnnealingLR', T_max=10, by_epoch=True, convert_to_iter_based=True)
log_processor = dict(by_epoch=True)
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=5),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=2, max_keep_ckpts=1),
    sampler_seed=dict(type='DistSamplerSeedHook'))
randomness = dict(seed=0)
