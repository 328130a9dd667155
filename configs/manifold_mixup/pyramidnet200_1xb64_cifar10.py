_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

model = dict(data_preprocessor=dict(batch_augments=dict(
    augments=dict(type='ManifoldMixup', alpha=1.0, layers=['input', 'layer1', 'layer2']))))
