# 250 images of each class to train on, all 10,000 test images to test on.
_base_ = './cifar10_bs64.py'

# Loaded by the process that trains: these runs stand side by side, one per core.
train_dataloader = dict(
    num_workers=0, persistent_workers=False, drop_last=True, dataset=dict(per_class=(0, 250)))
val_dataloader = dict(batch_size=250, num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
