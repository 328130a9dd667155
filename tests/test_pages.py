"""Every command on a page parses: its script has these options. Numbers of a summary are those of the studies."""

import argparse
import json
import pkgutil
import re
import runpy
import shlex
import statistics
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(path for path in (*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')) if path.stem not in ('CHANGELOG', 'migration')),
    *ROOT.glob('projects/*/README.md'),
    ROOT / 'results' / 'README.md',
    ROOT / 'benchmarks' / 'README.md',
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
    """Computed from the files of results."""
    from mmrm.report.intervals import difference
    from projects.cifar10 import run, table
    from projects.transfer import table as transfer

    page = (ROOT / 'docs' / 'when_rm_helps.md').read_text(encoding='utf-8')
    rows = re.findall(r'\| ([-+][^|]*) \| ([-+][^|]*) \| \[measured\]', page)
    cifar10 = table.by_method(run.read_results(ROOT / 'projects' / 'cifar10' / 'experiment.jsonl'))
    results = transfer.shipped_results()
    pairs = [
        lambda rival: difference(cifar10['rm'], cifar10[rival], table.last),
        lambda rival: difference(*(transfer.alone(results, each)[16] for each in ('rm', rival)), transfer._value),
        lambda rival: transfer.compare(results, 'pspnet-camvid', 'frozen', 'rm', rival),
        lambda rival: transfer.compare(results, 'pspnet-camvid', 'tuned', 'rm', rival),
    ]
    wanted = [tuple(table.difference_text(pair(rival)) for rival in transfer.RIVALS) for pair in pairs]
    assert rows == wanted
    mixup = difference(cifar10['mixup'], cifar10['rm'], table.last)
    assert f'it led RM by {mixup.mean:.2f} ({mixup.low:.2f} to {mixup.high:.2f})' in page
    audited = json.loads((ROOT / 'docs' / 'label_audit' / 'crops.json').read_text())
    rm, cutmix = (statistics.fmean(values[0] for values in audited['methods'][name]) for name in ('RM', 'CutMix'))
    assert f"off by {rm:.1f} %, CutMix's by {cutmix:.1f} % ({audited['settings']['masks']:,} Oxford pets" in page
    errors = {name: f'{100 - statistics.fmean(map(table.last, runs.values())):.2f}' for name, runs in cifar10.items()}
    (row,) = re.findall(r'\| \*measured\* CIFAR-10, 250 [^|]* \|(.*)\|', (ROOT / 'README.md').read_text())
    assert re.findall(r'[\d.]+', row) == [errors[name] for name in ('baseline', 'mixup', 'cutmix', 'rm')]


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


def python_names(page):
    """Dotted names of mmrm on a page, and its imports from mmrm; of the migration tables the last column."""
    text = page.read_text(encoding='utf-8')
    if page.stem == 'migration':
        text = '\n'.join(line.split(' | ')[-1] for line in text.splitlines())
    for module, names in re.findall(r'^from (mmrm[\w.]*) import ([\w, ]+)', text, re.M):
        yield from (f'{module}.{name.strip()}' for name in names.split(','))
    yield from re.findall(r'(?<![\w./:-])mmrm(?:\.(?!json)[a-zA-Z_]\w*)+', re.sub(r'\[[^\]]*\]\([^)]*\)', '', text))


@pytest.mark.parametrize('page', [*PAGES, ROOT / 'docs' / 'migration.md'], ids=lambda path: path.name)
def test_names_of_mmrm_exist(page):
    def exists(name):
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ImportError):
            return False
        return True

    assert not [name for name in python_names(page) if not exists(name)]


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.name)
def test_python_of_a_page_compiles(page):
    for block in re.findall(r'^```python\n(.*?)^```', page.read_text(encoding='utf-8'), re.M | re.S):
        compile(textwrap.dedent(block).replace(', ...)', ')'), page.name, 'exec')
