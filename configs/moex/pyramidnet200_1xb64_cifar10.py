_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

# After the stem's convolution and norm.
model = dict(data_preprocessor=dict(batch_augments=dict(
    augments=dict(type='MoEx', lam=0.5, layer='bn1'), probs=0.25)))
