"""The order of the rooms, and their size: an import goes down only, also one inside a function."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / 'mmrm'
# Each room may import from itself and from any row above its own; rooms of one row leave each other alone.
ROWS = (
    ('version', 'core'),
    ('utils',),
    ('compat',),
    ('wrapper', 'datasets'),
    ('models', 'timm_task'),
    ('engine',),
    ('weights',),
    ('report',),
    ('__init__',),
    ('cli',),
    ('__main__',),
)
# What a config imports: it registers all that a config can name, so it loads the rooms above its own when it is done.
DOOR = 'models/__init__.py'
# Lines of code that each room may have. Make room before you raise one.
SIZES = dict(
    core=411,
    wrapper=341,
    timm_task=76,
    utils=1167,
    compat=485,
    datasets=750,
    models=1338,
    engine=1844,
    weights=1714,
    report=1413,
    cli=1990,
)
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
ROW_OF = {room: number for number, rooms in enumerate(ROWS) for room in rooms}


def room_of(module: str) -> str:
    parts = module.split('.')
    return parts[1] if len(parts) > 1 else '__init__'


def imports(path: Path):
    """The modules of mmrm that a file imports: ``(line, 'mmrm.utils.paths')``, names of functions included."""
    package = ['mmrm', *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split('.')[0] == 'mmrm')
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = '.'.join([*base, *([node.module] if node.module else [])])
            if base.split('.')[0] == 'mmrm':
                yield from ((node.lineno, f'{base}.{alias.name}') for alias in node.names)


def test_every_room_has_its_place_in_the_order():
    rooms = {
        path.stem if path.is_file() else path.name
        for path in PACKAGE.iterdir()
        if path.suffix == '.py' or (path / '__init__.py').is_file()
    }
    assert rooms <= set(ROW_OF), 'add the new room to ROWS and to docs/architecture.md'


@pytest.mark.parametrize('path', sorted(PACKAGE.rglob('*.py')), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    if path.relative_to(PACKAGE).as_posix() == DOOR:
        return
    own = path.relative_to(PACKAGE).parts[0].removesuffix('.py')
    wrong = [
        f'line {line}: {module}'
        for line, module in imports(path)
        if room_of(module) != own and ROW_OF[room_of(module)] >= ROW_OF[own]
    ]
    assert not wrong, f'{own} must not import from a room beside or above it'


def code_lines(path: Path) -> int:
    """Lines without blank ones, comments and docstrings."""
    text = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


@pytest.mark.parametrize('room', SIZES)
def test_rooms_keep_to_their_size(room):
    files = (PACKAGE / room).rglob('*.py') if (PACKAGE / room).is_dir() else [PACKAGE / f'{room}.py']
    assert sum(map(code_lines, files)) <= SIZES[room]
