"""RecursiveMix in the demo: the slim ResNet-18 of the CIFAR configs learns single blood cells, 32 x 32, from scratch."""
_base_ = ['../../../configs/_base_/models/resnet18-w16_cifar.py', '../../../configs/_base_/default_runtime.py']

model = dict(
    data_preprocessor=dict(
        num_classes=3, to_rgb=True, batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5))),
    neck=None,
    head=dict(type='RMConsistencyHead', num_classes=3, omega=0.5))

data_root = '{{$MMRM_PHOTOGRAPHS:work_dirs/demo/photographs}}/cells'
train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    persistent_workers=False,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='train',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomResizedCrop', scale=32, crop_ratio_range=(0.5, 1.0)),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackInputs')
        ]))
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

train_cfg = dict(by_epoch=True, max_epochs=12, val_interval=12)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=5e-4))
param_scheduler = dict(type='RMCosineLR', warmup=2)
default_hooks = dict(logger=dict(interval=5), checkpoint=dict(interval=4, max_keep_ckpts=1, save_best=None))
custom_hooks = [*_base_.custom_hooks, dict(type='ChannelsLastHook')]
