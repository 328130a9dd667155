# RM in the place of the recipe's Mixup and CutMix. Not measured.
_base_ = ['mmpretrain::convnext/convnext-tiny_32xb128_in1k.py']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)

data_preprocessor = dict(
    type='RMDataPreprocessor', batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5)))
model = dict(
    backbone=dict(gap_before_final_norm=False),
    neck=None,
    head=dict(type='RMConsistencyHead', omega=0.5))
custom_hooks = [*_base_.custom_hooks, dict(type='ResetHistoryHook'), dict(type='RandomStateHook')]
