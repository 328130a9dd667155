"""UPerNet, PVTv2-B1, 80k iterations on crops of 512: 8 x 2 images, AdamW 1e-4."""
_base_ = ['./upernet_r50_8xb2-80k_ade20k-512x512.py', './pvtv2-b1.py']

# Chosen here, not published: the recipe of the ResNet row, the auxiliary head on the third stage.
model = dict(
    backbone={{_base_.pvtv2_b1}},
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320, in_index=2))
