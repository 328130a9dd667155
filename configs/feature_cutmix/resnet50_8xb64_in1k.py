_base_ = '../baseline/resnet50_8xb64_in1k.py'

model = dict(data_preprocessor=dict(batch_augments=dict(
    augments=dict(type='FeatureCutMix', alpha=1.0, layers=['input', 'maxpool', 'layer1', 'layer2', 'layer3']))))
