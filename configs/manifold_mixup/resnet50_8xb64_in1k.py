_base_ = '../baseline/resnet50_8xb64_in1k.py'

model = dict(data_preprocessor=dict(batch_augments=dict(
    augments=dict(type='ManifoldMixup', alpha=1.0, layers=['input', 'layer1', 'layer2']))))
