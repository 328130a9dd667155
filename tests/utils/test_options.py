"""--cfg-options that a config does not know are told with the nearest one it does; arguments of its classes are not."""

import pytest
from mmengine.config import Config
from tiny_run import BESIDE, in_pure_python, write_run

from mmrm.utils.config import read_config
from mmrm.utils.errors import UserValueError
from mmrm.utils.options import unknown_options


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp('run'), images=0)


ALPHA = 'model.data_preprocessor.batch_augments.augments.alpha'


@pytest.mark.parametrize(
    'key, new, nearest',
    [
        ('model.data_preprocesor.batch_augments.augments.alpha', 'model.data_preprocesor', ALPHA),
        ('model.head.omga', 'model.head.omga', 'model.head.omega'),
        ('head.omega', 'head', 'model.head.omega'),
        ('optim_wrapper.clip_gard.max_norm', 'optim_wrapper.clip_gard', 'optim_wrapper.clip_grad.max_norm'),
        ('custom_hooks.0.prioritty', 'custom_hooks.0.prioritty', 'custom_hooks.0.priority'),
        ('env_cfg.cudnn_benchmrk', 'env_cfg.cudnn_benchmrk', 'env_cfg.cudnn_benchmark'),
        ('nothing.like.it', 'nothing', None),
    ],
)
def test_a_key_that_nothing_knows_is_told_with_the_nearest_one(config, key, new, nearest):
    (line,) = unknown_options(Config.fromfile(config), {key: 1})
    assert f'has no {new}. ' in line and line.endswith(f'Did you mean {nearest}?' if nearest else 'reads it.')


KNOWN = """
    model.head.omega model.head.share_fc model.head.loss.type model.backbone.norm_cfg optim_wrapper.clip_grad.max_norm
    optim_wrapper.accumulative_counts optim_wrapper.loss_scale optim_wrapper.paramwise_cfg.norm_decay_mult
    optim_wrapper.optimizer.nesterov train_dataloader.persistent_workers train_dataloader.num_batch_per_epoch
    train_dataloader.dataset.metainfo.classes train_dataloader.dataset.indices
    train_dataloader.dataset.pipeline.0.to_float32 val_cfg.fp16 train_cfg.val_begin randomness.diff_rank_seed
    custom_hooks.0.priority custom_hooks.0._delete_ compile work_dir default_hooks.checkpoint.out_dir
    default_hooks.sampler_seed.type env_cfg.mp_cfg.mp_start_method load_from find_unused_parameters
    val_evaluator.prefix param_scheduler.end auto_scale_lr.enable custom_hooks.9.type
"""


@pytest.mark.parametrize('key', KNOWN.split())
def test_settings_of_the_config_and_arguments_of_its_classes_are_not_told(config, key):
    assert unknown_options(Config.fromfile(config), {key: 1}) == []


def test_a_config_in_pure_python_is_understood(tmp_path):
    cfg = Config.fromfile(in_pure_python(write_run(tmp_path, images=0)))
    assert unknown_options(cfg, {'model.head.share_fc': True}) == []
    assert unknown_options(cfg, {'model.head.omga': 1})[0].endswith('mean model.head.omega?')


def test_parts_that_no_class_describes_are_told_only_where_a_name_is_near(tmp_path):
    cfg = Config(dict(model=dict(train_cfg=dict(rpn=dict(pos_weight=-1))), default_scope='mmdet'))
    assert unknown_options(cfg, {'model.train_cfg.rpn.debug': False}) == []
    (line,) = unknown_options(cfg, {'model.train_cfg.rpn.pos_weigth': 1})
    assert line.endswith('Did you mean model.train_cfg.rpn.pos_weight?')


def test_an_option_beside_a_preprocessor_that_is_in_the_model_is_refused(config, tmp_path):
    with pytest.raises(UserValueError, match=r'it is model.data_preprocessor.num_classes'):
        read_config(config, {'data_preprocessor.num_classes': 4})
    beside = write_run(tmp_path, images=0, more=BESIDE)
    with pytest.raises(UserValueError, match=r'it is data_preprocessor.num_classes'):
        read_config(beside, {'model.data_preprocessor.num_classes': 4})
    assert read_config(beside, {'data_preprocessor.num_classes': 4}).data_preprocessor.num_classes == 4
