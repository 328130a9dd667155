# RM in the place of the recipe's Mixup and CutMix. Not measured.
_base_ = ['mmpretrain::deit/deit-small_4xb256_in1k.py']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)

data_preprocessor = dict(
    type='RMDataPreprocessor', batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5)))
model = dict(
    backbone=dict(out_type='featmap'),
    neck=None,
    head=dict(type='RMConsistencyHead', omega=0.5))
custom_hooks = [dict(type='ResetHistoryHook'), dict(type='RandomStateHook')]
