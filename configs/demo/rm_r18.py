"""The same pretraining with RecursiveMix."""
_base_ = ['./baseline_r18.py']

model = dict(
    data_preprocessor=dict(batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5))),
    neck=None,
    head=dict(type='RMConsistencyHead', omega=0.5))
custom_hooks = [dict(type='ResetHistoryHook'), dict(type='RandomStateHook')]
