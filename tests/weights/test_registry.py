"""Models by name: the shipped configs, and those with shipped weights."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config
from zoo_run import settings, write_run

import mmrm
from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.utils.paths import shipped
from mmrm.weights import registry

RM = 'rm/resnet18-w16_1xb64_cifar10-250'


RESNET50 = 'rm/resnet50_8xb64_in1k'


def test_every_shipped_config_is_a_model():
    names = mmrm.list_models()
    assert len(names) == len(list((shipped() / 'configs').glob('[!_]*/*.py'))) and names == sorted(names)
    assert mmrm.list_models('rm/resnet50*') == mmrm.list_models('rm/resnet50') == [RESNET50]
    assert mmrm.list_models('nothing*') == []
    assert len(mmrm.list_models(pretrained=True)) == 3 and RM in mmrm.list_models('rm/*', pretrained=True)
    model = mmrm.get_model(f'{RM}.py')
    assert not model.training and model.cfg.model.head.type == 'RMConsistencyHead'
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_listing_needs_no_openmmlab():
    code = (
        'import importlib.util as u, sys\nfind = u.find_spec\n'
        "gone = ('mmengine', 'mmcv', 'mmpretrain')\n"
        'u.find_spec = lambda name, *a: None if name in gone else find(name, *a)\n'
        'for name in gone: sys.modules[name] = None\n'
        "import mmrm\nassert 'RMConsistencyHead' not in mmrm.__all__\n"
        "assert 'mmrm.weights.registry' not in sys.modules\nprint(mmrm.list_models('rm/resnet50*'))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout.strip() == "['rm/resnet50_8xb64_in1k']", done.stderr


def test_shipped_weights_are_complete_and_reach_every_process_of_a_node(monkeypatch):
    for name in mmrm.list_models(pretrained=True):
        first = mmrm.get_model(name, pretrained=True).state_dict()
    monkeypatch.setenv('LOCAL_RANK', '1')
    second = mmrm.get_model(name, pretrained=True).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first if 'fc_roi' not in key)
    for wrong, message in (('rm/resnet50', "no model 'rm/resnet50'.*" + RESNET50), (RESNET50, 'has no weights')):
        with pytest.raises(UserValueError, match=message):
            mmrm.get_model(wrong, pretrained=True)


def test_get_model_from_a_config_and_a_run(tmp_path):
    run = write_run(tmp_path / 'river')
    Config(settings()).dump(tmp_path / 'river.py')
    saved = torch.load(next(run.glob('best_*.pth')), weights_only=True)['state_dict']
    model = mmrm.get_model(tmp_path / 'river.py', pretrained=run)
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


def test_another_file_in_place_of_the_shipped_one_is_an_error(tmp_path, monkeypatch):
    shutil.copytree(registry.ZOO, tmp_path / 'zoo')
    rows = json.loads((tmp_path / 'zoo' / 'models.json').read_text())
    (tmp_path / 'zoo' / 'models.json').write_text(json.dumps([dict(row, sha256='0' * 64) for row in rows]))
    monkeypatch.setattr(registry, 'ZOO', tmp_path / 'zoo')
    with pytest.raises(UserFileError, match='is not the file that was shipped'):
        mmrm.get_model(RM, pretrained=True)
