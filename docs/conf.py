"""The site: ``sphinx-build -W docs OUT``. MyST reads the pages, autodoc the docstrings."""

import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import mmrm.models  # noqa: E402, F401  first: it repairs what the installed packages need to be imported together
from mmrm.version import __version__  # noqa: E402

project = 'mmrm'
author = 'The mmrm authors'
release = version = __version__

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 3
autodoc_member_order = 'bysource'
autodoc_typehints_format = 'short'
toc_object_entries_show_parents = 'hide'

highlight_language = 'none'

html_theme = 'furo'
html_title = f'mmrm {release}'
html_theme_options = dict(top_of_page_buttons=[])
html_copy_source = False

# Where links to files outside docs/ lead: GitHub where its workflow builds the site, else this checkout.
repository = os.environ.get('GITHUB_REPOSITORY')
files = f'https://github.com/{repository}/blob/main' if repository else ROOT.as_uri()


def link_files(app, name, source):
    """Pages link to README, configs and examples by relative paths, which a repository's file view needs."""

    def link(found):
        path = (DOCS / name).parent.joinpath(found[1]).resolve()
        if path.is_relative_to(DOCS):
            return found[0]
        if not path.exists():
            raise FileNotFoundError(f'{name}: {found[1]} does not exist')
        return f']({files}/{path.relative_to(ROOT).as_posix()}'

    source[0] = re.sub(r'\]\((\.\./[^)#\s]+)', link, source[0])


def setup(app):
    app.connect('source-read', link_files)
