"""Models by name, after the habits of timm and mmpretrain: ``list_models``, ``get_model``.

A model is a config with a name and, if somebody trained it, a file of weights. There are three sources:

- every shipped config, named by its path: ``rm/resnet50_8xb64_in1k``;
- the shipped weights, ``zoo/models.json``: one entry per file beside it;
- a list of the user's own, a JSON or YAML file: the argument ``registry``, or the variable ``MMRM_MODELS``.

Listing needs neither OpenMMLab nor torch.
"""

import difflib
import fnmatch
import json
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Union

from ..utils import paths
from ..utils.errors import UserFileError, UserValueError, one_line

SHIPPED = Path(__file__).resolve().parent / 'zoo' / 'models.json'
VARIABLE = 'MMRM_MODELS'
FIELDS = ('name', 'config', 'weights', 'sha256')


class Entry(NamedTuple):
    """A model.

    Args:
        name (str): What it is called.
        config (str): Its config: a file, or the name of a shipped one.
        weights (str): Its file of weights or an address; '' if there are none.
        sha256 (str): Of the file; '' if there is none.
        source (str): The list that names it.
    """

    name: str
    config: str
    weights: str = ''
    sha256: str = ''
    source: str = ''


def list_models(
    pattern: Optional[str] = None, pretrained: bool = False, registry: Optional[Union[str, Path]] = None
) -> List[str]:
    """The names of the models.

    Args:
        pattern: Only names that it matches, ``'rm/*'`` or ``'*resnet50*'``; a text without ``*`` matches anywhere.
        pretrained: Only models with weights.
        registry: A list of models of your own, beside that of ``MMRM_MODELS``.

    Example:
        >>> import mmrm
        >>> mmrm.list_models('rm/resnet50*')
        ['rm/resnet50_8xb64_in1k']
    """
    names = [name for name, entry in read_entries(registry).items() if entry.weights or not pretrained]
    if pattern is not None:
        wanted = pattern if any(sign in pattern for sign in '*?[') else f'*{pattern}*'
        names = [name for name in names if fnmatch.fnmatchcase(name, wanted)]
    return sorted(names)


def get_model(
    name: str,
    pretrained: Union[bool, str, Path] = False,
    registry: Optional[Union[str, Path]] = None,
    device: str = 'cpu',
):
    """Build a model by its name, or by its config.

    Args:
        name: One of :func:`list_models`, or a config file.
        pretrained: True for the weights that belong to the name, checked against their SHA-256; a checkpoint or a run's
            folder for those; False for none: the network is as its constructor leaves it.
        registry: A list of models of your own, beside that of ``MMRM_MODELS``.
        device: Where to put it.

    Returns:
        nn.Module: mmpretrain's (mmdet's, mmseg's) model in eval mode. Images in their normal form to logits:
        ``model(images)``. Its config is ``model.cfg``.
    """
    entry = find_entry(name, registry)
    if pretrained is True and not entry.weights:
        known = list_models(pretrained=True, registry=registry)
        hint = f' Those with weights: {", ".join(known)}.' if known else ' No model has any here.'
        raise UserValueError(
            f'{entry.name} has no weights.{hint} Give pretrained=FILE, or list yours in a file that {VARIABLE} names.'
        )
    from .build import build, load
    from .runs import find_checkpoint

    model = build(entry.config)
    if pretrained:
        load(model, weights_file(entry) if pretrained is True else find_checkpoint(pretrained))
    return model.to(device).eval()


def find_entry(name: Union[str, Path], registry: Optional[Union[str, Path]] = None) -> Entry:
    """The model of a name, or of a config file.

    Raises:
        UserValueError: If there is none; the message has names near it.
    """
    entries = read_entries(registry)
    wanted = str(name)
    found = entries.get(wanted) or entries.get(wanted.removesuffix('.py'))
    if found is not None:
        return found
    if wanted.endswith('.py') and Path(wanted).expanduser().is_file():
        return Entry(wanted, wanted)
    near = difflib.get_close_matches(wanted, entries, n=3, cutoff=0.4)
    hint = f' Did you mean {", ".join(near)}?' if near else ' list_models() has all names.'
    raise UserValueError(f'there is no model {wanted!r}.{hint}')


def read_entries(registry: Optional[Union[str, Path]] = None) -> Dict[str, Entry]:
    """All models by name: shipped configs, shipped weights, then lists of the user's, of which later ones count."""
    configs = sorted((paths.shipped() / 'configs').glob('[!_]*/*.py'))
    entries = {name: Entry(name, str(path)) for path in configs for name in [f'{path.parent.name}/{path.stem}']}
    lists = [SHIPPED, *filter(None, os.environ.get(VARIABLE, '').split(os.pathsep)), *([registry] if registry else [])]
    for path in lists:
        entries.update((entry.name, entry) for entry in read_list(Path(path).expanduser()))
    return entries


def read_list(path: Path) -> List[Entry]:
    """The entries of a list of models.

    Raises:
        UserFileError: If it cannot be read.
        UserValueError: If an entry lacks a field.
    """
    if path.suffix not in ('.json', '.yml', '.yaml'):
        raise UserFileError(f'the list of models {path} must end in .json, .yml or .yaml.')
    try:
        text = path.read_text(encoding='utf-8')
        if path.suffix == '.json':
            rows = json.loads(text)
        else:
            import yaml

            rows = yaml.safe_load(text) or []
    except FileNotFoundError:
        raise UserFileError(f'the list of models {path} does not exist ({VARIABLE}, or registry=).') from None
    except ImportError as error:
        raise UserFileError(f'{path}: reading YAML needs the package PyYAML; a .json file needs none.') from error
    except Exception as error:
        raise UserFileError(f'the list of models {path} cannot be read: {one_line(error)}') from error
    if not isinstance(rows, list):
        raise UserValueError(f'{path} must be a list of models, each with {", ".join(FIELDS)}.')
    return [_entry(row, f'{path}, model {number}', path) for number, row in enumerate(rows, 1)]


def _entry(row: Any, where: str, path: Path) -> Entry:
    missing = [field for field in FIELDS if not isinstance(row, dict) or not isinstance(row.get(field), str)]
    if missing:
        raise UserValueError(f'{where}: {", ".join(missing)} must be given, as text.')
    config, weights = (_from_list(row[key], path) for key in ('config', 'weights'))
    return Entry(row['name'], config, weights, row['sha256'].lower(), str(path))


def _from_list(name: str, path: Path) -> str:
    """A file of a list, which may be given relative to the list's own folder."""
    file = path.parent / Path(name).expanduser()
    return str(file) if '://' not in name and file.exists() else name


def weights_file(entry: Entry) -> Path:
    """The file of a model's weights, downloaded if it is an address.

    Raises:
        UserFileError: If it does not exist, or has another SHA-256 than the list says.
    """
    from .provenance import file_hash
    from .runs import find_checkpoint

    file = find_checkpoint(entry.weights, f' {entry.source} names them for {entry.name}.')
    digest = file_hash(file)
    if digest != entry.sha256:
        raise UserFileError(
            f'{file} is not the file that {entry.source} lists for {entry.name}: its SHA-256 is {digest[:12]}..., '
            f'not {entry.sha256[:12]}...'
        )
    return file
