"""Models by name, after the habits of timm and mmpretrain: ``list_models``, ``get_model``.

Every shipped config is a model, named by its path: ``rm/resnet50_8xb64_in1k``. Those in ``zoo/models.json`` have
weights, one file each beside that list. Listing needs neither OpenMMLab nor torch.
"""

import difflib
import fnmatch
import json
from pathlib import Path
from typing import Dict, List, Optional, Union

from ..utils import paths
from ..utils.errors import UserFileError, UserValueError

ZOO = Path(__file__).resolve().parent / 'zoo'


def list_models(pattern: Optional[str] = None, pretrained: bool = False) -> List[str]:
    """The names of the models.

    Args:
        pattern: Only names that it matches, ``'rm/*'`` or ``'*resnet50*'``; a text without ``*`` matches anywhere.
        pretrained: Only models with weights.

    Example:
        >>> import mmrm
        >>> mmrm.list_models('rm/resnet50*')
        ['rm/resnet50_8xb64_in1k']
    """
    configs = (paths.shipped() / 'configs').glob('[!_]*/*.py')
    names = shipped_weights() if pretrained else [f'{path.parent.name}/{path.stem}' for path in configs]
    if pattern is not None:
        wanted = pattern if any(sign in pattern for sign in '*?[') else f'*{pattern}*'
        names = fnmatch.filter(names, wanted)
    return sorted(names)


def get_model(name: Union[str, Path], pretrained: Union[bool, str, Path] = False, device: str = 'cpu'):
    """Build a model by its name, or by its config.

    Args:
        name: One of :func:`list_models`, or a config file.
        pretrained: True for the weights that belong to the name, checked against their SHA-256; a checkpoint or a run's
            folder for those; False for none: the network is as its constructor leaves it.
        device: Where to put it.

    Returns:
        nn.Module: mmpretrain's (mmdet's, mmseg's) model in eval mode. Images in their normal form to logits:
        ``model(images)``. Its config is ``model.cfg``.

    Raises:
        UserValueError: If there is no such model, or it has no weights; the message has names near it.
    """
    name, weights = str(name).removesuffix('.py'), shipped_weights()
    config = paths.shipped() / 'configs' / f'{name}.py'
    if name not in list_models():
        config = Path(f'{name}.py').expanduser()
        if not config.is_file():
            near = difflib.get_close_matches(name, list_models(), n=3, cutoff=0.4)
            hint = f' Did you mean {", ".join(near)}?' if near else ' list_models() has all names.'
            raise UserValueError(f'there is no model {name!r}.{hint}')
    if pretrained is True and name not in weights:
        known = ', '.join(weights)
        raise UserValueError(f'{name} has no weights. Those with weights: {known}. Give pretrained=FILE for yours.')
    from .build import build, load
    from .provenance import file_hash
    from .runs import find_checkpoint

    model = build(config)
    if pretrained:
        file = find_checkpoint(ZOO / weights[name]['weights'] if pretrained is True else pretrained)
        if pretrained is True and file_hash(file) != weights[name]['sha256']:
            raise UserFileError(f'{file} is not the file that was shipped: it has another SHA-256. Install mmrm again.')
        load(model, file)
    return model.to(device).eval()


def shipped_weights() -> Dict[str, dict]:
    """The rows of ``models.json`` by the names of their models: ``weights`` (a file beside it), ``sha256``, ..."""
    return {row['name']: row for row in json.loads((ZOO / 'models.json').read_text(encoding='utf-8'))}
