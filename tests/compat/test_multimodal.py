"""mmpretrain beside a transformers that its multi-modal models do not know."""

import sys

import pytest
from mmpretrain.utils import dependency

from mmrm.compat import multimodal


def fake_transformers(folder, text):
    """A distribution that mmpretrain takes for transformers 5; it can be imported and has nothing in it."""
    (folder / 'transformers').mkdir()
    (folder / 'transformers' / '__init__.py').touch()
    (folder / 'transformers' / 'modeling_utils.py').write_text(text)
    (folder / 'transformers-5.0.0.dist-info').mkdir()
    (folder / 'transformers-5.0.0.dist-info' / 'METADATA').write_text(
        'Metadata-Version: 2.1\nName: transformers\nVersion: 5.0.0\n'
    )


@pytest.mark.parametrize(
    'text, needed', [('class PreTrainedModel: ...', True), (f'def {multimodal.NAME}(): ...', False)]
)
def test_needed_only_where_the_names_are_missing(text, needed, tmp_path, monkeypatch):
    fake_transformers(tmp_path, text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'transformers', raising=False)
    monkeypatch.setattr(dependency, 'WITH_MULTIMODAL', True)
    assert multimodal.needed() is needed
    monkeypatch.setattr(dependency, 'WITH_MULTIMODAL', False)
    assert not multimodal.needed()
