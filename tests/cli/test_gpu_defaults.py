"""Defaults of a GPU: set where a config asks for them, never on the CPU, and never over what the config says."""

import pytest
import torch
from mmengine.config import Config

from mmrm.cli.gpu_defaults import set_gpu_defaults
from mmrm.utils.errors import UserValueError
from mmrm.utils.paths import find_config


def read(**changes):
    cfg = Config.fromfile(find_config('configs/rm/resnet50_8xb64_in1k.py'))
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in changes.items()})
    return cfg


def hooks(cfg):
    return [hook.type for hook in cfg.custom_hooks]


def test_the_cpu_is_left_alone():
    cfg, before = read(), read()
    set_gpu_defaults(cfg, 'cpu', amp=True)
    assert cfg.to_dict() == before.to_dict() and 'fused' not in cfg.optim_wrapper.optimizer


def test_a_gpu_gets_all_of_them():
    cfg = read()
    set_gpu_defaults(cfg, 'cuda', amp=True)
    assert hooks(cfg).count('ChannelsLastHook') == 1
    assert cfg.env_cfg.cudnn_benchmark is True and cfg.optim_wrapper.optimizer.fused is True
    set_gpu_defaults(cfg, 'cuda', amp=True)
    assert hooks(cfg).count('ChannelsLastHook') == 1
    settings = {key: value for key, value in cfg.optim_wrapper.optimizer.items() if key != 'type'}
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], **settings)  # torch takes it


def test_without_amp_the_layout_stays():
    cfg = read()
    set_gpu_defaults(cfg, 'cuda', amp=False)
    assert 'ChannelsLastHook' not in hooks(cfg)


@pytest.mark.parametrize('name', ['channels_last', 'cudnn_benchmark', 'fused'])
def test_each_has_a_switch(name):
    cfg = read(**{f'gpu_defaults__{name}': False})
    set_gpu_defaults(cfg, 'cuda', amp=True)
    assert ('ChannelsLastHook' in hooks(cfg)) == (name != 'channels_last')
    assert cfg.env_cfg.get('cudnn_benchmark', False) == (name != 'cudnn_benchmark')
    assert cfg.optim_wrapper.optimizer.get('fused', False) == (name != 'fused')


def test_what_the_config_says_stays():
    cfg = read(env_cfg__cudnn_benchmark=False, optim_wrapper__optimizer__foreach=True)
    set_gpu_defaults(cfg, 'cuda', amp=True)
    assert cfg.env_cfg.cudnn_benchmark is False and 'fused' not in cfg.optim_wrapper.optimizer
    cfg = read(randomness__deterministic=True)
    set_gpu_defaults(cfg, 'cuda', amp=True)
    assert not cfg.env_cfg.get('cudnn_benchmark')


@pytest.mark.parametrize('value', [dict(fast=True), dict(fused='yes')])
def test_a_bad_switch_is_named(value):
    cfg = read()
    cfg.gpu_defaults = value
    with pytest.raises(UserValueError, match='gpu_defaults'):
        set_gpu_defaults(cfg, 'cpu', amp=False)
