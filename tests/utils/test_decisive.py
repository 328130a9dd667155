"""What decides a run's result: which settings count, and how two runs that differ are told apart."""

import pytest
from mmengine.config import Config
from tiny_run import BESIDE, in_pure_python, write_run

from mmrm.experiments import jobs
from mmrm.utils.decisive import SECTIONS, decisive_settings, describe_run, differences, drift, parse_settings


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp('run'), images=0)


def changed(config, **options):
    cfg = Config.fromfile(config)
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return cfg


def told(config, **options) -> list:
    old, new = Config.fromfile(config), changed(config, **options)
    return drift(dict(mmrm_run=describe_run(old, 1), seed=0), new, 1)


@pytest.mark.parametrize(
    'key, value, line',
    [
        ('train_dataloader.batch_size', 4, 'train_dataloader.batch_size: 2 -> 4'),
        ('optim_wrapper.accumulative_counts', 2, 'optim_wrapper.accumulative_counts: None -> 2'),
        ('optim_wrapper.type', 'AmpOptimWrapper', 'optim_wrapper: OptimWrapper -> AmpOptimWrapper'),
        ('model.head.omega', 0.1, 'model.head.omega: 0.5 -> 0.1'),
        ('model.head.loss', dict(type='LabelSmoothLoss'), 'model.head.loss: None -> LabelSmoothLoss'),
        ('model.backbone.depth', 34, 'model.backbone.depth: 18 -> 34'),
        (
            'model.data_preprocessor.batch_augments.augments.alpha',
            0.3,
            'data_preprocessor.batch_augments.augments.alpha: 0.5 -> 0.3',
        ),
        (
            'train_dataloader.dataset.pipeline',
            [dict(type='LoadImageFromFile'), dict(type='Flip'), dict(type='PackInputs')],
            'train_dataloader.dataset.pipeline: LoadImageFromFile, PackInputs -> LoadImageFromFile, Flip, PackInputs',
        ),
        (
            'custom_hooks',
            [dict(type='RandomStateHook')],
            'custom_hooks: RandomStateHook, ResetHistoryHook -> RandomStateHook',
        ),
        ('randomness.diff_rank_seed', True, 'randomness.diff_rank_seed: None -> True'),
        ('auto_scale_lr.enable', True, 'auto_scale_lr: None -> 4 (no effect: the value of the checkpoint stays)'),
        (
            'optim_wrapper.optimizer.lr',
            0.1,
            'optim_wrapper.optimizer.lr: 0.01 -> 0.1 (no effect: the value of the checkpoint stays)',
        ),
        (
            'param_scheduler.factor',
            0.5,
            'param_scheduler.0.factor: 1.0 -> 0.5 (no effect: the value of the checkpoint stays)',
        ),
        ('randomness.seed', 7, 'seed: 0 -> 7 (no effect: the value of the checkpoint stays)'),
    ],
)
def test_a_setting_that_decides_is_told_with_both_values(config, key, value, line):
    assert told(config, **{key.replace('.', '__'): value}) == [line]


@pytest.mark.parametrize(
    'key, value',
    [
        ('train_cfg.max_epochs', 9),
        ('train_cfg.val_interval', 2),
        ('train_dataloader.num_workers', 4),
        ('train_dataloader.pin_memory', True),
        ('train_dataloader.dataset.data_root', '/elsewhere'),
        ('val_dataloader.batch_size', 64),
        ('default_hooks.logger.interval', 50),
        ('visualizer', dict(type='Visualizer')),
        ('default_hooks.checkpoint.interval', 3),
        ('log_processor.window_size', 9),
        ('work_dir', '/elsewhere'),
        ('val_dataloader', None),
        ('val_cfg', None),
        ('model.init_cfg', dict(checkpoint='a.pth')),
    ],
)
def test_length_logging_workers_paths_and_intervals_are_no_drift(config, key, value):
    if key == 'model.init_cfg':
        old = changed(config, model__init_cfg=dict(type='Pretrained', checkpoint='b.pth'))
        new = changed(config, model__init_cfg=dict(type='Pretrained', checkpoint='a.pth'))
        assert drift(dict(mmrm_run=describe_run(old, 1)), new, 1) == []
    else:
        assert told(config, **{key.replace('.', '__'): value}) == []


def test_the_place_of_the_preprocessor_is_no_difference(config, tmp_path):
    beside = write_run(tmp_path, images=0, more=BESIDE)
    assert differences(*(decisive_settings(Config.fromfile(path)) for path in (config, beside))) == []


def test_the_number_of_processes_is_told(config):
    cfg = Config.fromfile(config)
    assert drift(dict(mmrm_run=describe_run(cfg, 2)), cfg, 1) == ['number of processes: 2 -> 1']


def test_a_checkpoint_of_mmengine_s_own_is_compared_by_the_config_that_it_holds(config):
    old = Config.fromfile(config)
    meta = dict(cfg=old.pretty_text, seed=0)
    assert drift(meta, old, 8) == []
    assert drift(meta, changed(config, model__head__omega=0.1), 8) == ['model.head.omega: 0.5 -> 0.1']
    assert drift(dict(seed=0), old, 8) == []  # nothing to compare with


def test_the_config_in_a_checkpoint_is_read_and_never_run(tmp_path):
    text = f"a = __import__('os').mkdir('{tmp_path / 'made'}')\nb = dict({{'x.y': -1.5}}, c=[1, (2, 'z')], d=None)\n"
    assert parse_settings(text)['b'] == {'x.y': -1.5, 'c': [1, [2, 'z']], 'd': None}
    assert not (tmp_path / 'made').exists()
    assert parse_settings('a = (') is None


def test_a_config_in_pure_python_has_the_same_settings(config, tmp_path):
    pure = Config.fromfile(in_pure_python(write_run(tmp_path, images=0)))
    assert differences(decisive_settings(Config.fromfile(config)), decisive_settings(pure)) == []
    assert differences(decisive_settings(parse_settings(pure.pretty_text)), decisive_settings(pure)) == []


def test_there_is_one_list_of_what_decides():
    assert set(jobs.DECISIVE) < set(SECTIONS)


def test_other_weights_to_begin_from_are_told_where_weights_count(config):
    old, new, resumed = (
        decisive_settings(changed(config, **options), length=True, weights=True)
        for options in ({}, dict(load_from='best.pth'), dict(load_from='epoch_3.pth', resume=True))
    )
    assert [str(each) for each in differences(old, new)] == ["load_from: None -> 'best.pth'"]
    assert differences(old, resumed) == []
    assert told(config, load_from='best.pth') == []  # a resumed run has its own
