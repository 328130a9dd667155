"""Bases from other packages in configs."""

import importlib.util
import pkgutil
import subprocess
import sys

import pytest
from mmengine.config import Config

from mmrm.compat import scopes
from mmrm.utils import paths
from mmrm.utils.errors import UserFileError


def load(base: str, tmp_path) -> Config:
    (tmp_path / 'config.py').write_text(f"_base_ = ['{base}']\nextra = 1\n")
    return Config.fromfile(tmp_path / 'config.py')


@pytest.mark.parametrize(
    'base, model',
    [
        ('mmpretrain::resnet/resnet50_8xb32_in1k.py', 'ImageClassifier'),
        ('mmpretrain::_base_/models/resnet50.py', 'ImageClassifier'),
        ('mmdet::atss/atss_r50_fpn_1x_coco.py', 'ATSS'),
        ('mmdet::htc/htc_r50_fpn_1x_coco.py', 'HybridTaskCascade'),
        ('mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py', 'EncoderDecoder'),
        ('mmseg::_base_/models/upernet_r50.py', 'EncoderDecoder'),
    ],
)
def test_base_of_a_toolbox_loads(base, model, tmp_path):
    scope = base.partition(':')[0]
    if importlib.util.find_spec(scope) is None:
        pytest.skip(f'{scope} is not installed')
    cfg = load(base, tmp_path)
    assert cfg.model.type == model and cfg.extra == 1
    assert cfg.model._scope_ == scope  # so that a config of another toolbox builds it


def test_base_of_a_toolbox_that_is_missing_is_reported(tmp_path):
    with pytest.raises((FileNotFoundError, ModuleNotFoundError), match=r'nothing_like_it'):
        load('mmpretrain::resnet/nothing_like_it.py', tmp_path)
    with pytest.raises(AssertionError, match=r'mmnone'):
        load('mmnone::a/b.py', tmp_path)


def test_mmrms_own_configs_are_bases_too(tmp_path, monkeypatch):
    home = tmp_path / 'home'
    (home / 'configs' / 'rm').mkdir(parents=True)
    (home / 'configs' / 'rm' / 'net.py').write_text('model = dict(type="ImageClassifier", depth=50)\n')
    monkeypatch.setattr(paths, 'shipped', lambda: home)
    cfg = load('mmrm::rm/net.py', tmp_path)
    assert cfg.model == dict(type='ImageClassifier', depth=50)  # and no scope: mmrm has no registries
    with pytest.raises(UserFileError, match=r'none.py does not exist'):
        load('mmrm::rm/none.py', tmp_path)


def test_bases_work_without_pkg_resources(tmp_path):
    configs = dict(
        mmpretrain='resnet/resnet50_8xb32_in1k.py',
        mmdet='atss/atss_r50_fpn_1x_coco.py',
        mmseg='pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py',
    )
    bases = [f'{scope}::{name}' for scope, name in configs.items() if importlib.util.find_spec(scope)]
    code = f"""
import sys
sys.modules['pkg_resources'] = None  # as with setuptools 82: importing it fails
import mmrm.models
from mmengine.config import Config
from mmengine.utils import get_installed_path, is_installed
import mmpretrain
assert is_installed('mmpretrain') and is_installed('mmengine') and not is_installed('mmnone')
assert get_installed_path('mmpretrain') == mmpretrain.__path__[0]
for base in {bases!r}:
    open({str(tmp_path / 'config.py')!r}, 'w').write(f"_base_ = ['{{base}}']")
    assert Config.fromfile({str(tmp_path / 'config.py')!r}).model.type
"""
    subprocess.run([sys.executable, '-c', code], check=True)


def test_a_missing_find_loader_of_pkgutil_is_replaced(monkeypatch):
    monkeypatch.delattr(pkgutil, 'find_loader', raising=False)  # gone in Python 3.14
    monkeypatch.setattr(scopes, '_serve_own_configs', lambda: None)
    scopes.apply()
    assert pkgutil.find_loader('mmrm') is not None
    assert pkgutil.find_loader('mmnone') is None
    from mmengine.utils.dl_utils import mmcv_full_available

    assert mmcv_full_available() in (True, False)
    monkeypatch.undo()


def test_mmrm_needs_neither_mmdet_nor_mmseg():
    code = """
import sys
sys.modules['mmdet'] = sys.modules['mmseg'] = None  # importing them fails
import mmrm.models
from mmengine.config.utils import MODULE2PACKAGE
assert 'mmseg' in MODULE2PACKAGE
"""
    subprocess.run([sys.executable, '-c', code], check=True)


def test_applying_twice_changes_nothing():
    assert not scopes.needed()
