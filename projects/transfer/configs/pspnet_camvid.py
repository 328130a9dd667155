"""Segmentation of street scenes (CamVid, 11 classes), 128 x 96 pixels."""
_base_ = '_base_/pspnet.py'

# 11 is void: neither learnt nor counted.
model = dict(
    data_preprocessor=dict(size=(96, 128)),
    decode_head=dict(ignore_index=11),
    auxiliary_head=dict(ignore_index=11))
data = dict(
    data_root='{{$MMRM_DATA:data}}/camvid',
    metainfo=dict(classes=('sky', 'building', 'pole', 'road', 'pavement', 'tree', 'sign', 'fence', 'car', 'pedestrian', 'bicyclist')))
train_dataloader = dict(dataset=dict(data, data_prefix=dict(img_path='train', seg_map_path='trainannot')))
val_dataloader = dict(dataset=dict(data, data_prefix=dict(img_path='test', seg_map_path='testannot')))
test_dataloader = val_dataloader
val_evaluator = dict(ignore_index=11)
test_evaluator = val_evaluator
