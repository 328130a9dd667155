_base_ = [
    '../_base_/models/resnet18-w16_cifar.py',
    '../_base_/datasets/cifar10-250_bs64.py',
    '../_base_/schedules/cifar_200e_bf16.py',
    '../_base_/default_runtime.py',
]

model = dict(data_preprocessor=dict(num_classes=10), head=dict(num_classes=10))
# The best epoch is in the log; its weights are not kept.
default_hooks = dict(checkpoint=dict(interval=10, save_best=None))
# Means over an epoch, which has 39 iterations.
log_processor = dict(window_size=39)
custom_hooks = [*_base_.custom_hooks, dict(type='ChannelsLastHook')]
