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
from mmrm.utils.errors import UserFileError, UserTypeError, UserValueError
from mmrm.utils.paths import shipped
from mmrm.weights import registry


@pytest.fixture
def mine(tmp_path):
    """A list with one trained model of the user's, its files beside it."""
    run = write_run(tmp_path / 'river')
    weights = next(run.glob('best_*.pth'))
    Config(settings()).dump(tmp_path / 'river.py')
    row = dict(name='mine/river', config='river.py', weights=str(weights.relative_to(tmp_path)), top1=80.0)
    row['sha256'] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (tmp_path / 'models.json').write_text(json.dumps([row]))
    return tmp_path / 'models.json', row, weights


def test_every_shipped_config_is_a_model():
    names = mmrm.list_models()
    files = list((shipped() / 'configs').glob('[!_]*/*.py'))
    assert len(names) == len(files) and 'rm/resnet50_8xb64_in1k' in names and names == sorted(names)


@pytest.mark.parametrize(
    'pattern, found',
    [('rm/resnet50*', ['rm/resnet50_8xb64_in1k']), ('rm/resnet50', ['rm/resnet50_8xb64_in1k']), ('nothing*', [])],
)
def test_patterns(pattern, found):
    assert mmrm.list_models(pattern) == found


def test_shipped_weights_are_whole_and_belong_to_a_shipped_config():
    for entry in registry.read_list(registry.SHIPPED):
        assert registry.weights_file(entry).parent == registry.SHIPPED.parent
        assert mmrm.get_model(entry.name, pretrained=True) is not None


def test_a_model_that_is_added_to_the_package_appears(mine, tmp_path, monkeypatch):
    """A file and a row are all it takes."""
    monkeypatch.setattr(registry, 'SHIPPED', mine[0])
    assert 'mine/river' in mmrm.list_models(pretrained=True)
    assert mmrm.get_model('mine/river', pretrained=True) is not None


def test_listing_needs_no_openmmlab():
    code = (
        "import sys\nfor name in ('mmengine', 'mmcv', 'mmpretrain'): sys.modules[name] = None\n"
        "import mmrm\nassert 'RMConsistencyHead' not in mmrm.__all__\n"
        "assert 'mmrm.weights.registry' not in sys.modules\nprint(mmrm.list_models('rm/resnet50*'))"
    )
    hide = (
        'import importlib.util as u; f = u.find_spec\n'
        "gone = ('mmengine', 'mmcv', 'mmpretrain')\n"
        'u.find_spec = lambda name, *a: None if name in gone else f(name, *a)\n'
    )
    done = subprocess.run([sys.executable, '-c', hide + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['rm/resnet50_8xb64_in1k']"


def test_a_model_by_name_has_the_configs_network():
    model = mmrm.get_model('rm/resnet18-w16_2xb64_cifar10')
    assert not model.training and model.cfg.model.head.type == 'RMConsistencyHead'
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_every_process_of_a_node_gets_the_weights(monkeypatch):
    name = 'rm/resnet18-w16_1xb64_cifar10-250'
    first = mmrm.get_model(name, pretrained=True).state_dict()
    monkeypatch.setenv('LOCAL_RANK', '1')
    second = mmrm.get_model(name, pretrained=True).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first if 'fc_roi' not in key)


def test_a_deeper_network_is_not_taken_for_this_one(tmp_path):
    """All names and shapes of a ResNet-18 are in a ResNet-34."""
    name = 'rm/resnet18-w16_1xb64_cifar10-250'
    model = mmrm.get_model(name)
    state = dict(model.state_dict(), **{'auxiliary_head.conv.weight': torch.zeros(1)})  # a part that it lacks
    torch.save(dict(state_dict=state), tmp_path / 'more.pth')
    assert mmrm.get_model(name, pretrained=str(tmp_path / 'more.pth'))
    state['backbone.layer1.2.conv1.weight'] = torch.zeros(16, 16, 3, 3)
    torch.save(dict(state_dict=state), tmp_path / 'deeper.pth')
    with pytest.raises(UserFileError, match=r'1 weights are unknown \(backbone.layer1.2.conv1.weight\)'):
        mmrm.get_model(name, pretrained=str(tmp_path / 'deeper.pth'))


def test_ones_own_weights_come_by_name_from_a_list(mine, monkeypatch):
    file, _, weights = mine
    monkeypatch.setenv('MMRM_MODELS', str(file))
    shipped_names = [entry.name for entry in registry.read_list(registry.SHIPPED)]
    assert mmrm.list_models(pretrained=True) == sorted([*shipped_names, 'mine/river'])
    model = mmrm.get_model('mine/river', pretrained=True)
    saved = torch.load(weights, weights_only=False)['state_dict']
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    monkeypatch.delenv('MMRM_MODELS')
    assert 'mine/river' not in mmrm.list_models()
    assert mmrm.list_models('mine/*', registry=file) == ['mine/river']
    assert mmrm.get_model('mine/river', pretrained=weights.parent, registry=file) is not None


def test_a_list_in_yaml(mine, tmp_path):
    yaml = pytest.importorskip('yaml')
    (tmp_path / 'models.yml').write_text(yaml.safe_dump([mine[1]]))
    assert mmrm.list_models('mine', registry=tmp_path / 'models.yml') == ['mine/river']


def test_another_file_under_the_name_is_not_loaded(mine):
    file, _, weights = mine
    with open(weights, 'ab') as stream:
        stream.write(b' ')
    with pytest.raises(UserFileError, match=r'is not the file that .* lists for mine/river'):
        mmrm.get_model('mine/river', pretrained=True, registry=file)


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(sha256=''), 'sha256 must be given'),
        (dict(sha256='abc'), 'must be the 64 digits'),
        (dict(config=None), 'config must be given'),
        (dict(acuracy=3), 'acuracy is not known; allowed are name, config'),
    ],
)
def test_a_wrong_list_is_told(change, message, mine, tmp_path):
    (tmp_path / 'wrong.json').write_text(json.dumps([{**mine[1], **change}]))
    with pytest.raises(UserValueError, match=message):
        mmrm.list_models(registry=tmp_path / 'wrong.json')


def test_mistakes_in_names():
    with pytest.raises(UserValueError, match=r"no model 'rm/resnet50'.*rm/resnet50_8xb64_in1k"):
        mmrm.get_model('rm/resnet50')
    with pytest.raises(UserValueError, match='has no weights'):
        mmrm.get_model('rm/resnet50_8xb64_in1k', pretrained=True)
    with pytest.raises(UserFileError, match='does not exist'):
        mmrm.list_models(registry='nowhere.json')
    with pytest.raises(UserTypeError, match='pattern=3'):
        mmrm.list_models(3)
