"""Package mmrm.

torch and numpy are enough for RecursiveMix in a loop of your own: ``pip install .``. The commands need OpenMMLab.

The two OpenMMLab stacks share their import names, so neither is a hard requirement: choose one with an extra,
``pip install .[openmmlab]`` or ``pip install .[onedl]``, or keep the one you have with ``pip install --no-deps -e .``.
"""

import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
# What OpenMMLab's `mim` looks for in an installed package.
MIM_FILES = ('configs', 'tools', 'model-index.yml')


def requirements(name: str) -> list:
    """Read ``requirements/<name>.txt`` without comments and blank lines."""
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith('#')]


def add_mim_files() -> None:
    """Put configs and tools into ``mmrm/.mim``: links for an editable install, copies for a distribution."""
    if {'egg_info', 'clean', 'dist_info'} >= set(sys.argv[1:2]):
        return
    mim = ROOT / 'mmrm' / '.mim'
    if not (ROOT / 'configs').exists() and mim.exists():  # an unpacked source distribution has them there only
        return
    if mim.exists():
        shutil.rmtree(mim)
    mim.mkdir()
    editable = any('editable' in arg or arg == 'develop' for arg in sys.argv[1:])
    for name in MIM_FILES:
        source, target = ROOT / name, mim / name
        if editable:
            target.symlink_to(source, target_is_directory=source.is_dir())
        elif source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy2(source, target)
    add_aliases(mim / 'aliases')


def add_aliases(folder: Path) -> None:
    """A file ``<regulariser>_<name>.py`` for each config: ``mim train`` looks for a file name, whatever its folder."""
    folder.mkdir()
    for config in sorted((ROOT / 'configs').glob('[!_]*/*.py')):
        regulariser = config.parent.name
        (folder / f'{regulariser}_{config.name}').write_text(f"_base_ = '../configs/{regulariser}/{config.name}'\n")


if __name__ == '__main__':
    version: dict = {}
    exec((ROOT / 'mmrm' / 'version.py').read_text(), version)
    add_mim_files()
    setup(
        name='mmrm',
        version=version['__version__'],
        description='RecursiveMix (Mixed Learning with History, NeurIPS 2022) for OpenMMLab and any PyTorch loop',
        long_description=(ROOT / 'README.md').read_text(),
        long_description_content_type='text/markdown',
        license='Apache-2.0',
        python_requires='>=3.10',
        packages=find_packages(include=['mmrm', 'mmrm.*']),
        entry_points={'console_scripts': ['mmrm = mmrm.cli:main']},
        package_data={
            'mmrm': [
                '.mim/**/*',
                'py.typed',
                'cli/*.txt',
                'report/*.json',
                'report/*/*',
                'report/vendor/*/*',
                'weights/zoo/*.json',
                'weights/zoo/*.safetensors',
                'weights/zoo/*.md',
            ]
        },
        include_package_data=True,
        install_requires=requirements('runtime'),
        extras_require={
            'openmmlab': requirements('torch') + requirements('openmmlab') + requirements('commands'),
            'onedl': requirements('torch') + requirements('onedl') + requirements('commands'),
            'analysis': requirements('analysis'),
            'onnx': requirements('onnx'),
            'fast': requirements('fast'),
            'puzzlemix': requirements('puzzlemix'),
            'tests': requirements('tests'),
            'docs': requirements('docs'),
        },
        zip_safe=False,
    )
