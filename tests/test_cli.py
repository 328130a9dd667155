"""The command mmrm: its list, its dispatch, its mistakes, and help that does not wait for torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmrm import __version__, cli


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
    assert lines == cli.COMMANDS and all(text.endswith('.') for text in lines.values())
    assert all((Path(cli.__file__).parent / f'{name}.py').is_file() for name in lines)


HELP = """
import contextlib, io, sys, time
from mmrm import cli
for name in cli.COMMANDS:
    out, start = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main([name, '--help'])
    assert out.getvalue().startswith(f'usage: mmrm {name}'), name
    heavy = {'torch', 'numpy', 'mmengine', 'matplotlib', 'rich'} & sys.modules.keys()
    assert not heavy, (name, heavy)
"""


def test_the_help_of_every_command_imports_neither_torch_nor_openmmlab(tmp_path):
    run = subprocess.run([sys.executable, '-c', HELP], capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert run.returncode == 0, run.stderr


def environment():
    return {'PYTHONPATH': str(Path(cli.__file__).parents[2]), 'PATH': '/usr/bin:/bin'}


@pytest.mark.parametrize('typed, meant', [('trian', 'train'), ('chek', 'check'), ('exprot', 'export')])
def test_a_mistyped_command_is_one_line_with_a_suggestion(typed, meant, capsys):
    code, told, error = call(capsys, typed, 'config.py')
    assert (code, told) == (2, '') and error.count('\n') == 1
    assert error.startswith(f"error: mmrm has no command '{typed}'; did you mean ") and meant in error


def test_unknown_command_lists_all(capsys):
    code, _, error = call(capsys, 'qqq')
    assert code == 2 and all(name in error for name in cli.COMMANDS)


def test_version(capsys):
    assert call(capsys, '--version') == (0, f'mmrm {__version__}\n', '')


@pytest.mark.parametrize(
    'package, words', [('mmengine', 'mmrm[openmmlab]'), ('onnx', 'mmrm[onnx]'), ('timm', 'timm'), ('my_data', None)]
)
def test_missing_package_names_its_extra_and_a_users_own_keeps_its_traceback(package, words, capsys, monkeypatch):
    def main(argv):
        raise ModuleNotFoundError(f'No module named {package!r}', name=package)

    monkeypatch.setattr('mmrm.cli.report.main', main)
    if words is None:
        with pytest.raises(ModuleNotFoundError, match='my_data'):
            cli.main(['report'])
    else:
        code, _, error = call(capsys, 'report')
        assert code == 2 and error.endswith(f'needs {package}, which is not installed: pip install {words}\n')


def test_the_cpu_is_chosen_before_torch_looks_for_a_gpu(monkeypatch):
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


def test_python_m_mmrm_is_the_same_command(tmp_path):
    command = [sys.executable, '-m', 'mmrm', 'trian']
    run = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert run.returncode == 2 and 'did you mean train' in run.stderr
