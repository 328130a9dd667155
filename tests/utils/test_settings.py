"""What decides a run's result: which settings count, and how two runs that differ are told apart."""

import pytest
from mmengine.config import Config
from tiny_run import BESIDE, in_pure_python, write_run

from mmrm.utils.settings import (
    describe_run,
    differences,
    fingerprint,
    parse_config,
    result_settings,
    resume_differences,
)


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp('run'), images=0)


def changed(config, **options):
    cfg = Config.fromfile(config)
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return cfg


def warnings_of(config, **options) -> list:
    old, new = Config.fromfile(config), changed(config, **options)
    return resume_differences(dict(mmrm_run=describe_run(old, 1), seed=0), new, 1)


NO_EFFECT = '(no effect: the value of the checkpoint stays)'


PIPELINE = [dict(type='LoadImageFromFile'), dict(type='Flip'), dict(type='PackInputs')]


@pytest.mark.parametrize(
    'key, value, line',
    [
        ('train_dataloader.batch_size', 4, '2 -> 4'),
        ('optim_wrapper.type', 'AmpOptimWrapper', 'optim_wrapper: OptimWrapper -> AmpOptimWrapper'),
        ('model.head.omega', 0.1, '0.5 -> 0.1'),
        ('model.data_preprocessor.batch_augments.augments.alpha', 0.3, '0.5 -> 0.3'),
        ('train_dataloader.dataset.pipeline', PIPELINE, 'LoadImageFromFile, PackInputs -> LoadImageFromFile, Flip, P'),
        ('custom_hooks', [dict(type='EMAHook')], 'custom_hooks: RandomStateHook, ResetHistoryHook -> EMAHook'),
        ('auto_scale_lr.enable', True, f'auto_scale_lr: None -> 4 {NO_EFFECT}'),
        ('optim_wrapper.optimizer.lr', 0.1, f'optim_wrapper.optimizer.lr: 0.01 -> 0.1 {NO_EFFECT}'),
        ('param_scheduler.factor', 0.5, f'param_scheduler.0.factor: 1.0 -> 0.5 {NO_EFFECT}'),
        ('randomness.seed', 7, f'seed: 0 -> 7 {NO_EFFECT}'),
        ('train_cfg.max_epochs', 9, None),
        ('train_cfg.val_interval', 2, None),
        ('train_dataloader.num_workers', 4, None),
        ('train_dataloader.dataset.data_root', '/elsewhere', None),
        ('val_dataloader.batch_size', 64, None),
        ('default_hooks.checkpoint.interval', 3, None),
        ('work_dir', '/elsewhere', None),
        ('val_dataloader', None, None),
        ('load_from', 'best.pth', None),  # a resumed run has its own
    ],
)
def test_a_setting_that_decides_is_listed_and_length_logging_workers_and_paths_are_not(config, key, value, line):
    found = warnings_of(config, **{key.replace('.', '__'): value})
    assert len(found) == (line is not None) and all(line in each for each in found)


def test_the_weights_that_a_model_began_with_are_no_drift(config):
    old, new = (
        changed(config, model__init_cfg=dict(type='Pretrained', checkpoint=file)) for file in ('a.pth', 'b.pth')
    )
    assert resume_differences(dict(mmrm_run=describe_run(old, 1)), new, 1) == []


def test_the_same_settings_written_otherwise_are_no_difference(config, tmp_path):
    """The preprocessor beside the model, a config in pure Python, and what that writes down."""
    beside = Config.fromfile(write_run(tmp_path, images=0, more=BESIDE))
    pure = Config.fromfile(in_pure_python(write_run(tmp_path, images=0)))
    for other in (beside, pure, parse_config(pure.pretty_text)):
        assert differences(result_settings(Config.fromfile(config)), result_settings(other)) == []


def test_a_checkpoint_of_mmengine_s_own_is_compared_by_the_config_that_it_holds(config):
    old = Config.fromfile(config)
    meta = dict(cfg=old.pretty_text, seed=0)
    assert resume_differences(meta, old, 8) == []
    assert resume_differences(dict(mmrm_run=describe_run(old, 2)), old, 1) == ['number of processes: 2 -> 1']
    assert resume_differences(meta, changed(config, model__head__omega=0.1), 8) == ['model.head.omega: 0.5 -> 0.1']
    assert resume_differences(dict(seed=0), old, 8) == []  # nothing to compare with


def test_the_config_in_a_checkpoint_is_read_and_never_run(tmp_path):
    text = f"a = __import__('os').mkdir('{tmp_path / 'made'}')\nb = dict({{'x.y': -1.5}}, c=[1, (2, 'z')], d=None)\n"
    assert parse_config(text)['b'] == {'x.y': -1.5, 'c': [1, (2, 'z')], 'd': None}
    assert not (tmp_path / 'made').exists()
    assert parse_config('a = (') is None


def test_a_fingerprint_stands_for_the_settings_that_decide_and_for_what_else_is_given(config):
    names = [
        fingerprint(changed(config, **options), seed)
        for options, seed in [
            ({}, 0),
            (dict(train_dataloader__dataset__data_root='/elsewhere', train_dataloader__num_workers=3), 0),
            ({}, 1),
            (dict(train_cfg__max_epochs=9), 0),
            (dict(model__head__omega=0.2), 0),
        ]
    ]
    assert names[0] == names[1] and len(set(names)) == 4 and len(names[0]) == 12


def test_other_initial_weights_are_a_difference_where_weights_count(config):
    old, new, resumed = (
        result_settings(changed(config, **options), length=True, weights=True)
        for options in ({}, dict(load_from='best.pth'), dict(load_from='epoch_3.pth', resume=True))
    )
    assert [str(each) for each in differences(old, new)] == ["load_from: None -> 'best.pth'"]
    assert differences(old, resumed) == []
