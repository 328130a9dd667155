# CutMix's lambda, partner and probability, with resizing instead of cutting: '+ RS' of the table of components.
_base_ = '../rm/pyramidnet164_2xb64_cifar100.py'

model = dict(
    data_preprocessor=dict(batch_augments=dict(augments=dict(type='ResizeFillMix', alpha=1.0), probs=0.5)),
    head=dict(omega=0.0))
