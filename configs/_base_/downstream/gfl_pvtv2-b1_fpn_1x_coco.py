"""GFL, PVTv2-B1, 12 epochs: 8 x 2 images, AdamW."""
_base_ = ['./gfl_r50_fpn_1x_coco.py', './pvtv2-b1.py']

model = dict(backbone={{_base_.pvtv2_b1}}, neck=dict(in_channels=[64, 128, 320, 512]))
# Chosen here, not published: as the PVT authors train the one-stage RetinaNet.
optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, weight_decay=1e-4))
