"""Keys of a config that are nearly what a class reads are found; arguments of its classes are not."""

import pytest
from mmengine.config import Config
from tiny_run import BESIDE, in_pure_python, write_run

from mmrm.utils import processes
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserValueError
from mmrm.utils.options import misspelt_keys


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp('run'), images=0)


def misspelt(cfg, key):
    """What is found once an option is merged in: the key and what was meant."""
    cfg.merge_from_dict({key: 1})
    return list(misspelt_keys(cfg))


@pytest.mark.parametrize(
    'key, wrong, meant',
    [
        ('model.data_preprocesor.num_classes', 'model.data_preprocesor', 'model.data_preprocessor'),
        ('model.head.omga', 'model.head.omga', 'model.head.omega'),
        ('optim_wrapper.clip_gard.max_norm', 'optim_wrapper.clip_gard', 'optim_wrapper.clip_grad'),
        ('custom_hooks.0.prioritty', 'custom_hooks.0.prioritty', 'custom_hooks.0.priority'),
        ('env_cfg.cudnn_benchmrk', 'env_cfg.cudnn_benchmrk', 'env_cfg.cudnn_benchmark'),
        ('train_dataloader.dataset.indicess', 'train_dataloader.dataset.indicess', 'train_dataloader.dataset.indices'),
    ],
)
def test_a_misspelt_key_is_found_with_the_one_that_was_meant(config, key, wrong, meant, tmp_path):
    for file in (config, in_pure_python(write_run(tmp_path, images=0))):
        assert misspelt(Config.fromfile(file), key) == [(wrong, meant)]


KNOWN = """
    model.head.omega model.head.share_fc model.head.loss.type model.backbone.norm_cfg optim_wrapper.clip_grad.max_norm
    optim_wrapper.accumulative_counts optim_wrapper.loss_scale optim_wrapper.paramwise_cfg.norm_decay_mult
    optim_wrapper.optimizer.nesterov train_dataloader.persistent_workers train_dataloader.num_batch_per_epoch
    train_dataloader.dataset.metainfo.classes train_dataloader.dataset.indices
    train_dataloader.dataset.pipeline.0.to_float32 val_cfg.fp16 train_cfg.val_begin randomness.diff_rank_seed
    custom_hooks.0.priority custom_hooks.0._delete_ compile work_dir default_hooks.checkpoint.out_dir
    default_hooks.sampler_seed.type env_cfg.mp_cfg.mp_start_method load_from find_unused_parameters
    val_evaluator.prefix param_scheduler.end auto_scale_lr.enable
"""


def test_settings_of_the_config_and_arguments_of_its_classes_are_fine(config):
    for key in KNOWN.split():
        cfg = Config.fromfile(config)
        cfg.custom_hooks = [dict(type='EMAHook')]
        assert misspelt(cfg, key) == [], key


def test_an_option_for_a_part_that_nothing_reads_is_a_warning(config, capsys, monkeypatch):
    monkeypatch.setattr(processes, '_warned', set())
    assert read_config(config, {'head.omega': 1, 'compile': False}).head.omega == 1
    assert capsys.readouterr().err.count('warning: ') == 1
    read_config(config, {'model.head.omga': 1})
    assert 'nothing reads model.head.omga. Did you mean model.head.omega?' in capsys.readouterr().err


def test_an_option_beside_a_preprocessor_that_is_in_the_model_is_refused(config, tmp_path):
    with pytest.raises(UserValueError, match=r'it is model.data_preprocessor.num_classes'):
        read_config(config, {'data_preprocessor.num_classes': 4})
    beside = write_run(tmp_path, images=0, more=BESIDE)
    with pytest.raises(UserValueError, match=r'it is data_preprocessor.num_classes'):
        read_config(beside, {'model.data_preprocessor.num_classes': 4})
    assert read_config(beside, {'data_preprocessor.num_classes': 4}).data_preprocessor.num_classes == 4
