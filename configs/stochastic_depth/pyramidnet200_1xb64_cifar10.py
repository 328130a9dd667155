_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

# 0.25 in the last block, falling linearly towards the first. A branch is dropped per sample.
model = dict(backbone=dict(drop_path_rate=0.25))
