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


def test_the_name_of_base_names_a_config_on_the_command_line_too():
    assert paths.find_config(f'mmrm::{RM}') == paths.find_config(f'configs/{RM}') == paths.find_config(RM)


def test_configs_of_other_packages_go_by_their_names():
    found = paths.find_config('mmpretrain::resnet/resnet50_8xb32_in1k.py')
    package = Path(importlib.util.find_spec('mmpretrain').origin).parent
    assert found.is_file() and package in found.parents


@pytest.mark.parametrize('name', ['nosuch::a.py', 'mmpretrain::resnet/none.py'])
def test_a_package_or_config_that_is_not_there_is_one_line(name):
    with pytest.raises(UserFileError, match=f'^config {name}') as told:
        paths.find_config(name)
    assert '\n' not in str(told.value)


def test_a_name_behind_the_scope_is_never_the_users_file(elsewhere):
    (elsewhere / 'own.py').touch()
    with pytest.raises(UserFileError, match=r'config mmrm::own\.py does not exist'):
        paths.find_config('mmrm::own.py')


def test_a_mistyped_scoped_name_is_answered_with_one():
    with pytest.raises(UserFileError, match=f'Did you mean mmrm::{RM}'):
        paths.find_config('mmrm::rm/resnet50_8xb64_in1.py')


def test_the_users_own_configs_are_suggested_first(elsewhere):
    (elsewhere / 'my_resnet50.py').touch()
    with pytest.raises(UserFileError, match=r'Did you mean my_resnet50\.py'):
        paths.find_config('my_resnet5.py')
    (elsewhere / 'here').mkdir()
    (elsewhere / 'here' / 'flowers.py').touch()
    with pytest.raises(UserFileError, match=r'Did you mean here/flowers\.py'):
        paths.find_config('here/flower.py')


def test_a_users_config_runs_in_the_current_folder_a_shipped_one_in_the_projects(elsewhere, monkeypatch):
    monkeypatch.setattr(paths, 'home', lambda: elsewhere / 'project')
    assert paths.default_work_dir(elsewhere / 'flowers.py') == elsewhere / 'work_dirs' / 'flowers'
    shipped = elsewhere / 'project' / 'configs' / 'rm' / 'a.py'
    assert paths.default_work_dir(shipped, 3) == elsewhere / 'project' / 'work_dirs' / 'rm' / 'a' / 'seed3'
    (elsewhere / 'configs' / 'rm').mkdir(parents=True)
    assert paths.default_work_dir('configs/rm/b.py') == elsewhere / 'work_dirs' / 'rm' / 'b'


@pytest.mark.parametrize(
    'name', ['rm_resnet50_8xb64_in1k', 'rm_resnet50_8xb64_in1k.py', 'mmrm::rm_resnet50_8xb64_in1k']
)
def test_the_name_in_the_model_index_names_a_config(name):
    assert paths.find_config(name) == paths.find_config(RM)


def test_every_shipped_config_has_a_name_of_its_own():
    configs = sorted((paths.shipped() / 'configs').glob('[!_]*/*.py'))
    names = [f'{config.parent.name}_{config.stem}' for config in configs]
    assert len(set(names)) == len(names) > 100
    assert [paths.find_config(name) for name in names] == [config.resolve() for config in configs]


def test_a_users_file_of_that_name_is_the_users(elsewhere):
    (elsewhere / 'rm_resnet50_8xb64_in1k.py').touch()
    assert paths.find_config('rm_resnet50_8xb64_in1k.py') == elsewhere / 'rm_resnet50_8xb64_in1k.py'
