"""Segmentation of scenes composed of CIFAR-10 images, 8 to 44 pixels each."""
_base_ = '_base_/pspnet.py'

# Most pixels are background, which is learnt at once.
model = dict(decode_head=dict(sampler=dict(type='OHEMPixelSampler', thresh=0.7, min_kept=2000)))

data = dict(
    img_suffix='.png',
    data_root='{{$MMRM_DATA:data}}/scenes/ade',
    metainfo=dict(classes=('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck', 'background')))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
train_dataloader = dict(
    dataset=dict(
        data,
        data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        data,
        data_prefix=dict(img_path='images/val', seg_map_path='annotations/val'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
