"""Detection of blood cells in photographs (BCCD), 128 x 96 pixels."""
_base_ = '_base_/atss.py'
custom_imports = dict(imports=['mmrm.models', 'projects.transfer.metrics'], allow_failed_imports=False)

model = dict(bbox_head=dict(num_classes=3))
data = dict(
    _delete_=True,
    type='XMLDataset',
    data_root='{{$MMRM_DATA:data}}/bccd/',
    metainfo=dict(classes=('RBC', 'WBC', 'Platelets')),
    data_prefix=dict(sub_data_root=''))
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 96), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'instances'))
]
train_dataloader = dict(
    dataset=dict(
        data,
        ann_file='ImageSets/Main/trainval.txt',
        filter_cfg=dict(filter_empty_gt=True, min_size=4),
        pipeline=_base_.train_pipeline))
val_dataloader = dict(
    dataset=dict(data, ann_file='ImageSets/Main/test.txt', test_mode=True, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type='SizedCocoMetric', sides=(64, 128), metric='bbox')
test_evaluator = val_evaluator
