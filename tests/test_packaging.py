"""What a user installs: a wheel with configs and tools in it, torch and numpy required, OpenMMLab as an extra."""

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import torch
from tiny_run import write_run

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


@pytest.fixture(scope='module')
def wheel(source):
    """Built from the source distribution, as a release is."""
    python, quiet = [sys.executable], dict(check=True, capture_output=True)
    subprocess.run([*python, 'setup.py', '-q', 'sdist', '--dist-dir', 'out'], cwd=source, **quiet)
    shutil.unpack_archive(next((source / 'out').glob('*.tar.gz')), source / 'out')
    command = [*python, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '.']
    folder = source / 'out' / f'mmrm-{__version__}'
    subprocess.run(command, cwd=folder, **quiet)
    return zipfile.ZipFile(next(folder.glob('*.whl')))


def test_configs_tools_data_and_the_command_ship_in_the_wheel(wheel):
    names = set(wheel.namelist())
    for folder, place in (('configs', 'mmrm/.mim/'), ('tools', 'mmrm/.mim/'), ('mmrm', '')):
        for path in (shipped() / folder).rglob('*'):
            if path.is_file() and path.suffix != '.pyc' and '.mim' not in path.parts:
                assert f'{place}{path.relative_to(shipped()).as_posix()}' in names
    assert {'mmrm/py.typed', 'mmrm/.mim/model-index.yml'} <= names
    scripts = wheel.read(f'mmrm-{__version__}.dist-info/entry_points.txt').decode()
    assert 'mmrm = mmrm.cli:main' in scripts


def test_the_wheel_is_small_without_weights(wheel):
    weights = ('.safetensors', '.pth')
    size = sum(each.compress_size for each in wheel.infolist() if not each.filename.endswith(weights))
    assert size <= 1_000_000, f'{size / 1e6:.2f} MB'


def test_each_config_has_one_file_that_mim_finds_by_its_name(wheel):
    configs = sorted((shipped() / 'configs').glob('[!_]*/*.py'))
    names = [Path(name).name for name in wheel.namelist()]
    for config in configs:
        alias = f'{config.parent.name}_{config.name}'
        assert names.count(alias) == 1, alias
        text = wheel.read(f'mmrm/.mim/aliases/{alias}').decode()
        assert text == f"_base_ = '../configs/{config.parent.name}/{config.name}'\n"


def test_the_stacks_are_extras(wheel):
    metadata = Parser().parsestr(wheel.read(f'mmrm-{__version__}.dist-info/METADATA').decode())
    hard = [line for line in metadata.get_all('Requires-Dist') if 'extra ==' not in line]
    assert set(hard) == {'torch', 'numpy'}, 'unpinned, and nothing else'
    assert metadata['Requires-Python'] == '>=3.10'
    for extra, package in (('openmmlab', 'mmpretrain==1.2.0'), ('onedl', 'onedl-mmpretrain==1.3.6')):
        lines = [line for line in metadata.get_all('Requires-Dist') if f'extra == "{extra}"' in line]
        assert any(line.startswith(package) for line in lines)
        names = {line.partition(';')[0].strip() for line in lines}
        assert names >= {'jinja2', 'matplotlib', 'rich', 'safetensors', 'scipy'}, 'what the commands import'


def test_an_installed_wheel_finds_its_configs(wheel, tmp_path):
    """In a process of its own, away from the checkout."""
    wheel.extractall(tmp_path / 'site')
    code = """
from mmrm.utils import paths
assert not paths.in_checkout()
path = paths.find_config('configs/rm/resnet50_8xb64_in1k.py')
assert path == paths.find_config('rm/resnet50_8xb64_in1k.py')
print(path, paths.default_work_dir(path))
"""
    told = run_away_from_the_checkout(tmp_path, sys.executable, '-c', code, PYTHONPATH=str(tmp_path / 'site'))
    config, work_dir = told.split()
    assert config.startswith(str(tmp_path / 'site')) and 'RMConsistencyHead' in Path(config).read_text()
    assert work_dir == f'{tmp_path}/work_dirs/rm/resnet50_8xb64_in1k'


LOOP = """
import importlib.util
assert not any(map(importlib.util.find_spec, ('mmengine', 'mmcv', 'mmpretrain', 'rich', 'matplotlib', 'scipy')))
import mmrm
import torch
from mmrm import Consistency, RecursiveMix, RecursiveMixModel
from mmrm.models.regularisers import FeatureCutMix, ManifoldMixup, MoEx
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
model = RecursiveMixModel(net, layer='0', input_size=32, alpha=1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(4, 3, 32, 32), torch.randint(0, 5, (4, )))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert all(parameter.grad is not None for parameter in model.parameters())
try:
    from mmrm import RMConsistencyHead
except ImportError as error:
    print(error)
print(mmrm.__file__)
"""
# torch and numpy, and what the two import: no OpenMMLab, and nothing of mmrm's further requirements.
BARE = 'torch torchgen functorch numpy numpy.libs typing_extensions.py filelock sympy mpmath networkx jinja2 markupsafe'
BARE += ' fsspec triton nvidia cuda setuptools _distutils_hack'
PACKAGES = Path(torch.__file__).parents[1]


def install(wheel, folder, packages):
    """The Python of a fresh virtual environment with the wheel, installed by pip, and a folder of packages."""
    subprocess.run([sys.executable, '-m', 'venv', str(folder / 'venv')], check=True, capture_output=True)
    python = folder / 'venv' / 'bin' / 'python'
    command = [python, '-m', 'pip', 'install', '-q', '--no-deps', '--no-index', Path(wheel.filename).resolve()]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    # As a line of a .pth file the folder is a place for modules only: the editable mmrm in it does not count.
    (next((folder / 'venv').glob('lib/python*/site-packages')) / 'packages.pth').write_text(f'{packages}\n')
    return python


def run_away_from_the_checkout(folder, *command, **environment):
    command = list(map(str, command))
    environment = {'PATH': '/usr/bin:/bin', 'HOME': str(folder), 'OMP_NUM_THREADS': '1', **environment}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f'{command}: {done.stderr}'
    return done.stdout.strip()


@pytest.mark.slow
def test_a_wheel_trains_in_an_environment_without_openmmlab(wheel, tmp_path):
    links = tmp_path / 'links'
    links.mkdir()
    for name in BARE.split():
        if (PACKAGES / name).exists():
            (links / name).symlink_to(PACKAGES / name)
    told = run_away_from_the_checkout(tmp_path, install(wheel, tmp_path, links), '-c', LOOP)
    assert 'mmrm.RMConsistencyHead needs OpenMMLab' in told
    assert told.splitlines()[-1].startswith(str(tmp_path / 'venv'))


@pytest.mark.slow
def test_the_tools_of_a_wheel_train_test_and_export_outside_of_the_checkout(wheel, tmp_path, free_port):
    python = install(wheel, tmp_path, PACKAGES)
    tools = next((tmp_path / 'venv').glob('lib/python*/site-packages/mmrm/.mim/tools'))
    settings = dict(PATH=f'{python.parent}:/usr/bin:/bin', MMRM_DEVICE='cpu', PORT=str(free_port))

    def run(*command):
        return run_away_from_the_checkout(tmp_path, *command, **settings)

    config = write_run(tmp_path, epochs=1)
    run(python, tools / 'train.py', config, '--work-dir', 'one')
    assert 'accuracy/top1' in run(python, tools / 'test.py', config, 'one/epoch_1.pth', '--work-dir', 'one')
    run(python, '-m', 'mmrm', 'export', 'backbone', 'one', 'backbone.pth')
    assert torch.load(tmp_path / 'backbone.pth', weights_only=True)
    run('bash', tools / 'dist_train.sh', config, 2, '--work-dir', 'two')
    assert (tmp_path / 'two/epoch_1.pth').is_file()
    where = run(python, '-c', 'import mmrm; print(mmrm.__file__)')
    assert where.startswith(str(tmp_path / 'venv')), 'not the checkout'
