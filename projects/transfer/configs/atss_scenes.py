"""Detection on scenes composed of CIFAR-10 images, 8 to 44 pixels each."""
_base_ = '_base_/atss.py'
custom_imports = dict(imports=['mmrm.models', 'projects.transfer.metrics'], allow_failed_imports=False)

data_root = '{{$MMRM_DATA:data}}/scenes/'
data = dict(
    data_root=data_root,
    metainfo=dict(
        classes=('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(80, 80), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
]
train_dataloader = dict(
    dataset=dict(
        data,
        ann_file='coco/annotations/train.json',
        data_prefix=dict(img='ade/images/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        data,
        ann_file='coco/annotations/val.json',
        data_prefix=dict(img='ade/images/val'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    type='SizedCocoMetric', sides=(16, 28), ann_file=data_root + 'coco/annotations/val.json', metric='bbox')
test_evaluator = val_evaluator
