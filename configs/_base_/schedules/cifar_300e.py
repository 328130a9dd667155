optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.25, momentum=0.9, nesterov=True, weight_decay=1e-4))
param_scheduler = dict(type='RMStepLR', warmup=5, milestones=[150, 225], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# 64 in total
auto_scale_lr = dict(base_batch_size=64)
