"""What a user installs: a wheel with configs and tools in it, and no word of either stack as a hard requirement."""
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

from mmrm import __version__
from mmrm.utils.paths import in_checkout, shipped

pytestmark = pytest.mark.skipif(not in_checkout(), reason='needs the source tree')


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp('source')
    for name in ('setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'model-index.yml'):
        shutil.copy(shipped() / name, folder)
    for name in ('mmrm', 'configs', 'tools', 'requirements'):
        shutil.copytree(shipped() / name, folder / name, ignore=shutil.ignore_patterns('__pycache__', '.mim'))
    return folder


def build_wheel(folder):
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w', 'out', '.'],
                   cwd=folder, check=True, capture_output=True)
    return zipfile.ZipFile(next((folder / 'out').glob('*.whl')))


@pytest.fixture(scope='module')
def wheel(source):
    return build_wheel(source)


def test_configs_and_tools_ship_in_the_wheel(wheel):
    names = set(wheel.namelist())
    for folder in ('configs', 'tools'):
        for path in (shipped() / folder).rglob('*'):
            if path.is_file() and '__pycache__' not in path.parts:
                assert f'mmrm/.mim/{path.relative_to(shipped()).as_posix()}' in names
    assert 'mmrm/.mim/model-index.yml' in names


def test_a_source_distribution_makes_the_same_wheel(source, wheel, tmp_path):
    subprocess.run([sys.executable, 'setup.py', '-q', 'sdist', '--dist-dir', str(tmp_path)], cwd=source, check=True,
                   capture_output=True)
    shutil.unpack_archive(next(tmp_path.glob('*.tar.gz')), tmp_path)
    again = build_wheel(tmp_path / f'mmrm-{__version__}')
    assert sorted(again.namelist()) == sorted(wheel.namelist())


def test_the_stacks_are_extras(wheel):
    metadata = Parser().parsestr(wheel.read(f'mmrm-{__version__}.dist-info/METADATA').decode())
    hard = [line for line in metadata.get_all('Requires-Dist') if 'extra ==' not in line]
    assert not any('mm' in line or 'torch' in line for line in hard)
    for extra, package in (('openmmlab', 'mmpretrain==1.2.0'), ('onedl', 'onedl-mmpretrain==1.3.6')):
        lines = [line for line in metadata.get_all('Requires-Dist') if f'extra == "{extra}"' in line]
        assert any(line.startswith(package) for line in lines)


def test_an_installed_wheel_finds_its_configs(wheel, tmp_path):
    """In a process of its own, away from the checkout, on the packages of this environment."""
    wheel.extractall(tmp_path / 'site')
    code = '''
import mmrm
from mmrm.utils import paths
from mmengine.config import Config
assert not paths.in_checkout()
path = paths.find_config('configs/rm/resnet50_8xb64_in1k.py')
assert path == paths.find_config('rm/resnet50_8xb64_in1k.py')
assert Config.fromfile(path).model.head.type == 'RMConsistencyHead'
print(mmrm.__file__, paths.default_work_dir(path))
'''
    run = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True,
                         env={'PYTHONPATH': str(tmp_path / 'site'), 'PATH': '/usr/bin:/bin', 'HOME': str(tmp_path)})
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().endswith(f'{tmp_path}/work_dirs/rm/resnet50_8xb64_in1k')
    assert str(tmp_path / 'site') in run.stdout
