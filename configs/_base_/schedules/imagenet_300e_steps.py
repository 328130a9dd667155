# The recipe behind the published numbers of the baseline, Cutout, Mixup, CutMix ... (ResNet-50): that of the CutMix
# paper, with Nesterov's momentum as in its code. RM's own is imagenet_300e.py.
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4))
param_scheduler = dict(type='RMStepLR', warmup=0, milestones=[75, 150, 225], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# 4 x 64
auto_scale_lr = dict(base_batch_size=256)
