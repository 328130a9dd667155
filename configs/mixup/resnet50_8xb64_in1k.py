_base_ = '../baseline/resnet50_8xb64_in1k.py'

# alpha 0.2 is usual on ImageNet; the paper does not say.
model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='Mixup', alpha=0.2))))
