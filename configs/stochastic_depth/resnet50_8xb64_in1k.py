_base_ = '../baseline/resnet50_8xb64_in1k.py'

# 0.25 in the last block, falling linearly to 0 in the first. A branch is dropped per sample.
model = dict(backbone=dict(drop_path_rate=0.25))
