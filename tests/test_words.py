"""Plain words: the phrases that readers stumbled over do not come back."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COUNTED = (
    r'(?:image|sample|file|core|thread|worker|second|minute|hour|step|epoch|number|byte|time|block|mask|layer|box)'
)
UNIT = r'(?:GPU|process|core|node|image|sample|second|step|run|batch|side|class)'
# Each phrase and what to write instead.
BANNED = {
    r'mend(?:s|ed|ing)?': 'fix',
    r'see to it': 'make sure',
    r'(?:is|are|was|were|be|been) told(?! apart)': 'is logged, warns',
    r'(?:go|goes|going) on': 'resume, continue',
    r'anew': 'again, from the beginning',
    r'without a word': 'silently',
    r'no good': 'contains NaN or Inf, is damaged',
    rf'(?:one|ms|us|{COUNTED}s) an? {UNIT}': 'per GPU, per process',
    r'whoever': 'name the user, the function or the program',
    r'darkly': 'with an unclear error',
    r'what is left to 1': 'the remaining fraction',
    r'must not answer': 'is not mistaken for',
    r'in small(?! \w)': 'at small scale',
    r'(?<!there\x20)is no (?:regular )?(?:file|folder|image|class|number|checkpoint|config|network)': 'is not a',
    r'bears': 'tolerates, handles',
    r'(?:came|come|comes) of it': 'no progress, results',
    r'made up for': 'repeated',
    r'asks? it': 'tests this',
    r'shall': 'will, must',
    r'in vain': 'without effect',
    r'for ever': 'forever',
    r'speaks? (?:for|of)': 'supports, names',
}
GAP = r'(?:[ \t]+|[ \t]*\n[ \t]*)'  # also the end of a line, but not of a paragraph
PATTERN = re.compile(
    '|'.join(rf'(?P<p{number}>\b{phrase}\b)'.replace(' ', GAP) for number, phrase in enumerate(BANNED)), re.I
)
NAMES = ('README', 'CHANGELOG', 'CONTRIBUTING', 'CODE_OF_CONDUCT', 'SECURITY')
PAGES = sorted((*ROOT.glob('docs/*.md'), *(ROOT / f'{name}.md' for name in NAMES)))
PAGES += [ROOT / 'results' / 'README.md', ROOT / 'benchmarks' / 'README.md', *ROOT.glob('projects/*/README.md')]


# The edges of strings and comments: a phrase may continue in the next one.
EDGES = r"""^(?:[bfrBFR]{0,2}["']+|#)|["']+$"""
CODE = sorted(
    path
    for folder in ('mmrm', 'tools', 'projects', 'benchmarks', 'examples', 'configs', 'tests')
    for path in (ROOT / folder).rglob('*')
    if path.suffix in ('.py', '.sh', '.txt') and path != Path(__file__).resolve()
)


def found(text):
    """``line: phrase -> what to write`` for each banned phrase of a text."""
    advice = list(BANNED.values())
    return [
        f'line {text[: match.start()].count(chr(10)) + 1}: {match.group()!r} -> {advice[int(match.lastgroup[1:])]}'
        for match in PATTERN.finditer(text)
    ]


@pytest.mark.parametrize('page', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_plain_words(page):
    assert not found(page.read_text(encoding='utf-8'))


def words_of(path):
    """Comments, docstrings, messages and names of tests of a file, each in its line; other files as they are."""
    text = path.read_text(encoding='utf-8')
    if path.suffix != '.py':
        return text
    lines = [''] * (text.count('\n') + 2)
    kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, 'FSTRING_MIDDLE', None))  # the last: Python 3.12
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds or token.string.startswith('test_'):
            words = token.string.replace('_', ' ') if token.type == tokenize.NAME else token.string
            for number, line in enumerate(re.sub(EDGES, '', words).splitlines(), token.start[0]):
                lines[number - 1] += f' {line}'
    return '\n'.join(lines)


@pytest.mark.parametrize('folder', ['mmrm', 'tools', 'projects', 'benchmarks', 'examples', 'configs', 'tests'])
def test_code_uses_plain_words(folder):
    files = [path for path in CODE if path.relative_to(ROOT).parts[0] == folder]
    assert files
    wrong = {str(path.relative_to(ROOT)): found(words_of(path)) for path in files}
    assert not {path: lines for path, lines in wrong.items() if lines}


def test_banned_phrases_are_found():
    text = 'A run that resumes is told.\nIt goes on,\nwithout a word, with 8 images a process, one a GPU.'
    assert [line.split(':')[0] for line in found(text)] == ['line 1', 'line 2', 'line 3', 'line 3', 'line 3']
    names = words_of(Path(__file__))
    assert 'test pages use plain words' in names and 'the phrases that readers stumbled over' in names
    assert not found('in small steps; the Runner that is a process; 8 images per process')
