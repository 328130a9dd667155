"""Keys that are nearly what mmengine reads of a config are found; those that it reads are not."""

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
        ('optim_wraper.clip_grad.max_norm', 'optim_wraper', 'optim_wrapper'),
        ('auto_scale_lr.enabled', 'auto_scale_lr.enabled', 'auto_scale_lr.enable'),
        ('env_cfg.cudnn_benchmrk', 'env_cfg.cudnn_benchmrk', 'env_cfg.cudnn_benchmark'),
        ('default_hooks.chekpoint.interval', 'default_hooks.chekpoint', 'default_hooks.checkpoint'),
    ],
)
def test_a_misspelt_key_is_found_with_the_one_that_was_meant(config, key, wrong, meant, tmp_path):
    for file in (config, in_pure_python(write_run(tmp_path, images=0))):
        assert misspelt(Config.fromfile(file), key) == [(wrong, meant)]


KNOWN = """
    compile work_dir load_from find_unused_parameters default_hooks.checkpoint.out_dir default_hooks.sampler_seed.type
    env_cfg.mp_cfg.mp_start_method auto_scale_lr.enable model.head.omega train_cfg.val_begin randomness.diff_rank_seed
"""


def test_settings_that_mmengine_reads_are_fine(config):
    for key in KNOWN.split():
        cfg = Config.fromfile(config)
        assert misspelt(cfg, key) == [], key


def test_an_option_for_a_part_that_nothing_reads_is_a_warning(config, capsys, monkeypatch):
    monkeypatch.setattr(processes, '_warned', set())
    assert read_config(config, {'head.omega': 1, 'compile': False}).head.omega == 1
    assert capsys.readouterr().err.count('warning: ') == 1
    read_config(config, {'env_cfg.mpcfg': 1})
    assert 'nothing reads env_cfg.mpcfg. Did you mean env_cfg.mp_cfg?' in capsys.readouterr().err


def test_an_option_beside_a_preprocessor_that_is_in_the_model_is_refused(config, tmp_path):
    with pytest.raises(UserValueError, match=r'it is model.data_preprocessor.num_classes'):
        read_config(config, {'data_preprocessor.num_classes': 4})
    beside = write_run(tmp_path, images=0, more=BESIDE)
    with pytest.raises(UserValueError, match=r'it is data_preprocessor.num_classes'):
        read_config(beside, {'model.data_preprocessor.num_classes': 4})
    assert read_config(beside, {'data_preprocessor.num_classes': 4}).data_preprocessor.num_classes == 4
