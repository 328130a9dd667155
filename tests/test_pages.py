"""Every command on a page parses: its script has these options. Numbers of a summary are those of the studies."""

import argparse
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(path for path in (*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')) if path.stem not in ('CHANGELOG', 'migration')),
    *ROOT.glob('projects/*/README.md'),
    ROOT / 'results' / 'README.md',
]
SHELL = re.compile(r'^```(?:bash|shell)\n(.*?)^```', re.M | re.S)
# What a loop of a page puts in $models.
MODELS = '--model RM configs/rm/resnet18-w16_1xb64_cifar10-250.py weights.pth'
SCRIPTS = {'tools/dist_train.sh': 'train', 'tools/dist_test.sh': 'test'}


def lines(page):
    """The commands of a page's blocks of shell, and the scripts in backticks."""
    text = page.read_text(encoding='utf-8')
    for block in SHELL.findall(text):
        for name, value in [*re.findall(r'^(\w+)="([^"$]*)"$', block, re.M), ('models', MODELS)]:
            block = block.replace(f'${name}', value)
        yield from block.replace('\\\n', ' ').splitlines()
    yield from re.findall(r'`(python (?:tools|benchmarks|projects)/[^`]*)`', SHELL.sub('', text))


def commands(page):
    """(program, arguments) of what argparse reads: ``mmrm COMMAND`` or a script of the repository."""
    for line in lines(page):
        line = re.sub(r'\[[^\]]*\]|\s#.*|\.\.\.|["&].*', '', line)
        words = shlex.split(re.sub(r"'[^']*'", 'TEXT', line))
        while words and re.fullmatch(r'\w+=\S*', words[0]):
            words = words[1:]
        if not words or '$(' in line or len(words) < 3:
            continue
        if words[0] in SCRIPTS:
            place = 2 if words[0].endswith('train.sh') else 3
            yield 'mmrm', [SCRIPTS[words[0]], *words[1:place], '--gpus', words[place], *words[place + 1 :]]
        elif words[0] == 'mmrm' or words[:3] == ['python', '-m', 'mmrm']:
            yield 'mmrm', words[words.index('mmrm') + 1 :]
        elif words[0] == 'python' and words[1].endswith('.py') and '/' in words[1]:
            yield words[1], words[2:]


CASES = sorted({(program, ' '.join(words)) for page in PAGES for program, words in commands(page)})


class Parsed(BaseException):
    """The command line was read."""


def test_pages_have_commands():
    assert len(CASES) > 60 and len({program for program, _ in CASES}) > 20


@pytest.mark.parametrize('program, words', CASES)
def test_command_parses(program, words, monkeypatch, capsys):
    def parse(self, *args, **kwargs):
        original(self, *args, **kwargs)
        raise Parsed

    original = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, 'parse_args', parse)
    monkeypatch.setattr(sys, 'argv', [program, *words.split()])
    monkeypatch.setattr(sys, 'path', [*sys.path])
    monkeypatch.chdir(ROOT)
    try:
        with pytest.raises(Parsed):
            if program == 'mmrm':
                runpy.run_module('mmrm', run_name='__main__')
            else:
                runpy.run_path(str(ROOT / program), run_name='__main__')
    except SystemExit as error:  # argparse's own
        assert error.code == 0, capsys.readouterr().err


def test_measured_rows_are_those_of_the_studies():
    page = ROOT / 'docs' / 'when_rm_helps.md'
    rows = re.findall(r'\| ([-+][^|]*) \| ([-+][^|]*) \| \[measured\]\(([^)]*)\)', page.read_text(encoding='utf-8'))
    assert len(rows) == 4
    for *cells, study in rows:
        text = (page.parent / study).read_text(encoding='utf-8')
        assert all(cell in text for cell in cells)


def test_published_rows_are_those_of_the_paper():
    from mmrm.report.published import TABLES

    page = (ROOT / 'docs' / 'when_rm_helps.md').read_text(encoding='utf-8')
    rows = re.findall(r'\| [^|]* \| \+([\d.]+) \| \+([\d.]+) \| published', page)
    wanted = []
    for name, labels, sign in (
        ('cifar10', [], -1),
        ('cifar100', ['ResNet-18'], -1),
        ('imagenet', ['ResNet-50'], -1),
        ('coco-dense', ['ATSS', 'ResNet-50'], 1),
        ('ade20k', ['UperNet', 'ResNet-50'], 1),
    ):
        value = {row.labels[-1]: row.published[0] for row in TABLES[name].rows if list(row.labels[:-1]) == labels}
        wanted.append([sign * (value['+ RM'] - value[other]) for other in ('Baseline', '+ CutMix')])
    assert [[float(cell) for cell in row] for row in rows] == [pytest.approx(row) for row in wanted]
