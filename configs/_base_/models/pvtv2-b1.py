# The backbone is mmdet's and returns a list, hence the pooling. Chosen here, not published: drop path 0.1 and label
# smoothing 0.1, which is in the loss, so that RecursiveMix's history keeps unsmoothed labels.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True),
    backbone=dict(
        type='mmdet.PyramidVisionTransformerV2',
        embed_dims=64,
        num_layers=[2, 2, 2, 2],
        drop_path_rate=0.1,
        out_indices=(3, )),
    neck=dict(type='MapPooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=512,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02)))
