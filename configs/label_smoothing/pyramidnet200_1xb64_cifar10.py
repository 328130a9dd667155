_base_ = '../baseline/pyramidnet200_1xb64_cifar10.py'

# 0.1 is chosen here; the paper names no value.
model = dict(head=dict(loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')))
