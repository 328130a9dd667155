# As the authors ran it: two processes of 32 that draw the same boxes.
_base_ = './pyramidnet200_1xb64_cifar10.py'

train_dataloader = dict(batch_size=32)
randomness = dict(diff_rank_seed=False)
# What their logged loss counts too, and means over ten iterations: `tools/analysis/authors_curve.py --loss` compares it.
default_hooks = dict(logger=dict(interval=10))
custom_hooks = [*_base_.custom_hooks, dict(type='ChannelsLastHook'), dict(type='LogConsistencyHook')]
