"""The pages: the site builds without a warning, and every link and every file that a page names exists."""

import re
from pathlib import Path

import pytest
from mmengine import registry
from mmpretrain import registry as classification

import mmrm.models

ROOT = Path(__file__).resolve().parents[1]
ID = re.compile(r'<dt class="sig[^"]*" id="mmrm\.(?:[\w.]*\.)?(\w+)"')
MODULES = {'__version__', 'backbones', 'compat', 'datasets', 'schedulers', 'weights'}
LINK = re.compile(r'\]\((?!https?:|mailto:|#)([^)#\s]+)')
PAGES = sorted(
    path
    for path in (*ROOT.glob('*.md'), *ROOT.glob('docs/*.md'), *ROOT.glob('projects/*/*.md'), *ROOT.glob('*/README.md'))
    if not {'data', 'work_dirs'} & set(path.relative_to(ROOT).parts)
)


def registered():
    """The names of mmrm that a config can use."""
    found = [each for room in (registry, classification) for each in vars(room).values()]
    modules = [each.module_dict for each in found if isinstance(each, registry.Registry)]
    own = [item for names in modules for item in names.values() if item.__module__.startswith('mmrm.')]
    return {item.__name__ for item in own if not item.__name__.startswith('_')}


@pytest.mark.filterwarnings('ignore')
def test_site_builds_without_a_warning(tmp_path, capfd, monkeypatch):
    """An unknown page, heading or anchor of a link is a warning of MyST's, a broken docstring one of autodoc's."""
    pytest.importorskip('furo', reason='needs requirements/lock-docs.txt')
    from sphinx.cmd.build import build_main

    monkeypatch.setenv('GITHUB_REPOSITORY', 'somebody/mmrm')
    code = build_main(['-W', '--keep-going', '-q', '-b', 'html', str(ROOT / 'docs'), str(tmp_path)])
    assert code == 0, capfd.readouterr().err
    search = (tmp_path / 'searchindex.js').read_text()
    missing = [path.stem for path in (ROOT / 'docs').glob('*.md') if f'"{path.stem}"' not in search]
    assert not missing
    documented = {name for page in (tmp_path / 'api').glob('*.html') for name in ID.findall(page.read_text())}
    assert not registered() - documented and {*mmrm.__all__} - MODULES <= documented
    links = re.findall(
        'href="https://github.com/somebody/mmrm/blob/main/([^"#]*)', (tmp_path / 'index.html').read_text()
    )
    assert 'README.md' in links and all((ROOT / link).exists() for link in links)
    assert 'prefers-color-scheme' in (tmp_path / '_static' / 'styles' / 'furo.css').read_text()


@pytest.mark.parametrize('page', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    text = re.sub(r'^```.*?^```', '', page.read_text(encoding='utf-8'), flags=re.M | re.S)
    assert not [link for link in LINK.findall(text) if not (page.parent / link).exists()]


def test_pages_have_at_most_14_000_words():
    assert sum(len(page.read_text(encoding='utf-8').split()) for page in ROOT.glob('docs/*.md')) <= 14_000


def test_named_files_exist():
    """`python tools/x.py`, `configs/rm/y.py` in commands and text; CAPITALS stand for the reader's own files."""
    folders = 'tools|configs|benchmarks|examples|projects|requirements|tests|notebooks'
    name = re.compile(rf'(?<![\w/.-])((?:{folders})/[\w/.-]+\.(?:py|sh|txt|json|ipynb))\b(?!`? of v0)')
    gone = [
        f'{page.relative_to(ROOT)}: {found}'
        for page in PAGES
        if page.name not in ('CHANGELOG.md', 'migration.md')
        for found in name.findall(page.read_text(encoding='utf-8'))
        if not (ROOT / found).exists() and not re.search('/[A-Z]', found)
    ]
    assert not gone, gone
