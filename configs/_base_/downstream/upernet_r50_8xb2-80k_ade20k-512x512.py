"""UPerNet, ResNet-50, 80k iterations on crops of 512: 8 x 2 images, AdamW 1e-4, SyncBN. Measures mIoU, mAcc and aAcc."""
_base_ = ['mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)

# The plain stem (mmseg's own is ResNetV1c); the cell names the file.
model = dict(pretrained=None, init_cfg=dict(type='StrictPretrained'), backbone=dict(type='ResNet', init_cfg=None))

data_root = '{{$MMRM_DATA:data}}/ade/ADEChallengeData2016'
train_dataloader = dict(batch_size=2, dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(type='ClasswiseIoUMetric')
test_evaluator = val_evaluator

optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, weight_decay=1e-4))
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=0, begin=0, end=80000, by_epoch=False)]
auto_scale_lr = dict(enable=False, base_batch_size=16)
