"""Detection in the demo: mmdet's ATSS, slimmed, on the generated world's COCO layout."""
_base_ = ['mmdet::atss/atss_r50_fpn_1x_coco.py']
custom_imports = dict(imports=['mmrm'], allow_failed_imports=False)

model = dict(
    backbone=dict(
        _delete_=True, type='ResNet', depth=18, base_channels=16, num_stages=4, out_indices=(0, 1, 2, 3), style='pytorch',
        norm_eval=False),
    neck=dict(in_channels=[16, 32, 64, 128], out_channels=32, num_outs=3),
    bbox_head=dict(
        num_classes=8,
        in_channels=32,
        feat_channels=32,
        stacked_convs=1,
        anchor_generator=dict(octave_base_scale=4, strides=[8, 16, 32])),
    # As low as this, so that an untrained detector can be evaluated too.
    test_cfg=dict(score_thr=0.001))

# The file that initialises the backbone; an untrained one otherwise.
weights = '{{$MMRM_BACKBONE:random}}'
if weights != 'random':
    model['init_cfg'] = dict(type='StrictPretrained', checkpoint=weights)

data_root = '{{$MMRM_WORLD:work_dirs/demo/world}}/coco/'
metainfo = dict(classes=('airplane', 'bus', 'boat', 'traffic light', 'bottle', 'chair', 'clock', 'vase'))
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
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json', classwise=True)
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=15, val_interval=3)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=10))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=30),
    dict(type='CosineAnnealingLR', T_max=15, by_epoch=True, convert_to_iter_based=True)
]
default_hooks = dict(logger=dict(interval=5), checkpoint=dict(interval=3, max_keep_ckpts=1))
randomness = dict(seed=0)
