_base_ = '../baseline/resnet50_8xb64_in1k.py'

# As in DropBlock's paper: the last two stages, after each convolution (and its norm) and on the skip, the keep rate
# falling linearly from 1.
custom_hooks = [
    *_base_.custom_hooks,
    dict(type='DropBlockHook', block_size=7, keep_prob=0.9,
         modules=['layer[34].*.bn[123]', 'layer[34].*.downsample']),
]
