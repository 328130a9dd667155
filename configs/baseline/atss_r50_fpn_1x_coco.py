_base_ = ['../_base_/downstream/atss_r50_fpn_1x_coco.py']
# The 300-epoch baseline instead: MMRM_BACKBONE=work_dirs/baseline/resnet50_8xb64_in1k
model = dict(init_cfg=dict(checkpoint='{{$MMRM_BACKBONE:torchvision://resnet50}}'))
