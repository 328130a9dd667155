"""Plain words: the phrases that readers stumbled over do not come back."""

import re
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
}
PATTERN = re.compile(
    '|'.join(rf'(?P<p{number}>\b{phrase}\b)'.replace(' ', r'\s+') for number, phrase in enumerate(BANNED)), re.I
)
NAMES = ('README', 'CHANGELOG', 'CONTRIBUTING', 'CODE_OF_CONDUCT', 'SECURITY')
PAGES = sorted((*ROOT.glob('docs/*.md'), *(ROOT / f'{name}.md' for name in NAMES)))
PAGES += [ROOT / 'results' / 'README.md', ROOT / 'benchmarks' / 'README.md', *ROOT.glob('projects/*/README.md')]


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


def test_banned_phrases_are_found():
    text = 'A run that resumes is told.\nIt goes on,\nwithout a word, with 8 images a process, one a GPU.'
    assert [line.split(':')[0] for line in found(text)] == ['line 1', 'line 2', 'line 3', 'line 3', 'line 3']
    assert not found('in small steps; the Runner that is a process; 8 images per process')
