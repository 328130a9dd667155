"""Detection in the demo: ATSS on a frozen backbone finds blood cells, 128 x 96."""
_base_ = '../../transfer/configs/_base_/atss.py'

model = dict(backbone=dict(frozen_stages=4), bbox_head=dict(num_classes=3))
data_root = '{{$MMRM_PHOTOGRAPHS:work_dirs/demo/photographs}}/'
data = dict(data_root=data_root, metainfo=dict(classes=('RBC', 'WBC', 'Platelets')))
train_dataloader = dict(
    batch_size=4,
    dataset=dict(data, ann_file='coco/annotations/train.json', data_prefix=dict(img='ade/images/train')))
val_dataloader = dict(
    dataset=dict(data, ann_file='coco/annotations/val.json', data_prefix=dict(img='ade/images/val')))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'coco/annotations/val.json')
test_evaluator = val_evaluator

# 100 steps in small batches.
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=10),
    dict(type='CosineAnnealingLR', T_max=5, by_epoch=True, convert_to_iter_based=True)
]
# A held-out photograph with its true and its found boxes.
default_hooks = dict(visualization=dict(draw=True, interval=4))
