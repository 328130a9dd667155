"""What is found in a folder of images, how it is split, and the recipe that is chosen for it."""

import shutil

import pytest
from photographs import write_photographs

from mmrm.cli import new_config
from mmrm.cli.images import inspect_images
from mmrm.cli.new_config import choose_recipe, look_at, split_off, without_broken
from mmrm.datasets.images import Finding
from mmrm.utils.errors import UserFileError, UserValueError


@pytest.fixture
def folder(tmp_path):
    return write_photographs(tmp_path / 'shapes', 5, low=20, high=40)


def into_parts(folder, **numbers):
    """Move the first images of each class to ``train``, the next to ``val`` and so on."""
    classes = sorted(each for each in folder.iterdir() if each.is_dir())
    for part, number in numbers.items():
        for each in classes:
            (folder / part / each.name).mkdir(parents=True)
            for file in sorted(each.iterdir())[:number]:
                file.rename(folder / part / each.name / file.name)
    for each in classes:
        shutil.rmtree(each)


# ---------------------------------------------------------------------------------------------------------- the folder
def test_class_folders_are_classes_in_the_order_of_their_names(folder):
    found = look_at(folder)
    assert found.classes == ('circle', 'square', 'stripes') and list(found.parts) == ['train']
    assert found.count('train') == 15 and found.plain and not found.notes


@pytest.mark.parametrize(
    'names', [('train', 'val', 'test'), ('Training', 'valid', 'Test'), ('train', 'validation', 'test')]
)
def test_parts_go_by_several_names(folder, names):
    into_parts(folder, **dict(zip(names, (3, 1, 1))))
    found = look_at(folder)
    assert list(found.parts) == ['train', 'val', 'test'] and tuple(found.prefixes.values()) == names
    assert [found.count(part) for part in found.parts] == [9, 3, 3] and found.plain


def test_what_is_not_used_is_told(folder):
    (folder / '.git').mkdir()
    (folder / 'empty').mkdir()
    (folder / '__MACOSX').mkdir()
    shutil.copy(next((folder / 'circle').iterdir()), folder / 'loose.jpg')
    (folder / 'circle' / 'notes.txt').touch()
    (folder / 'circle' / '.hidden.jpg').touch()
    found = look_at(folder)
    assert found.classes == ('circle', 'square', 'stripes') and found.count('train') == 15
    told = '\n'.join(found.notes)
    assert 'empty has no images and is no class' in told and '1 images lie in' in told
    assert 'circle: 1 other files (.txt) are not used' in told
    assert not found.plain, 'a data set that lists folders would take empty and __MACOSX for classes'


@pytest.mark.parametrize('change,told', [('none', 'is not there'), ('file', 'is a file')])
def test_no_folder(tmp_path, change, told):
    (tmp_path / 'file').touch()
    with pytest.raises(UserFileError, match=told):
        look_at(tmp_path / change)


def test_images_without_class_folders(folder):
    with pytest.raises(UserFileError, match='put the images of each class into a folder of its own'):
        look_at(folder / 'circle')


def test_a_single_class(folder):
    shutil.rmtree(folder / 'circle')
    shutil.rmtree(folder / 'square')
    with pytest.raises(UserFileError, match='one class folder with images, stripes; two or more are needed'):
        look_at(folder)


def test_a_class_that_only_validation_has(folder):
    into_parts(folder, train=3, val=2)
    (folder / 'val' / 'circle').rename(folder / 'val' / 'circles')
    with pytest.raises(UserFileError, match=r'lacks: circles \(is circles meant to be circle\?\)'):
        look_at(folder)


def test_a_class_that_validation_lacks_keeps_its_label(folder):
    into_parts(folder, train=3, val=2)
    shutil.rmtree(folder / 'val' / 'circle')
    found = look_at(folder)
    assert any('val has no images of circle' in note for note in found.notes)
    assert not found.plain, 'folders alone would make square class 0 of the validation'


def test_broken_files_are_left_out(folder):
    first = next((folder / 'circle').iterdir())
    first.write_bytes(b'')
    found = look_at(folder)
    findings = inspect_images(found.files())
    whole = without_broken(found, findings)
    assert [finding.path for finding in findings if finding.problem] == [str(first)]
    assert whole.count('train') == 14 and str(first) not in whole.files() and not whole.plain


def test_a_class_of_broken_files(folder):
    for file in (folder / 'circle').iterdir():
        file.write_bytes(b'')
    found = look_at(folder)
    with pytest.raises(UserFileError, match='every training image of circle is broken'):
        without_broken(found, inspect_images(found.files()))


# ----------------------------------------------------------------------------------------------------------- the split
def test_each_class_gives_its_share_and_no_image_is_in_both(folder):
    split = split_off(look_at(folder), 0.4)
    for name in split.classes:
        train, val = set(split.parts['train'][name]), set(split.parts['val'][name])
        assert (len(train), len(val)) == (3, 2) and not train & val


def test_the_split_is_the_same_wherever_the_folder_is(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / 'elsewhere')
    assert split_off(look_at(folder), 0.2).parts == split_off(look_at(other), 0.2).parts


def test_an_image_that_is_added_moves_at_most_one_other(tmp_path):
    files = {'a': [f'a/{index}.jpg' for index in range(100)], 'b': ['b/0.jpg', 'b/1.jpg']}
    first = new_config.ImageFolder(tmp_path, ('a', 'b'), dict(train=files), dict(train=''), [])
    more = first._replace(parts=dict(train=dict(files, a=[*files['a'], 'a/new.jpg'])))
    before, after = (set(split_off(each, 0.2).parts['val']['a']) for each in (first, more))
    assert len(before - after) <= 1


def test_a_class_of_one_image_trains(tmp_path):
    files = {'a': ['a/0.jpg'], 'b': ['b/0.jpg', 'b/1.jpg']}
    split = split_off(new_config.ImageFolder(tmp_path, ('a', 'b'), dict(train=files), dict(train=''), []), 0.2)
    assert split.parts['train']['a'] == ['a/0.jpg'] and split.parts['val']['a'] == []
    assert 'a has a single image' in split.notes[0]


# ---------------------------------------------------------------------------------------------------------- the recipe
@pytest.mark.parametrize('images', [10, 100, 1000, 10_000, 1_000_000])
@pytest.mark.parametrize('scratch', [False, True])
def test_the_length_is_within_bounds_and_small_folders_have_small_batches(images, scratch):
    recipe = choose_recipe(images, 224, False, scratch)
    assert 8 <= recipe.batch <= 32
    assert (100 <= recipe.epochs <= 300) if scratch else (20 <= recipe.epochs <= 100)
    assert recipe.warmup < recipe.epochs


def test_the_learning_rate_goes_with_the_batch():
    small, large = choose_recipe(100, 224, False, False), choose_recipe(10_000, 224, False, False)
    assert small.lr / small.batch == pytest.approx(large.lr / large.batch, rel=0.01)


def test_the_network_goes_with_the_number_of_images():
    assert new_config.choose_network(None, 500, 224)[0] == 'resnet18'
    assert new_config.choose_network(None, 5000, 224)[0] == 'resnet50'


def test_small_images_have_a_small_input():
    assert new_config.choose_size([Finding('a', size=(32, 32))]) == 128
    assert new_config.choose_size([Finding('a', size=(500, 375)), Finding('b')]) == 224


@pytest.mark.parametrize(
    'name,told',
    [
        ('resnet5', 'Did you mean resnet50?'),
        ('timm/resnet5', 'has no model resnet5. Did you mean timm/resnet'),
        ('timm/vit_tiny_patch16_224', 'not in a map of channels first'),
        ('timm/vit_tiny_patch16_384', 'does not take images of 224 pixels'),
    ],
)
def test_a_network_that_is_none(name, told):
    pytest.importorskip('timm')
    with pytest.raises(UserValueError) as error:
        new_config.choose_network(name, 100, 224)
    assert told in str(error.value) and '\n' not in str(error.value)
