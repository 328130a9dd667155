"""mmpretrain beside a current transformers.

With transformers installed, mmpretrain imports its multi-modal models. They ask ``transformers.modeling_utils`` for
names that transformers 5 no longer has there, and then the import of mmpretrain fails as a whole. Without the
multi-modal models, which ask for the older transformers when they are built, everything else works.
"""

import importlib.util
from pathlib import Path

REASON = 'mmpretrain cannot be imported: its multi-modal models ask for names that transformers no longer has'
VERSIONS = 'mmpretrain 1.2 with transformers 5'

# Asked for by mmpretrain's language model, gone in transformers 5.
NAME = 'find_pruneable_heads_and_indices'


def _source(package: str, file: str) -> str:
    """The text of a package's file; nothing is imported. Empty if it is not there."""
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / file if spec is not None and spec.origin else None
    return path.read_text(encoding='utf-8') if path is not None and path.is_file() else ''


def needed() -> bool:
    """Whether mmpretrain would import its multi-modal models, with a transformers that lacks what they ask for."""
    if importlib.util.find_spec('mmpretrain') is None or importlib.util.find_spec('transformers') is None:
        return False
    from mmpretrain.utils import dependency

    return (
        dependency.WITH_MULTIMODAL
        and NAME in _source('mmpretrain', 'models/multimodal/blip/language_model.py')
        and NAME not in _source('transformers', 'modeling_utils.py')
    )


def apply() -> None:
    """Let mmpretrain register placeholders, as it does without transformers. Must come before ``mmpretrain.models``."""
    from mmpretrain.utils import dependency

    dependency.WITH_MULTIMODAL = False
