_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

# Chosen here, the paper names no rate: 0.5 in the last block, falling linearly towards the first, as in the paper that
# introduced stochastic depth. A branch is dropped per sample.
model = dict(backbone=dict(drop_path_rate=0.5))
