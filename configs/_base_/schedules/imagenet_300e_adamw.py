optim_wrapper = dict(optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.999), weight_decay=5e-2))
# Chosen here, not published: 5 epochs of warm-up from 1e-6, and 1e-5 at the end. Written as factors of lr, so that
# scaling the learning rate scales them too.
param_scheduler = dict(type='RMCosineLR', warmup=5, start_factor=1e-6 / 5e-4, min_factor=1e-5 / 5e-4)
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# 8 x 64
auto_scale_lr = dict(base_batch_size=512)
