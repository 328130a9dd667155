"""PVTv2-B1 from mmdet, for detectors and segmentors: four maps of 64, 128, 320 and 512 channels."""
pvtv2_b1 = dict(
    _delete_=True, type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[2, 2, 2, 2], init_cfg=None)
