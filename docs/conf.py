"""The site: ``sphinx-build -W docs OUT``. MyST reads the pages, autodoc the docstrings."""

import os
import re
import sys
from pathlib import Path

from docutils import nodes

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import mmrm.models  # noqa: E402, F401  first: it repairs what the installed packages need to be imported together
from mmrm.version import __version__  # noqa: E402

project = 'mmrm'
author = 'The mmrm authors'
release = version = __version__

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_heading_anchors = 3
autodoc_member_order = 'bysource'
autodoc_typehints_format = 'short'
toc_object_entries_show_parents = 'hide'
python_maximum_signature_line_length = 100

highlight_language = 'none'

html_theme = 'furo'
html_title = f'mmrm {release}'
html_theme_options = dict(top_of_page_buttons=[])
html_copy_source = False
html_show_copyright = False
html_static_path = ['_static']
html_css_files = ['site.css']

# Pages link to README, configs and examples by relative paths, as a repository's file view needs them. On the site they
# lead to GitHub where its workflow builds it, else to this checkout. MyST refuses file:// links, hence OUTSIDE.
repository = os.environ.get('GITHUB_REPOSITORY')
files = f'https://github.com/{repository}/blob/main' if repository else ROOT.as_uri()
OUTSIDE = 'https://outside.invalid'


def mark_links(app, name, source):
    def mark(found):
        path = (DOCS / name).parent.joinpath(found[1]).resolve()
        return found[0] if path.is_relative_to(DOCS) else f']({OUTSIDE}/{path.relative_to(ROOT).as_posix()}'

    source[0] = re.sub(r'\]\((\.\./[^)#\s]+)', mark, source[0])


def link_files(app, doctree):
    for link in doctree.findall(nodes.reference):
        if link.get('refuri', '').startswith(OUTSIDE):
            link['refuri'] = files + link['refuri'].removeprefix(OUTSIDE)


def setup(app):
    app.connect('source-read', mark_links)
    app.connect('doctree-read', link_files)
