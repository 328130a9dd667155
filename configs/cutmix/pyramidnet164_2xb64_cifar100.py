_base_ = '../baseline/pyramidnet164_2xb64_cifar100.py'

model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='CutMix', alpha=1.0), probs=0.5)))
