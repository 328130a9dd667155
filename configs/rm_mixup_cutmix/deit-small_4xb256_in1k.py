# RM, Mixup and CutMix, one of them for each batch, equally often. Not measured.
_base_ = '../rm_recipes/deit-small_4xb256_in1k.py'

data_preprocessor = dict(batch_augments=dict(augments=[
    dict(type='RecursiveMix', alpha=0.5), dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
