"""Where a config, a run and a work dir are found, from any folder, in a checkout and from a wheel."""

import importlib.util
from pathlib import Path

import pytest

from mmrm.utils import paths
from mmrm.utils.errors import UserFileError

RM = 'rm/resnet50_8xb64_in1k.py'
IN_INDEX = 'rm_resnet50_8xb64_in1k'


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The current folder is an empty one of the user's."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_configs_of_other_packages_go_by_their_names():
    found = paths.find_config('mmpretrain::resnet/resnet50_8xb32_in1k.py')
    package = Path(importlib.util.find_spec('mmpretrain').origin).parent
    assert found.is_file() and package in found.parents


@pytest.mark.parametrize(
    'name, message',
    [
        ('nosuch::a.py', 'the package nosuch or its configs cannot be found'),
        ('mmpretrain::resnet/none.py', 'cannot be found'),
        ('mmrm::rm/resnet50_8xb64_in1.py', f'Did you mean mmrm::{RM}'),
        ('my_resnet5.py', r'Did you mean my_resnet50\.py'),  # the user's own first
        ('here/flower.py', r'Did you mean here/flowers\.py'),
    ],
)
def test_a_config_that_is_not_there_is_one_line_with_near_names(name, message, elsewhere):
    (elsewhere / 'here').mkdir()
    for own in ('my_resnet50.py', 'here/flowers.py'):
        (elsewhere / own).touch()
    with pytest.raises(UserFileError, match=f'^config {name}.*{message}'):
        paths.find_config(name)


def test_a_users_config_runs_in_the_current_folder_a_shipped_one_in_the_projects(elsewhere, monkeypatch):
    monkeypatch.setattr(paths, 'home', lambda: elsewhere / 'project')
    assert paths.default_work_dir(elsewhere / 'flowers.py') == elsewhere / 'work_dirs' / 'flowers'
    shipped = elsewhere / 'project' / 'configs' / 'rm' / 'a.py'
    assert paths.default_work_dir(shipped, 3) == elsewhere / 'project' / 'work_dirs' / 'rm' / 'a' / 'seed3'
    (elsewhere / 'configs' / 'rm').mkdir(parents=True)
    assert paths.default_work_dir('configs/rm/b.py') == elsewhere / 'work_dirs' / 'rm' / 'b'


@pytest.mark.parametrize('name', [f'mmrm::{RM}', f'configs/{RM}', IN_INDEX, f'{IN_INDEX}.py', f'mmrm::{IN_INDEX}'])
def test_a_shipped_config_has_several_names(name, elsewhere):
    assert paths.find_config(name) == paths.find_config(RM)
    (elsewhere / f'{IN_INDEX}.py').touch()  # a file of the user's goes first, but not behind the scope
    own = name == f'{IN_INDEX}.py'
    assert paths.find_config(name) == (elsewhere / f'{IN_INDEX}.py' if own else paths.find_config(RM))


def test_every_shipped_config_has_a_name_of_its_own():
    configs = sorted((paths.shipped() / 'configs').glob('[!_]*/*.py'))
    names = [f'{config.parent.name}_{config.stem}' for config in configs]
    assert len(set(names)) == len(names) > 100
    assert [paths.find_config(name) for name in names] == [config.resolve() for config in configs]
