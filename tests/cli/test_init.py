"""mmrm init: what it finds in a folder, the recipe it chooses, what it writes and never overwrites."""

import importlib.util
import re
import shutil

import pytest
import torch
import torchvision
from mmengine.config import Config
from photographs import write_photographs
from PIL import Image

from mmrm import cli
from mmrm.cli.check import inspect_images
from mmrm.cli.init import (
    ImageFolder,
    choose_network,
    choose_recipe,
    choose_size,
    read_folder,
    split_off,
    without_broken,
)
from mmrm.datasets.images import Finding
from mmrm.utils.errors import UserFileError, UserValueError

pytestmark = pytest.mark.usefixtures('environment')


@pytest.fixture(scope='module')
def photographs(tmp_path_factory):
    return write_photographs(tmp_path_factory.mktemp('photographs') / 'shapes', 5, low=60, high=120)


@pytest.fixture(scope='module')
def stand_in(tmp_path_factory):
    """Random weights in torchvision's layout, under the name that torchvision's have in torch's cache."""
    file = tmp_path_factory.mktemp('torch') / 'hub' / 'checkpoints' / 'resnet18-f37072fd.pth'
    file.parent.mkdir(parents=True)
    torch.save(torchvision.models.resnet18().state_dict(), file)
    return file


@pytest.fixture
def folder(tmp_path, photographs):
    return shutil.copytree(photographs, tmp_path / 'shapes')


@pytest.fixture
def here(folder, monkeypatch):
    """The current folder, with the images in ``shapes``."""
    monkeypatch.chdir(folder.parent)
    return folder.parent


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


def into_parts(folder, **numbers):
    """Move the first images of each class to ``train``, the next to ``val`` and so on."""
    classes = sorted(folder.iterdir())
    for part, number in numbers.items():
        for each in classes:
            (folder / part / each.name).mkdir(parents=True)
            for file in sorted(each.iterdir())[:number]:
                file.rename(folder / part / each.name / file.name)
    for each in classes:
        shutil.rmtree(each)


# ---------------------------------------------------------------------------------------------------------- the folder
def test_class_folders_are_classes_in_the_order_of_their_names(folder):
    found = read_folder(folder)
    assert found.classes == ('circle', 'square', 'stripes') and list(found.parts) == ['train']
    assert found.count('train') == 15 and found.as_it_is


def test_parts_have_several_names(folder):
    into_parts(folder, Training=3, valid=1, test=1)
    found = read_folder(folder)
    assert found.prefixes == dict(train='Training', val='valid', test='test')
    assert [found.count(part) for part in found.parts] == [9, 3, 3] and found.as_it_is


def test_unused_files_and_folders_are_listed(folder):
    for name in ('.git', 'empty', '__MACOSX'):
        (folder / name).mkdir()
    for name in ('circle/notes.txt', 'circle/.hidden.jpg', '__MACOSX/._1.jpg', '.git/1.jpg'):
        (folder / name).touch()
    found = read_folder(folder)
    assert found.classes == ('circle', 'square', 'stripes') and found.count('train') == 15
    assert found.notes == [
        '2 other files are not used: .git/1.jpg, circle/notes.txt',
        'folders without images are not classes: .git, __MACOSX, empty',
    ]
    assert not found.as_it_is, 'a data set that lists folders would take empty and __MACOSX for classes'


def test_folders_that_cannot_be_used_are_errors(folder):
    (folder.parent / 'file').touch()
    one = folder.parent / 'one'
    shutil.copytree(folder / 'circle', one / 'circle')
    for wrong, message in (
        (folder / 'none', 'does not exist'),
        (folder.parent / 'file', 'is a file'),
        (folder / 'circle', 'has 0 class folders .* two or more are needed, one per class'),
        (one, 'has 1 class folders .* two or more are needed'),
    ):
        with pytest.raises(UserFileError, match=message):
            read_folder(wrong)


def test_class_folder_named_train_is_explained(folder):
    (folder / 'circle').rename(folder / 'train')
    with pytest.raises(
        UserFileError, match=r'train holds the training images, square, stripes is not used .* --classes'
    ):
        read_folder(folder)
    assert read_folder(folder, only_classes=True).classes == ('square', 'stripes', 'train')


def test_classes_of_validation_are_those_of_training(folder):
    into_parts(folder, train=3, val=2)
    (folder / 'val' / 'circle').rename(folder / 'val' / 'circles')
    with pytest.raises(UserFileError, match='lacks: circles'):
        read_folder(folder)
    shutil.rmtree(folder / 'val' / 'circles')
    found = read_folder(folder)
    assert found.notes == ['val has no images of circle']
    assert not found.as_it_is, 'folders alone would make square class 0 of the validation'
    shutil.rmtree(folder / 'val')
    (folder / 'val').mkdir()
    assert list(read_folder(folder).parts) == ['train']


def test_broken_files_are_left_out(folder):
    circles = sorted((folder / 'circle').iterdir())
    circles[0].write_bytes(b'')
    found = read_folder(folder)
    broken = {finding.path for finding in inspect_images(found.files()) if finding.problem}
    complete = without_broken(found, broken)
    assert broken == {str(circles[0])} and complete.count('train') == 14
    assert str(circles[0]) not in complete.files() and not complete.as_it_is
    with pytest.raises(UserFileError, match='every training image of circle is broken'):
        without_broken(found, set(map(str, circles)))


def test_the_split_takes_a_share_of_each_class_and_hardly_moves_when_an_image_is_added(tmp_path):
    files = {'a': [f'a/{index}.jpg' for index in range(100)], 'b': ['b/0.jpg']}
    first = ImageFolder(tmp_path, ('a', 'b'), dict(train=files), dict(train=''), [])
    more = first._replace(root=tmp_path / 'b', parts=dict(train=dict(files, a=[*files['a'], 'a/new.jpg'])))
    before, after = (split_off(each, 0.2).parts for each in (first, more))
    assert sorted(before['train']['a'] + before['val']['a']) == sorted(files['a']) and len(before['val']['a']) == 20
    assert len(set(before['val']['a']) - set(after['val']['a'])) <= 1
    assert before['train']['b'] == ['b/0.jpg'] and before['val']['b'] == []


# ---------------------------------------------------------------------------------------------------------- the recipe
@pytest.mark.parametrize('scratch', [False, True])
def test_length_batch_and_learning_rate_depend_on_the_number_of_images(scratch):
    recipes = [choose_recipe(images, False, scratch, 'none') for images in (10, 100, 1000, 10_000, 1_000_000)]
    low, high = (100, 300) if scratch else (15, 100)
    for recipe in recipes:
        assert 8 <= recipe['batch'] <= 32 and low <= recipe['epochs'] <= high and recipe['warmup'] < recipe['epochs']
        assert recipe['lr'] / recipe['batch'] == pytest.approx(recipes[0]['lr'] / recipes[0]['batch'], rel=0.01)
    given = choose_recipe(100, False, scratch, 'none', batch=64, epochs=2)
    lr = float(f'{2 * recipes[-1]["lr"]:.3g}')
    assert given == dict(batch=64, epochs=2, warmup=1, lr=lr, tuned={}, studied=not scratch)


def test_network_and_size_depend_on_the_images():
    assert choose_network(None, 500, 224)[0] == 'resnet18' and choose_network(None, 5000, 224)[0] == 'resnet50'
    assert choose_size([Finding('a', size=(32, 32))]) == 128
    assert choose_size([Finding('a', size=(500, 375)), Finding('b')]) == 224


@pytest.mark.parametrize(
    'name, message',
    [
        ('timm/resnet5', 'has no model resnet5. Did you mean timm/resnet'),
        ('timm/swin_tiny_patch4_window7_224', 'not a map with channels first'),
        ('timm/vit_tiny_patch16_384', 'does not take images of 224 pixels'),
    ],
)
def test_networks_that_cannot_be_used_are_errors(name, message):
    pytest.importorskip('timm')
    with pytest.raises(UserValueError) as error:
        choose_network(name, 100, 224)
    assert message in str(error.value) and '\n' not in str(error.value)


# ---------------------------------------------------------------------------------------------------------- the command
def test_names_of_folders_and_files_do_not_reach_the_terminal_as_they_are(init, here, capsys):
    (here / 'shapes' / 'circle').rename(here / 'shapes' / 'circle\x1b[31m')
    (here / 'shapes' / 'square' / 'zero\x1b[2J.jpg').touch()
    code, out, err = init('--weights', 'none')
    assert code == 0 and 'circle\ufffd[31m' in out and 'zero\ufffd[2J.jpg is empty' in out and '\x1b' not in out + err
    cli.main(['check', 'shapes.py'])
    assert '\x1b' not in ''.join(capsys.readouterr())


def test_a_folder_becomes_a_config_with_weights_and_lists(init, here, stand_in, monkeypatch, capsys):
    (here / 'shapes' / 'circle' / 'zero.jpg').touch()
    monkeypatch.setenv('TORCH_HOME', str(stand_in.parents[2]))
    monkeypatch.setattr('mmrm.cli.init.cores', lambda: 2)
    code, out, error = init('--method', 'rm')
    assert code == 0, error
    assert re.search(r'time +about .* of training on cpu', out) and 'mmrm train shapes.py --device cpu' in out
    assert f'broken      {here}/shapes/circle/zero.jpg is empty (0 bytes)' in out
    assert 'train       12 images: circle 4, square 4, stripes 4' in out and re.search(r'sizes +from \d+ x \d+', out)
    assert 'config      shapes.py: resnet18 from torchvision://resnet18, rm, 128 pixels' in out
    cfg = Config.fromfile('shapes.py')
    assert cfg.train_dataloader.num_workers == 2
    assert cfg.model.init_cfg == dict(type='StrictPretrained', checkpoint='torchvision://resnet18')
    assert cfg.model.head.num_classes == cfg.model.data_preprocessor.num_classes == 3
    assert cfg.val_evaluator.topk == (1,) and cfg.model.head.type == 'RMConsistencyHead'
    assert cfg.model.data_preprocessor.batch_augments.augments.type == 'RecursiveMix' and cfg.model.head.omega == 0.5
    assert {hook.type for hook in cfg.custom_hooks} >= {'ResetHistoryHook', 'RandomStateHook'}
    lists = [(here / f'shapes_{part}.txt').read_text().splitlines() for part in ('train', 'val')]
    assert [len(lines) for lines in lists] == [12, 3] and not set(lists[0]) & set(lists[1])
    assert {line.rpartition(' ')[2] for line in lists[1]} == {'0', '1', '2'}
    assert 'zero.jpg' not in ''.join(map(''.join, lists))
    # check --data lists what is broken and what is unusual
    circle = sorted((here / 'shapes' / 'circle').glob('circle*'))
    circle[0].write_bytes(circle[0].read_bytes()[:-400])
    Image.open(circle[2]).convert('CMYK').save(circle[2])
    with pytest.raises(SystemExit) as stop:
        cli.main(['check', '--data', 'shapes.py'])
    out, error = capsys.readouterr()
    assert stop.value.code == 2 and f'error: 1 problem(s)\n- {circle[0]} is cut short' in error
    assert 'note        1 x CMYK: converted to RGB' in out
    assert re.search(r'train data +12 images decoded, \d broken', out)
    shutil.copy(circle[3], circle[0])
    cli.main(['check', '--data', 'shapes.py'])
    assert capsys.readouterr().out.endswith('ready\nnext        mmrm train shapes.py --device cpu\n')


def test_the_config_trains_and_tests_also_when_it_is_moved(init, here, tmp_path_factory, capsys):
    small = ('--network', 'timm/mobilenetv3_small_050') if importlib.util.find_spec('timm') else ()
    code, _, error = init('--weights', 'none', '--size', 64, '--epochs', 1, '--batch', 4, '--method', 'rm', *small)
    assert code == 0, error
    elsewhere = tmp_path_factory.mktemp('moved')
    for path in here.iterdir():
        shutil.move(path, elsewhere / path.name)
    options = ('--cfg-options', *(f'{part}_dataloader.num_workers=0' for part in ('train', 'val', 'test')))
    cli.main(['train', str(elsewhere / 'shapes.py'), *options])
    work = here / 'work_dirs' / 'shapes'
    assert (work / 'epoch_1.pth').is_file(), 'in the current folder'
    assert 'loss_consistency' in next(work.glob('*/*.log')).read_text()
    cli.main(['test', str(elsewhere / 'shapes.py'), str(work), *options])
    assert 'accuracy/top1' in capsys.readouterr().out


def test_train_and_val_folders_are_read_as_they_are(init, here, folder):
    into_parts(folder, train=4, val=1)
    code, _, error = init('--weights', 'none')
    assert code == 0, error
    cfg = Config.fromfile('shapes.py')
    assert cfg.model.data_preprocessor.batch_augments is None and cfg.model.head.omega == 0
    assert (cfg.train_dataloader.dataset.data_prefix, cfg.val_dataloader.dataset.data_prefix) == ('train', 'val')
    assert not list(here.glob('*.txt')) and cfg.model.init_cfg is None


def test_existing_files_are_never_overwritten(init, here, stand_in):
    for name in ('shapes.py', 'shapes_val.txt'):
        (here / name).write_text('mine')
        code, _, error = init('--weights', stand_in)
        assert code == 2 and f'{name} exists and is not overwritten' in error and error.count('error:') == 1
        assert (here / name).read_text() == 'mine' and not (here / 'shapes_train.txt').exists()
        (here / name).unlink()


def test_weights_that_do_not_fit_leave_no_files(init, here, stand_in):
    code, _, error = init('--weights', stand_in, '--network', 'resnet50')
    assert code == 2 and 'no config was written' in error and 'looks like ResNet(depth=18' in error
    assert [path.name for path in here.iterdir()] == ['shapes']


def test_weights_of_timm(init, here, monkeypatch):
    """Those of its hub (a stand-in, without the network), and a file in its layout."""
    timm = pytest.importorskip('timm')
    create = timm.create_model
    monkeypatch.setattr(timm, 'create_model', lambda model_name, pretrained=False, **more: create(model_name, **more))
    code, out, error = init('--weights', 'timm')
    assert code == 0 and f'resnet18 from {here}/shapes_timm.pth' in out, error
    torch.save(create('mobilenetv3_small_050').state_dict(), 'theirs.pth')
    code, out, error = init('--network', 'timm/mobilenetv3_small_050', '--weights', 'theirs.pth', '--out', 'mobile.py')
    assert code == 0 and 'files       mobile_timm.pth, mobile_train.txt' in out, error
    given = torch.load('theirs.pth').items()
    renamed = {f'{n}.{key.rpartition(".")[2]}': tensor for n, (key, tensor) in enumerate(given)}
    torch.save(renamed, 'renamed.pth')
    code, out, error = init('--network', 'timm/mobilenetv3_small_050', '--weights', 'renamed.pth', '--out', 'other.py')
    assert code == 0 and 'renamed.pth names its tensors differently; all' in out, error
    first, second = (torch.load(f'{name}_timm.pth') for name in ('mobile', 'other'))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    torch.save(dict(list(renamed.items())[1:]), 'fewer.pth')
    code, out, error = init('--network', 'timm/mobilenetv3_small_050', '--weights', 'fewer.pth', '--out', 'none.py')
    assert code == 2 and '--weights fewer.pth: ' in error and 'of the network are not in it: conv_stem.weight' in error
    argv = ('--network', 'timm/vit_tiny_patch16_224', '--size', 224, '--method', 'cutmix', '--out', 'vit.py')
    code, out, error = init(*argv)
    assert code == 0 and 'timm/vit_tiny_patch16_224 from' in out, error
    cfg = Config.fromfile('vit.py')
    assert cfg.model.backbone.features_only and cfg.model.head.in_channels == 192
    assert cfg.model.data_preprocessor.batch_augments.augments.type == 'CutMix' and cfg.model.head.omega == 0
    # what is named as in a checkpoint of mmrm's is used where it is
    (here / 'mobile.py').unlink()
    argv = ('--network', 'timm/mobilenetv3_small_050', '--weights', 'mobile_timm.pth', '--out', 'again.py')
    code, out, error = init(*argv)
    assert code == 0 and 'files       again_train.txt' in out, error


@pytest.mark.parametrize('source', ['torchvision', 'timm'])
def test_failed_weight_download_names_alternatives(init, here, monkeypatch, source):
    def offline(*args, **kwargs):
        raise UserFileError('no route to host')

    if source == 'timm':
        monkeypatch.setattr(pytest.importorskip('timm'), 'create_model', offline)
    monkeypatch.setenv('TORCH_HOME', str(here / 'none'))
    monkeypatch.setattr('mmrm.weights.download.fetch', offline)
    code, _, error = init('--weights', source)
    assert code == 2 and error.count('\n') == 1 and 'no route to host' in error
    assert '--weights FILE' in error and '--weights none' in error
    assert not (here / 'shapes.py').exists()


@pytest.mark.parametrize(
    'argv, message',
    [
        (('--weights', 'nosuch.pth'), 'weights nosuch.pth do not exist'),
        (('--weights', 'torchvision', '--network', 'pvtv2-b1'), 'none for pvtv2-b1'),
        (('--network', 'resnet51'), 'one of resnet18, resnet34, resnet50, resnet101, pvtv2-b1, or timm/NAME'),
        (('--out', 'shapes.yml'), 'must end in .py'),
        (('--val', '1'), "'1' is not a number above 0 and below 1"),
        (('--val', 'x'), "invalid fraction value: 'x'"),
    ],
)
def test_a_mistake_is_one_line(init, here, argv, message):
    code, _, error = init(*argv)
    lines = [line for line in error.splitlines() if line.startswith('error')]
    assert code == 2 and len(lines) == 1 and message in lines[0]
    assert [path.name for path in here.iterdir()] == ['shapes']
