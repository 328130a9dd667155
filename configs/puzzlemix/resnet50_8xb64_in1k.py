_base_ = '../baseline/resnet50_8xb64_in1k.py'

# Needs gco-wrapper: pip install "mmrm[puzzlemix]", Python 3.11 or earlier.
model = dict(data_preprocessor=dict(batch_augments=dict(augments=dict(type='PuzzleMix', alpha=1.0))))
