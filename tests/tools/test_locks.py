"""The locks: every package pinned and hashed, and a set-up that stops at a file with another hash."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mmrm.utils.paths import in_checkout, shipped

pytestmark = pytest.mark.skipif(not in_checkout(), reason='needs the source tree')
REQUIREMENTS = shipped() / 'requirements'
LOCKS = sorted(path.name for path in REQUIREMENTS.glob('lock-*.txt'))
STACKS = ('openmmlab', 'onedl')
INPUTS = ('runtime', 'torch', 'commands', 'tests', 'analysis', 'build')  # of tools/lock.sh, beside the stack's
PYTHONS = ('3.10', '3.11', '3.12', '3.13', '3.14')


def read_lock(name: str) -> dict:
    """The hashes of each requirement in a lock."""
    text = (REQUIREMENTS / name).read_text().replace('\\\n', ' ')
    lines = [line.split(' --hash=') for line in text.splitlines() if line and not line.startswith('#')]
    return {Requirement(line[0].strip()): [part.strip() for part in line[1:]] for line in lines}


def asked_for(stack: str) -> list:
    lines = [line for name in (*INPUTS, stack) for line in (REQUIREMENTS / f'{name}.txt').read_text().splitlines()]
    return [Requirement(line) for line in lines if line.strip() and not line.startswith('#')]


def chosen(lock: dict, python: str, system: str = 'linux') -> dict:
    """The versions that pip would take for a Python, by name."""
    machine = dict(python_version=python, python_full_version=f'{python}.4', sys_platform=system)
    machine.update(platform_machine='x86_64', platform_python_implementation='CPython', implementation_name='cpython')
    fitting = [line for line in lock if line.marker is None or line.marker.evaluate(machine)]
    names = [line.name for line in fitting]
    assert len(names) == len(set(names)), 'one version each'
    return {line.name: str(line.specifier).removeprefix('==') for line in fitting}


def normal(name: str) -> str:
    return re.sub('[-_.]+', '-', name).lower()


def test_there_is_a_lock_for_each_stack_and_its_headless_twin():
    expected = {f'lock-{stack}{end}.txt' for stack in STACKS for end in ('', '-headless')}
    assert set(LOCKS) == expected | {'lock-build.txt', 'lock-docs.txt', 'lock-loops.txt'}


@pytest.mark.parametrize('name', LOCKS)
def test_every_package_of_a_lock_is_pinned_and_hashed_and_names_no_host(name):
    lock = read_lock(name)
    assert lock
    for line, hashes in lock.items():
        assert re.fullmatch(r'==[\w.+!]+', str(line.specifier)), line
        assert hashes and all(re.fullmatch('sha256:[0-9a-f]{64}', each) for each in hashes), line
    text = (REQUIREMENTS / name).read_text()
    assert '://' not in text and '--index' not in text and '.org' not in text


@pytest.mark.parametrize('python', PYTHONS)
@pytest.mark.parametrize('stack', STACKS)
def test_a_lock_holds_what_the_requirements_ask_for(stack, python):
    """If this fails, the requirements changed: run tools/lock.sh."""
    versions = chosen(read_lock(f'lock-{stack}.txt'), python)
    for wanted in asked_for(stack):
        if wanted.marker is None or wanted.marker.evaluate(dict(python_version=python)):
            assert wanted.specifier.contains(versions[normal(wanted.name)]), wanted


@pytest.mark.parametrize('name', ['loops', 'docs'])
def test_other_locks_add_to_the_stack_and_agree_with_each_other(name):
    stack, lock, loops = (chosen(read_lock(f'lock-{each}.txt'), '3.11') for each in ('openmmlab', name, 'loops'))
    asked = (REQUIREMENTS / f'{name}.txt').read_text().splitlines()
    assert {line.partition(';')[0] for line in asked if not line.startswith('#')} <= set(lock)
    assert not set(stack) & set(lock)
    assert all(loops.get(each, version) == version for each, version in lock.items())


@pytest.mark.parametrize('stack', STACKS)
def test_a_lock_has_gpu_libraries_on_linux_only_a_safe_opencv_and_what_builds(stack):
    """opencv-python is free of CVE-2025-53644 from 4.12 on; its headless twin is of the same version."""
    lock = read_lock(f'lock-{stack}.txt')
    versions = chosen(lock, '3.11')
    assert any(name.startswith('nvidia-') for name in versions)
    for system in ('darwin', 'win32'):
        assert not any(name.startswith(('nvidia-', 'triton')) for name in chosen(lock, '3.13', system))
    assert tuple(map(int, versions['opencv-python'].split('.')[:2])) >= (4, 12)
    twin = {'opencv-python-headless': versions['opencv-python']}
    assert chosen(read_lock(f'lock-{stack}-headless.txt'), '3.11') == twin
    assert chosen(read_lock('lock-build.txt'), '3.11').items() <= versions.items()


NAMES = ('small', 'nvidia-cublas')


def write_wheel(folder: Path, name: str) -> Path:
    """A package with one empty file, version 1.0."""
    start = f'{name.replace("-", "_")}-1.0'
    wheel = folder / f'{start}-py3-none-any.whl'
    with zipfile.ZipFile(wheel, 'w') as file:
        file.writestr(f'{name}.py', '')
        file.writestr(
            f'{start}.dist-info/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: absent\n'
        )
        file.writestr(f'{start}.dist-info/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        file.writestr(f'{start}.dist-info/RECORD', '')
    return wheel


def set_up(*command: str, venv: Path, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, 'MMRM_VENV': str(venv), **environment}
    return subprocess.run(['bash', *map(str, command)], capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    'stack, wrong', [*((stack, None) for stack in STACKS), *(('openmmlab', name) for name in NAMES)]
)
def test_a_lock_is_installed_as_it_is_or_setup_stops_at_a_file_with_another_hash(stack, wrong, tmp_path):
    """What the packages themselves ask for is not looked for: a lock has all of it."""
    for name in ('tools', 'requirements', 'wheels'):
        (tmp_path / name).mkdir()
    shutil.copy(shipped() / 'tools/setup_env.sh', tmp_path / 'tools')
    (tmp_path / 'setup.py').touch()
    (tmp_path / 'requirements/lock-build.txt').write_text('')
    lock = ['# by a machine']
    for name in NAMES:
        wheel = write_wheel(tmp_path / 'wheels', name)
        digest = '0' * 64 if name == wrong else hashlib.sha256(wheel.read_bytes()).hexdigest()
        lock += [
            f"{name}==1.0 ; python_version > '3' \\",
            f'    --hash=sha256:{"1" * 64} \\\n    --hash=sha256:{digest}',
        ]
    (tmp_path / f'requirements/lock-{stack}.txt').write_text('\n'.join(lock) + '\n')
    pip = dict(PIP_NO_INDEX='1', PIP_FIND_LINKS=str(tmp_path / 'wheels'), PIP_CONFIG_FILE=os.devnull)
    run = set_up(tmp_path / 'tools/setup_env.sh', stack, venv=tmp_path / 'venv', PYTHON=sys.executable, **pip)
    (packages,) = (tmp_path / 'venv').glob('lib/python*/site-packages')
    there = {name for name in NAMES if (packages / f'{name}.py').is_file()}
    if wrong is None:
        assert there == {*NAMES}, run.stderr
        assert 'could not be installed' not in run.stderr and not (tmp_path / 'venv/mmrm-parts').exists()
    else:
        assert run.returncode == 1 and wrong not in there
        assert 'DO NOT MATCH THE HASHES' in run.stderr and f'{wrong}==1.0' in run.stderr
        assert run.stderr.strip().endswith(
            'error: the packages of requirements/lock-openmmlab.txt could not be installed; pip says why, above'
        )
        assert not (tmp_path / 'venv/mmrm-ready').exists()


@pytest.mark.parametrize(
    'version, stack, fits', [('3.9', 'openmmlab', False), ('3.14', 'openmmlab', True), ('3.14', 'onedl', False)]
)
def test_setup_takes_the_pythons_of_the_locks(version, stack, fits, tmp_path):
    """A stand-in for the interpreter: it answers the question for its version and cannot make an environment."""
    python = tmp_path / 'python'
    python.write_text(
        '#!/usr/bin/env bash\n'
        f'code="import sys; sys.version_info = ({version.replace(".", ", ")}, 0); $2"\n'
        f'case "$1" in -c) exec {sys.executable} -c "$code";;\n'
        f'--version) echo Python {version}.0;; *) echo cannot make an environment >&2; exit 7;; esac\n'
    )
    python.chmod(0o755)
    run = set_up(shipped() / 'tools/setup_env.sh', stack, venv=tmp_path / 'venv', PYTHON=str(python))
    if fits:
        assert run.returncode == 7 and 'setting up' in run.stdout
    else:
        assert run.returncode == 2 and f'Python {version}.0; the {stack} packages need Python 3.10 to' in run.stderr
