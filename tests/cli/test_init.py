"""mmrm init: what it prints, what it writes, what it leaves alone; the config trains as it is."""

import importlib.util
import re
import shutil

import pytest
import torch
import torchvision
from mmengine.config import Config
from mmengine.device import utils as device_utils
from photographs import write_photographs

from mmrm import cli, weights
from mmrm.cli import test, train
from mmrm.utils import paths
from mmrm.utils.errors import UserFileError


@pytest.fixture(scope='module')
def photographs(tmp_path_factory):
    return write_photographs(tmp_path_factory.mktemp('photographs') / 'shapes', 5)


@pytest.fixture(scope='module')
def stand_in(tmp_path_factory):
    """Random weights in torchvision's layout, under the name that torchvision's have in torch's cache."""
    home = tmp_path_factory.mktemp('torch')
    file = home / 'hub' / 'checkpoints' / 'resnet18-f37072fd.pth'
    file.parent.mkdir(parents=True)
    torch.manual_seed(3)
    torch.save(torchvision.models.resnet18().state_dict(), file)
    return file


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, photographs):
    """The current folder, with the images in ``shapes``."""
    shutil.copytree(photographs, tmp_path / 'shapes')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, 'home', lambda: tmp_path)
    monkeypatch.setattr(device_utils, 'DEVICE', device_utils.DEVICE)
    for name, value in dict(MMRM_DEVICE='cpu', CUDA_VISIBLE_DEVICES='', LOCAL_RANK='0').items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.fixture
def init(capsys):
    """Run ``mmrm init shapes ...``: exit code, stdout, stderr."""

    def run(*argv, folder='shapes'):
        capsys.readouterr()
        code = 0
        try:
            cli.main(['init', folder, *map(str, argv)])
        except SystemExit as left:
            code = left.code
        return (code, *capsys.readouterr())

    return run


def test_a_folder_becomes_a_config_with_weights_and_lists(init, here, stand_in):
    (here / 'shapes' / 'circle' / 'zero.jpg').touch()
    code, told, _ = init('--weights', stand_in)
    assert code == 0, told
    assert f'broken      {here}/shapes/circle/zero.jpg is empty (0 bytes)' in told
    assert 'train       12 images: circle 4, square 4, stripes 4' in told and re.search(r'sizes +from \d+ x \d+', told)
    assert 'config      shapes.py: resnet18 from ' in told
    cfg = Config.fromfile('shapes.py')
    assert cfg.model.head.num_classes == cfg.model.data_preprocessor.num_classes == 3
    assert cfg.val_evaluator.topk == (1,) and cfg.model.init_cfg.type == 'StrictPretrained'
    assert cfg.model.head.type == 'RMConsistencyHead'
    assert cfg.model.data_preprocessor.batch_augments.augments.type == 'RecursiveMix'
    assert {hook.type for hook in cfg.custom_hooks} >= {'ResetHistoryHook', 'RandomStateHook'}
    lists = [(here / f'shapes_{part}.txt').read_text().splitlines() for part in ('train', 'val')]
    assert [len(lines) for lines in lists] == [12, 3] and not set(lists[0]) & set(lists[1])
    assert {line.rpartition(' ')[2] for line in lists[1]} == {'0', '1', '2'}
    assert 'zero.jpg' not in ''.join(map(''.join, lists))


def test_it_trains_tests_and_moves_as_it_is(init, here, tmp_path_factory, capsys):
    small = ('--network', 'timm/mobilenetv3_small_050') if importlib.util.find_spec('timm') else ()
    code, _, error = init('--weights', 'none', '--size', 64, '--epochs', 1, '--batch', 4, *small)
    assert code == 0, error
    elsewhere = tmp_path_factory.mktemp('moved')
    for path in here.iterdir():
        shutil.move(path, elsewhere / path.name)
    options = ('--cfg-options', *(f'{part}_dataloader.num_workers=0' for part in ('train', 'val', 'test')))
    train.main([str(elsewhere / 'shapes.py'), *options])
    work = here / 'work_dirs' / 'shapes'
    assert (work / 'epoch_1.pth').is_file(), 'in the current folder'
    assert 'loss_consistency' in next(work.glob('*/*.log')).read_text()
    test.main([str(elsewhere / 'shapes.py'), str(work), *options])
    assert 'accuracy/top1' in capsys.readouterr().out


def test_train_and_val_folders_are_read_as_they_are(init, here):
    for part, files in (('train', slice(0, 4)), ('val', slice(4, 5))):
        for kind in ('circle', 'square', 'stripes'):
            (here / 'parts' / part / kind).mkdir(parents=True)
            for file in sorted((here / 'shapes' / kind).iterdir())[files]:
                shutil.copy(file, here / 'parts' / part / kind)
    code, _, error = init('--weights', 'none', folder='parts')
    assert code == 0, error
    cfg = Config.fromfile('parts.py')
    assert (cfg.train_dataloader.dataset.data_prefix, cfg.val_dataloader.dataset.data_prefix) == ('train', 'val')
    assert not list(here.glob('*.txt'))
    assert cfg.model.init_cfg is None


def test_nothing_is_ever_written_over(init, here, stand_in):
    for name in ('shapes.py', 'shapes_val.txt'):
        (here / name).write_text('mine')
        code, _, error = init('--weights', stand_in)
        assert code == 2 and f'{name} exists and is left as it is' in error and error.count('error:') == 1
        assert (here / name).read_text() == 'mine'
        assert not any((here / other).exists() for other in ('shapes_train.txt', 'shapes_timm.pth'))
        (here / name).unlink()


def test_weights_that_do_not_fit_leave_nothing_behind(init, here, stand_in):
    code, _, error = init('--weights', stand_in, '--network', 'resnet50')
    assert code == 2 and 'no config was written' in error and 'looks like a ResNet-18' in error
    assert [path.name for path in here.iterdir()] == ['shapes']


def test_torchvisions_weights_come_from_the_cache(init, stand_in, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(stand_in.parents[2]))
    code, told, error = init()
    assert code == 0 and "from torchvision's weights" in told, error
    assert Config.fromfile('shapes.py').model.init_cfg.checkpoint == 'torchvision://resnet18'


def test_without_the_network_it_says_what_to_do(init, here, monkeypatch, tmp_path):
    def fail(*args):
        raise UserFileError('no route to host')

    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'none'))
    monkeypatch.setattr(weights.strict, 'fetch', fail)
    code, _, error = init()
    assert code == 2 and 'no route to host' in error and 'resnet18-f37072fd.pth' in error
    assert '--weights FILE' in error and '--weights none' in error
    assert not (here / 'shapes.py').exists()


def test_weights_of_timm(init, monkeypatch):
    timm = pytest.importorskip('timm')
    create = timm.create_model
    monkeypatch.setattr(
        timm, 'create_model', lambda model_name, pretrained=False, **more: create(model_name, **more)
    )  # offline
    code, told, error = init('--weights', 'timm')
    assert code == 0 and "resnet18 from timm's weights" in told and 'shapes_timm.pth' in told, error
    code, told, error = init('--network', 'timm/mobilenetv3_small_050', '--out', 'mobile.py')
    assert code == 0 and 'mobile_timm.pth' in told, error


def test_a_file_in_timms_layout_fills_timms_network(init, here):
    timm = pytest.importorskip('timm')
    torch.save(timm.create_model('mobilenetv3_small_050').state_dict(), here / 'theirs.pth')
    code, told, error = init('--network', 'timm/mobilenetv3_small_050', '--weights', 'theirs.pth')
    assert code == 0 and 'from theirs.pth' in told, error


def test_timm_that_cannot_fetch_is_one_line(init, monkeypatch):
    timm = pytest.importorskip('timm')
    create = timm.create_model

    def offline(name, pretrained=False, **more):
        if pretrained:
            raise OSError('the hub\ncannot be reached')
        return create(name, **more)

    monkeypatch.setattr(timm, 'create_model', offline)
    code, _, error = init('--weights', 'timm')
    assert code == 2 and error.count('\n') == 1 and 'the hub cannot be reached' in error and '--weights none' in error


@pytest.mark.parametrize(
    'argv,told',
    [
        (('--weights', 'nosuch.pth'), 'weights nosuch.pth do not exist'),
        (('--weights', 'torchvision', '--network', 'pvtv2-b1'), 'none for pvtv2-b1'),
        (('--network', 'resnet51'), 'Did you mean resnet50?'),
        (('--out', 'shapes.yml'), 'ends in .py'),
        (('--out', 'nosuch/shapes.py'), 'nosuch does not exist'),
        (('--val', '1'), "'1' is not a share above 0 and below 1"),
        (('--val', 'x'), "'x' is not a share above 0 and below 1"),
    ],
)
def test_a_mistake_is_one_line(init, here, argv, told):
    code, _, error = init(*argv)
    lines = [line for line in error.splitlines() if line.startswith('error')]
    assert code == 2 and len(lines) == 1 and told in lines[0]
    assert [path.name for path in here.iterdir()] == ['shapes']


# -------------------------------------------------------------------------------------------------------- check --data
def test_check_data_lists_what_is_broken_and_what_is_odd(init, here, capsys):
    from PIL import Image

    assert init('--weights', 'none')[0] == 0
    circle = sorted((here / 'shapes' / 'circle').iterdir())
    circle[0].write_bytes(circle[0].read_bytes()[:-400])
    circle[1].write_bytes(b'')
    Image.open(circle[2]).convert('CMYK').save(circle[2])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(['check', '--data', 'shapes.py'])
    told, error = capsys.readouterr()
    assert stop.value.code == 2 and 'error: 2 problem(s)' in error
    assert f'- {circle[0]} is cut short' in error and f'- {circle[1]} is empty' in error
    assert 'note        1 x CMYK: converted to RGB' in told and re.search(
        r'train data +12 images decoded, \d broken', told
    )
    for path in circle[:2]:
        shutil.copy(circle[3], path)
    cli.main(['check', '--data', 'shapes.py'])
    assert capsys.readouterr().out.endswith('ready\n')
