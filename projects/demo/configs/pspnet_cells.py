"""Segmentation in the demo: PSPNet on a frozen backbone colours blood cells, 128 x 96."""
_base_ = '../../transfer/configs/_base_/pspnet.py'

model = dict(
    data_preprocessor=dict(size=(96, 128)),
    backbone=dict(frozen_stages=4),
    decode_head=dict(num_classes=4),
    auxiliary_head=dict(num_classes=4))
data = dict(
    data_root='{{$MMRM_PHOTOGRAPHS:work_dirs/demo/photographs}}/ade',
    metainfo=dict(classes=('background', 'RBC', 'WBC', 'Platelets')))
train_dataloader = dict(
    batch_size=4,
    dataset=dict(data, data_prefix=dict(img_path='images/train', seg_map_path='annotations/train')))
val_dataloader = dict(
    dataset=dict(data, data_prefix=dict(img_path='images/val', seg_map_path='annotations/val')))
test_dataloader = val_dataloader

# 100 steps in small batches.
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=10),
    dict(type='CosineAnnealingLR', T_max=5, by_epoch=True, convert_to_iter_based=True)
]
