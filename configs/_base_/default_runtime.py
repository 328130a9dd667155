custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)
default_scope = 'mmpretrain'

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    # The best and the last epoch are kept. Two of the last, so that a kill while one is written leaves the other.
    checkpoint=dict(
        type='CheckpointHook', interval=1, max_keep_ckpts=2, save_best='accuracy/top1', rule='greater'),
    sampler_seed=dict(type='DistSamplerSeedHook'))

custom_hooks = [
    dict(type='CheckClassesHook'),
    dict(type='RandomStateHook'),
    # Does nothing where there is no RecursiveMix.
    dict(type='ResetHistoryHook'),
    # Does nothing where no batch augment needs the model.
    dict(type='BindAugmentsHook'),
]

env_cfg = dict(
    # On a GPU cuDNN times its algorithms once per size of input, and sizes are fixed in training. The choice may differ
    # between two runs: randomness.deterministic=True switches it off. More for a GPU: docs/speed.md.
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)

log_level = 'INFO'
# Means over the last ten iterations also of rm_lambda and rm_kl, which differ much from one iteration to the next.
log_processor = dict(mean_pattern=r'.*(loss|time|data_time|grad_norm|rm_).*')
load_from = None
resume = False
# A seed of its own for each process: each draws its own boxes.
randomness = dict(seed=0, diff_rank_seed=True, deterministic=False)
