"""ATSS, ResNet-50, 12 epochs: 8 x 2 images, SGD 0.01, as in mmdet. Measures box AP."""
_base_ = ['mmdet::atss/atss_r50_fpn_1x_coco.py']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)

# The cell names the file.
model = dict(init_cfg=dict(type='StrictPretrained'), backbone=dict(init_cfg=None))

data_root = '{{$MMRM_DATA:data}}/coco/'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json', classwise=True)
test_evaluator = val_evaluator
