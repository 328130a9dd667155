_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

# Keep rate and block size are those of the CutMix paper. Where DropBlock stands in a PyramidNet is not published; chosen
# here as in its own paper: the last two stages, after each convolution (and its norm) and on the skip, the keep rate
# falling linearly from 1.
custom_hooks = [
    *_base_.custom_hooks,
    dict(type='DropBlockHook', block_size=4, keep_prob=0.9,
         modules=['layer[23].*.bn[234]', 'layer[23].*.downsample']),
]
