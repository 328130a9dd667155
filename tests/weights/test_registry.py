"""Models by name: the shipped configs, the shipped weights, and a list of the user's own."""

import hashlib
import json
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


@pytest.fixture(scope='module')
def mine(tmp_path_factory):
    """A list with one trained model of the user's, its files next to it."""
    folder = tmp_path_factory.mktemp('models')
    weights = next(write_run(folder / 'river').glob('best_*.pth'))
    Config(settings()).dump(folder / 'river.py')
    row = dict(name='mine/river', config='river.py', weights=str(weights.relative_to(folder)), top1=80.0)
    row['sha256'] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / 'models.json').write_text(json.dumps([row]))
    return folder / 'models.json', row, weights


def test_every_shipped_config_is_a_model():
    names = mmrm.list_models()
    assert len(names) == len(list((shipped() / 'configs').glob('[!_]*/*.py'))) and names == sorted(names)
    assert mmrm.list_models('rm/resnet50*') == mmrm.list_models('rm/resnet50') == ['rm/resnet50_8xb64_in1k']
    assert mmrm.list_models('nothing*') == []


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


def test_a_model_by_name_has_the_configs_network_in_eval_mode():
    model = mmrm.get_model(RM)
    assert not model.training and model.cfg.model.head.type == 'RMConsistencyHead'
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_shipped_weights_are_complete_and_reach_every_process_of_a_node(monkeypatch):
    for entry in registry.read_list(registry.SHIPPED):
        assert registry.weights_file(entry).parent == registry.SHIPPED.parent
        first = mmrm.get_model(entry.name, pretrained=True).state_dict()
    monkeypatch.setenv('LOCAL_RANK', '1')
    second = mmrm.get_model(entry.name, pretrained=True).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first if 'fc_roi' not in key)


@pytest.mark.parametrize('door', ['variable', 'argument', 'package', 'yaml'])
def test_ones_own_weights_come_by_name_from_a_list(door, mine, tmp_path, monkeypatch):
    file, row, weights = mine
    arguments = {}
    if door == 'variable':
        monkeypatch.setenv('MMRM_MODELS', str(file))
    elif door == 'package':  # a file and a row are all it takes to ship a model
        monkeypatch.setattr(registry, 'SHIPPED', file)
    elif door == 'argument':
        arguments = dict(registry=file)
    else:
        yaml = pytest.importorskip('yaml')
        arguments = dict(registry=tmp_path / 'models.yml')
        paths = {key: str(file.parent / row[key]) for key in ('config', 'weights')}
        arguments['registry'].write_text(yaml.safe_dump([{**row, **paths}]))
    assert mmrm.list_models('mine', pretrained=True, **arguments) == ['mine/river']
    saved = torch.load(weights, weights_only=False)['state_dict']
    for pretrained in (True, weights.parent):
        model = mmrm.get_model('mine/river', pretrained=pretrained, **arguments)
        assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    monkeypatch.undo()
    assert 'mine/river' not in mmrm.list_models()


def test_a_wrong_list_and_another_file_under_the_name_are_errors(mine, tmp_path):
    file, row, _ = mine
    paths = {key: str(file.parent / row[key]) for key in ('config', 'weights')}
    wrong = tmp_path / 'models.json'
    wrong.write_text(json.dumps([{**row, **paths, 'sha256': '0' * 64}]))
    with pytest.raises(UserFileError, match=r'is not the file that .* lists for mine/river'):
        mmrm.get_model('mine/river', pretrained=True, registry=wrong)
    for content, message in (([{**row, 'config': None}], 'model 1: config must be given'), ({}, 'must be a list')):
        wrong.write_text(json.dumps(content))
        with pytest.raises(UserValueError, match=message):
            mmrm.list_models(registry=wrong)


def test_mistakes_in_names(tmp_path):
    with pytest.raises(UserValueError, match=r"no model 'rm/resnet50'.*rm/resnet50_8xb64_in1k"):
        mmrm.get_model('rm/resnet50')
    with pytest.raises(UserValueError, match='has no weights'):
        mmrm.get_model('rm/resnet50_8xb64_in1k', pretrained=True)
    for name, content, message in (
        ('no.json', None, 'does not exist'),
        ('a.txt', '', 'must end in'),
        ('b.json', '{', 'cannot be read'),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(UserFileError, match=message):
            mmrm.list_models(registry=tmp_path / name)
