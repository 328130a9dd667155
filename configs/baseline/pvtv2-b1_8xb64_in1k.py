_base_ = [
    '../_base_/models/pvtv2-b1.py',
    '../_base_/datasets/imagenet_bs64_pvt.py',
    '../_base_/schedules/imagenet_300e_adamw.py',
    '../_base_/default_runtime.py',
]
