"""The command ``mmrm``: ``mmrm COMMAND ...`` runs ``main`` of ``mmrm/cli/<command>.py``, dashes for underscores.

The list of commands comes from the files alone. This file imports nothing of mmrm before a command is known, so that
the list and a mistyped name do not wait for torch.
"""

import ast
import difflib
import importlib
import os
import sys
from pathlib import Path
from typing import Dict, Optional, Sequence

FOLDER = Path(__file__).resolve().parent
# What commands share, not commands themselves.
SHARED = ('options', 'prediction', 'preflight')
# In the order of the work; every other command follows under its own heading.
WAY = ('init', 'check', 'train', 'test', 'predict', 'export', 'convert', 'report')


def commands() -> Dict[str, Path]:
    """Every command and its file, those of the way first."""
    files = {path.stem.replace('_', '-'): path for path in sorted(FOLDER.glob('[!_]*.py')) if path.stem not in SHARED}
    first = {name: files[name] for name in WAY if name in files}
    return {**first, **files}


def summary(path: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or '').partition('\n')[0]


def listing() -> str:
    """What ``mmrm`` alone prints."""
    known = commands()
    width = max(map(len, known))
    lines = {name: f'  {name:{width}}  {summary(path)}' for name, path in known.items()}
    return '\n'.join(
        [
            'usage: mmrm COMMAND ...        (mmrm COMMAND --help lists its options)',
            '',
            *(line for name, line in lines.items() if name in WAY),
            '',
            'experiments, figures and tables:',
            *(line for name, line in lines.items() if name not in WAY),
        ]
    )


def fail(message: str) -> None:
    print(f'error: {message}', file=sys.stderr, flush=True)
    sys.exit(2)


def version() -> str:
    read: dict = {}
    exec((FOLDER.parent / 'version.py').read_text(encoding='utf-8'), read)
    return read['__version__']


def hide_gpus(argv: Sequence[str]) -> None:
    """``--device cpu`` or ``MMRM_DEVICE=cpu``: counts only before torch looks for a GPU."""
    asked = dict(zip(argv, argv[1:])).get('--device', os.environ.get('MMRM_DEVICE'))
    if asked == 'cpu' or '--device=cpu' in argv:
        os.environ['CUDA_VISIBLE_DEVICES'] = ''


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run a command; ``argv`` defaults to the command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ('-h', '--help', 'help'):
        try:
            print(listing(), flush=True)
        except BrokenPipeError:  # mmrm | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if argv[0] in ('-V', '--version'):
        print(f'mmrm {version()}')
        return
    name, known = argv[0].replace('_', '-'), commands()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f'did you mean {" or ".join(near)}?' if near else f'the commands are {", ".join(known)}.'
        fail(f'mmrm has no command {argv[0]!r}; {hint} (mmrm alone lists them)')
    hide_gpus(argv)
    try:
        command = importlib.import_module(f'mmrm.cli.{known[name].stem}')
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] == 'mmrm':
            raise
        fail(
            f'mmrm {name} needs {error.name}, which is not installed; pip install mmrm[openmmlab,analysis] brings all '
            'that the commands need.'
        )
    command.main(argv[1:])


if __name__ == '__main__':
    main()
