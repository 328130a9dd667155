"""Bases from other packages in configs."""

import pkgutil

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
        ('mmdet::htc/htc_r50_fpn_1x_coco.py', 'HybridTaskCascade'),
        ('mmseg::_base_/models/upernet_r50.py', 'EncoderDecoder'),
    ],
)
def test_base_of_a_toolbox_loads(base, model, tmp_path):
    scope = base.partition(':')[0]
    pytest.importorskip(scope)
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


def test_a_missing_find_loader_of_pkgutil_is_replaced(monkeypatch):
    monkeypatch.delattr(pkgutil, 'find_loader', raising=False)  # gone in Python 3.14
    monkeypatch.setattr(scopes, '_serve_own_configs', lambda: None)
    scopes.apply()
    assert pkgutil.find_loader('mmrm') is not None
    assert pkgutil.find_loader('mmnone') is None
    from mmengine.utils.dl_utils import mmcv_full_available

    assert mmcv_full_available() in (True, False)
    monkeypatch.undo()
    assert not scopes.needed()
