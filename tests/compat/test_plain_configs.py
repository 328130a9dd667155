"""Configs that are data: yaml, json, and the text inside a checkpoint."""

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.infer import BaseInferencer

from mmrm.utils.config import read_config
from mmrm.utils.errors import UserFileError
from mmrm.utils.paths import shipped
from mmrm.utils.trust import is_plain

TAG = '!!python/object/apply:os.mkdir'


def trap(folder):
    """yaml that creates a folder if it is executed, and that folder."""
    made = folder / 'made'
    return f'model:\n  type: A\n  trap: {TAG} [{made}]\n', made


@pytest.fixture(autouse=True)
def nothing_is_made(tmp_path):
    yield
    assert not (tmp_path / 'made').exists()


def test_the_trap_works_with_the_loader_that_mmengine_brings(tmp_path):
    import yaml

    text, made = trap(tmp_path)
    yaml.load(text, Loader=yaml.UnsafeLoader)
    assert made.exists()
    made.rmdir()


@pytest.mark.parametrize(
    'value',
    [
        '!!python/object/apply:os.system ["true"]',
        '!!python/name:os.system',
        '!!python/module:os',
        '!<tag:yaml.org,2002:python/name:os.system>',
        '!own 3',
    ],
)
def test_every_tag_that_is_not_plain_data_is_refused(value, tmp_path):
    text, config = f'fine: 1\nnested:\n  - {value}\n', tmp_path / 'config.yaml'
    config.write_text(text)
    for read in (Config.fromfile, read_config, lambda path: Config.fromstring(text, '.yaml')):
        with pytest.raises(UserFileError, match=r'line 3: !.* is not plain data'):
            read(config)


@pytest.mark.parametrize('top', ['top.yaml', 'top.json', 'top.py'])
def test_the_base_that_is_refused_is_named(top, tmp_path):
    (tmp_path / 'base.yaml').write_text(trap(tmp_path)[0])
    (tmp_path / top).write_text("_base_ = ['base.yaml']\n" if top == 'top.py' else '{"_base_": ["./base.yaml"]}')
    with pytest.raises(UserFileError, match=rf'^config {tmp_path}/base.yaml, line 3: {TAG}[^\n]*$'):
        read_config(tmp_path / top)


@pytest.mark.parametrize(
    'text',
    [
        'a0: &a0 [x, x]\n' + ''.join(f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 9)}]\n' for n in range(1, 9)),
        'a: &a [1, *a]\n',
    ],
)
def test_aliases_that_repeat_each_other_are_refused_at_once(text, tmp_path):
    """Expanded, the first file has a hundred million values; the second contains itself."""
    (tmp_path / 'config.yaml').write_text(text)
    with pytest.raises(UserFileError, match=r'config.yaml, line \d: .*more than 100,000 values'):
        read_config(tmp_path / 'config.yaml')


def test_plain_yaml_and_json_are_read_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv('MMRM_TEST_NAME', 'resnet')
    (tmp_path / 'base.yml').write_text('optimizer: &o {lr: 1.0e-3, flag: yes, none: ~, text: "é"}\nagain: *o\n')
    (tmp_path / 'middle.json').write_text('{"_base_": "./base.yml", "optimizer": {"lr": 0.1}, "model": {"type": "A"}}')
    (tmp_path / 'top.yaml').write_text(
        '_base_: [./middle.json]\nname: {{$MMRM_TEST_NAME:vgg}}\nlr: {{_base_.optimizer.lr}}\nsizes: [1, 2.5]\n'
        'date: 2024-01-31\nmodel: {_delete_: true, type: B}\n'
    )
    cfg = read_config(tmp_path / 'top.yaml')
    assert cfg.optimizer == dict(lr=0.1, flag=True, none=None, text='é') and cfg.again.lr == 1e-3
    assert (cfg.name, cfg.lr, cfg.sizes, str(cfg.date)) == ('resnet', 0.1, [1, 2.5], '2024-01-31')
    assert cfg.model == dict(type='B')


def test_yaml_of_mmengine_round_trips(tmp_path):
    cfg = Config.fromfile(shipped() / 'configs/rm/resnet18_2xb64_cifar10.py')
    cfg.betas = ((0.9, 0.999), [1, (2, 3)])
    assert is_plain(cfg.pretty_text)
    cfg.dump(tmp_path / 'dumped.yaml')
    assert '!!python/tuple' in (tmp_path / 'dumped.yaml').read_text()
    assert Config.fromfile(tmp_path / 'dumped.yaml').to_dict() == cfg.to_dict()


# ---------------------------------------------------------------------------------------------- a checkpoint's config
class Inferencer(BaseInferencer):
    """mmengine's way to a model; what comes after it is not of interest here."""

    def __init__(self):
        pass

    preprocess = visualize = postprocess = _init_pipeline = None


def checkpoint(folder, text, place='meta'):
    path = folder / 'weights.pth'
    held = dict(meta=dict(cfg=text)) if place == 'meta' else dict(message_hub=dict(runtime_info=dict(cfg=text)))
    torch.save(dict(held, state_dict={}), path)
    return str(path)


@pytest.mark.parametrize('place', ['meta', 'message_hub'])
@pytest.mark.parametrize(
    'code',
    [
        'open({made!r}, "w")',
        'model = dict(type="A", trap=open({made!r}, "w"))',
        'model = [open({made!r}, "w") for _ in "1"]',
        '_base_ = {made!r}',
        'dict = 1',
        'model = [\'{{{{$X:\\}}}}\', \',open("{made}","w"),#\']',
    ],
)
def test_code_in_a_checkpoints_config_is_not_executed(code, place, tmp_path):
    weights = checkpoint(tmp_path, code.format(made=str(tmp_path / 'made')), place)
    with pytest.raises(UserFileError, match='refused') as error:
        Inferencer()._init_model(ConfigDict(), weights, 'cpu')
    assert weights in str(error.value)


def test_python_config_of_the_user_is_executed():
    assert Config.fromstring('a = sum(range(4))', '.py').a == 6
