"""Pretraining of the demo: a quarter-width ResNet-18 on the generated world's classification folders."""
_base_ = ['mmpretrain::_base_/default_runtime.py']
custom_imports = dict(imports=['mmrm'], allow_failed_imports=False)

model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='RMDataPreprocessor',
        num_classes=8,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True),
    backbone=dict(
        type='ResNet', depth=18, stem_channels=16, base_channels=16, num_stages=4, out_indices=(3, ), style='pytorch'),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead', num_classes=8, in_channels=128, topk=(1, ), loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))

data_root = '{{$MMRM_WORLD:work_dirs/demo/world}}/classification'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=64, padding=8),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackInputs')
]
train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_root=data_root, data_prefix='train', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='val',
        pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator

train_cfg = dict(by_epoch=True, max_epochs=20, val_interval=2)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True))
param_scheduler = dict(type='CosineAnnealingLR', T_max=20, by_epoch=True, convert_to_iter_based=True)
default_hooks = dict(logger=dict(interval=5), checkpoint=dict(interval=2, max_keep_ckpts=1))
randomness = dict(seed=0)
