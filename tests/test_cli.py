"""The command mmrm: its list, its dispatch, its mistakes; every tool is one of its commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from mmrm import __version__, cli
from mmrm.utils.paths import in_checkout, shipped

COMMANDS = list(cli.commands())


def call(capsys, *argv):
    """(exit code, stdout, stderr) of ``mmrm ...`` in this process."""
    capsys.readouterr()
    code = 0
    try:
        cli.main(list(map(str, argv)))
    except SystemExit as left:
        code = left.code or 0
    return (code, *capsys.readouterr())


def test_the_list_names_every_command_with_one_line(capsys):
    code, told, _ = call(capsys)
    assert code == 0 and told == call(capsys, '--help')[1]
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in told.splitlines() if line.startswith('  ')}
    assert list(lines) == COMMANDS
    assert all(text.endswith('.') or text.endswith('GPUS') for text in lines.values()), lines


def test_every_python_tool_is_a_command_and_calls_it():
    tools = {path.stem.replace('_', '-'): path for path in (shipped() / 'tools').glob('[!_]*.py')}
    del tools['get-cifar10']  # a script of its own
    assert set(tools) <= set(COMMANDS)
    for name, path in tools.items():
        assert f'from mmrm.cli.{name.replace("-", "_")} import main' in path.read_text(), path


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_has_a_help_under_its_own_name(name, capsys):
    code, told, _ = call(capsys, name, '--help')
    assert code == 0 and told.startswith(f'usage: mmrm {name}'), told


@pytest.mark.parametrize('name', ['export'])
def test_dashes_and_underscores_are_the_same(name, capsys):
    assert call(capsys, name, '--help')[0] == 0


@pytest.mark.parametrize('typed,meant', [('trian', 'train'), ('chek', 'check'), ('exprot', 'export')])
def test_a_mistyped_command_is_one_line_with_a_suggestion(typed, meant, capsys):
    code, told, error = call(capsys, typed, 'config.py')
    assert (code, told) == (2, '') and error.count('\n') == 1
    assert error.startswith(f"error: mmrm has no command '{typed}'; did you mean ") and meant in error


def test_a_command_like_no_other_gets_the_whole_list(capsys):
    code, _, error = call(capsys, 'qqq')
    assert code == 2 and all(name in error for name in COMMANDS)


def test_version(capsys):
    assert call(capsys, '--version') == (0, f'mmrm {__version__}\n', '')


def test_the_cpu_is_chosen_before_torch_looks_for_a_gpu(monkeypatch):
    import os

    for argv, device, hidden in (
        (['train', 'c.py', '--device', 'cpu'], None, True),
        (['train', 'c.py', '--device=cpu'], None, True),
        (['train', 'c.py'], 'cpu', True),
        (['train', 'c.py', '--device', 'cuda'], 'cpu', False),
        (['train', 'c.py'], None, False),
    ):
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
        monkeypatch.delenv('MMRM_DEVICE', raising=False)
        if device:
            monkeypatch.setenv('MMRM_DEVICE', device)
        cli.hide_gpus(argv)
        assert (os.environ['CUDA_VISIBLE_DEVICES'] == '') is hidden, argv


@pytest.mark.skipif(not in_checkout(), reason="the console script's module stands beside the package")
def test_the_console_script_lists_commands_without_torch(tmp_path):
    """In a process of its own, from another folder."""
    loaded = 'print(sorted({"torch", "mmrm"} & set(sys.modules)))'
    code = f'import sys, mmrm_command; sys.argv[1:] = []; mmrm_command.main(); {loaded}'
    run = subprocess.run(
        [sys.executable, '-c', code],
        cwd=tmp_path,
        env={'PYTHONPATH': str(shipped()), 'PATH': '/usr/bin:/bin'},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == '[]' and '  train ' in run.stdout


def test_python_m_mmrm_is_the_same_command(tmp_path):
    run = subprocess.run(
        [sys.executable, '-m', 'mmrm', 'trian'],
        cwd=tmp_path,
        env={'PYTHONPATH': str(Path(cli.__file__).parents[1]), 'PATH': '/usr/bin:/bin', 'HOME': str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2 and 'did you mean train' in run.stderr
