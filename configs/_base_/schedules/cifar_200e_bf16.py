# The schedule of cifar_200e.py for one process with 64 images, in bfloat16; tested every ten epochs.
optim_wrapper = dict(
    type='BFloat16OptimWrapper', optimizer=dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=5e-4))
param_scheduler = dict(type='RMCosineLR', warmup=5)
train_cfg = dict(by_epoch=True, max_epochs=200, val_interval=10)
val_cfg = dict(fp16=True)  # on the CPU mmengine makes it bfloat16
test_cfg = dict(fp16=True)

auto_scale_lr = dict(base_batch_size=64)
