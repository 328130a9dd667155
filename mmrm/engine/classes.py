"""Do the head, the preprocessor and the data sets mean the same classes?

A head with too many outputs trains without a word, one with too few fails in mid-run, and folders that differ between
two splits give one class two numbers. All of it can be known before the first iteration.
"""

import os
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mmengine.config import Config
from mmengine.registry import DATASETS

from ..utils.config import dataset_class, datasets, preprocessor_is_beside, preprocessor_of, type_name
from ..utils.errors import UserValueError

PARTS = ('train', 'val', 'test')
SHOWN = 10  # names in a message


class Label(NamedTuple):
    """A label of a data set and where it stands, e.g. ``Label(7, 'line 12 of train.txt')``."""

    number: int
    place: str


class DataClasses(NamedTuple):
    """What a data set says about its classes.

    Args:
        field (str): Its place in the config, e.g. 'train_dataloader.dataset'.
        kind (str): Its class.
        names (tuple[str], optional): The classes in the order of their labels, None if nothing tells.
        things (int, optional): How many of them are things, where a panoptic data set has both kinds.
        folder (Path, optional): The folder whose subfolders are the classes, if they are.
        empty (tuple[str]): Those of the subfolders that hold no image.
        declared (int, optional): How many classes ``metainfo`` names, where the folders are others.
        lowest (Label, optional): The lowest label, where labels were looked at.
        highest (Label, optional): The highest one.
        unreadable (str): What is wrong with the annotation file, '' if nothing is.
    """

    field: str
    kind: str
    names: Optional[Tuple[str, ...]] = None
    things: Optional[int] = None
    folder: Optional[Path] = None
    empty: Tuple[str, ...] = ()
    declared: Optional[int] = None
    lowest: Optional[Label] = None
    highest: Optional[Label] = None
    unreadable: str = ''

    @property
    def shown(self) -> str:
        return f'{self.field} ({self.kind})'

    @property
    def known(self) -> Tuple[str, ...]:
        """The names, none if nothing tells."""
        return self.names or ()


class Verdict(NamedTuple):
    """Args:
    problems (list[str]): What would stop a run or spoil it.
    options (dict): The ``--cfg-options`` that mend it.
    warnings (list[str]): What may be meant so.
    """

    problems: List[str]
    options: Dict[str, object]
    warnings: List[str]

    def text(self) -> str:
        """All problems and what mends them, in one line."""
        mend = ' '.join(f'{key}={value}' for key, value in self.options.items())
        return '; '.join(self.problems) + (f'. To mend it: --cfg-options {mend}' if mend else '.')

    def check(self) -> None:
        """Raise if there is a problem."""
        if self.problems:
            raise UserValueError(self.text())


def check_classes(cfg: Config, parts: Sequence[str] = PARTS) -> Verdict:
    """What a config, the class folders and the annotation files tell, without building the model.

    Args:
        cfg (Config): The config, its paths as they are to be opened.
        parts (Sequence[str]): Of 'train', 'val' and 'test', those that count.
    """
    return compare(model_classes(cfg), data_classes(cfg, parts), cfg, parts)


# ----------------------------------------------------------------------------------------------------------- the model
def has_classes_of_its_own(cfg: Optional[Config]) -> bool:
    """Whether the numbers in a model are not those of its data: words of a text, or a tracker's persons."""
    model = (cfg.get('model') if cfg else None) or {}
    return any(model.get(part) for part in ('language_model', 'tracker'))


def model_classes(cfg: Config) -> Dict[str, int]:
    """Every ``num_classes`` of the model and its preprocessor, by its place in the config."""
    found = dict(_num_classes(cfg.get('model') or {}))
    if preprocessor_is_beside(cfg) and isinstance(preprocessor_of(cfg).get('num_classes'), int):
        found['data_preprocessor.num_classes'] = preprocessor_of(cfg)['num_classes']
    return found


def _num_classes(node, field: str = 'model') -> Iterator[Tuple[str, int]]:
    """Every ``num_classes`` of a model but those of a head with classes of its own."""
    if isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from _num_classes(item, f'{field}.{index}')
    elif isinstance(node, dict) and type_name(node) != 'STDCHead':  # boundary or not
        for key, value in node.items():
            if key == 'num_classes' and isinstance(value, int):
                yield f'{field}.{key}', value
            elif key not in ('semantic_head', 'rpn_head', 'backbone'):  # HTC's stuff maps; object or not
                yield from _num_classes(value, f'{field}.{key}')


def too_many_ranks(cfg: Config, number: int, parts: Sequence[str]) -> Dict[str, object]:
    """The ``topk`` of the head and the evaluators that ask for more classes than there are, each with one that fits."""
    places = []
    head = (cfg.get('model') or {}).get('head')
    if isinstance(head, dict) and head.get('cal_acc'):
        places.append(('model.head', head))
    for part in parts:
        metrics = cfg.get(f'{part}_evaluator') or []
        several = isinstance(metrics, (list, tuple))
        for index, metric in enumerate(metrics if several else [metrics]):
            if isinstance(metric, dict) and type_name(metric) in ('Accuracy', 'MultiLabelMetric'):
                places.append((f'{part}_evaluator.{index}' if several else f'{part}_evaluator', metric))
    found = {}
    for place, node in places:
        asked = node.get('topk')
        asked = [asked] if isinstance(asked, int) else list(asked or ())
        if asked and max(asked) > number:
            fitting = [rank for rank in asked if rank <= number] or [1]
            found[f'{place}.topk'] = fitting[0] if len(fitting) == 1 else str(fitting).replace(' ', '')
    return found


# ------------------------------------------------------------------------------------------------------------ the data
def data_classes(cfg: Config, parts: Sequence[str] = PARTS) -> List[DataClasses]:
    """What the data sets of a config say, from their settings, folder names and annotation files.

    No image is listed but the first of each class, so it is quick for ImageNet too.
    """
    found = []
    for part in parts:
        loader = cfg.get(f'{part}_dataloader')
        if isinstance(loader, dict):
            for dataset, field in datasets(loader.get('dataset'), f'{part}_dataloader.dataset'):
                found.append(_from_config(dataset, field, cfg.get('default_scope')))
    return found


def _from_config(dataset: dict, field: str, scope: Optional[str]) -> DataClasses:
    built = build_lazily(dataset, scope)
    if built is not None:
        return _look(built, field)
    names, things = (_declared(dataset, scope, kind) for kind in ('classes', 'thing_classes'))
    return DataClasses(field, type_name(dataset), names, len(things) if things else None)


def build_lazily(dataset: dict, scope: Optional[str]):
    """A data set that knows its settings and paths but has read nothing, None if its class has no such state."""
    try:
        with DATASETS.switch_scope_and_registry(dataset.get('_scope_', scope)) as registry:
            return registry.build(dict(dataset, pipeline=[], lazy_init=True))
    except Exception:  # whatever a class raises: it is told when the run builds it
        return None


def _declared(dataset: dict, scope: Optional[str], kind: str) -> Optional[tuple]:
    """The classes that a data set's config or its class names."""
    names = (dataset.get('metainfo') or {}).get(kind)
    if names is None:
        names = (getattr(dataset_class(dataset, scope), 'METAINFO', None) or {}).get(kind)
    return tuple(names) if isinstance(names, (list, tuple)) else None


def _metainfo(dataset, kind: str) -> Optional[tuple]:
    names = (getattr(dataset, 'metainfo', None) or {}).get(kind)
    return tuple(names) if isinstance(names, (list, tuple)) else None


def _look(dataset, field: str) -> DataClasses:
    """At a data set that was built without reading: its names, and for mmpretrain's folders and lists their files."""
    things = _metainfo(dataset, 'thing_classes')
    found = DataClasses(field, type(dataset).__name__, _metainfo(dataset, 'classes'), len(things) if things else None)
    if not _reads_files(dataset):
        return found
    if dataset.ann_file:
        return found._replace(**_labels_of_list(Path(dataset.ann_file)))
    folder = Path(dataset.img_prefix)
    if not folder.is_dir():  # told elsewhere
        return found
    names = tuple(
        sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith('.'))
    )
    empty = tuple(name for name in names if not _has_image(folder / name, dataset.is_valid_file))
    declared = len(found.names) if found.names is not None and len(found.names) != len(names) else None
    # Names that are declared stand for the folders, one each, in their order.
    return found._replace(names=names, folder=folder, empty=empty, declared=declared)


def _reads_files(dataset) -> bool:
    """Whether it is mmpretrain's CustomDataset or one that reads like it: folders as classes, or a list of labels."""
    reader = next((kind for kind in type(dataset).__mro__ if 'load_data_list' in vars(kind)), None)
    known = reader is not None and reader.__module__.partition('.')[0] in ('mmpretrain', 'mmrm')
    return (
        known
        and hasattr(dataset, 'is_valid_file')
        and bool(getattr(dataset, 'with_label', False))
        and '://' not in f'{dataset.img_prefix}{dataset.ann_file}'
    )


def _has_image(folder: Path, is_image) -> bool:
    return any(is_image(name) for _, _, names in os.walk(folder) for name in names)


def _labels_of_list(path: Path) -> dict:
    """The lowest and the highest label of a file with a path and a label on each line."""
    if not path.is_file():  # told elsewhere
        return {}
    first: Dict[str, int] = {}
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            word = line.strip().rpartition(' ')[2]
            if word not in first:
                first[word] = number
    try:
        labels = [Label(int(word), f'line {line} of {path}') for word, line in first.items()]
    except ValueError:
        bad = next(line for word, line in first.items() if not word.lstrip('+-').isdecimal())
        return dict(
            unreadable=f'line {bad} of {path} does not end in a label: a path, a blank and a whole number are expected'
        )
    return dict(lowest=min(labels), highest=max(labels)) if labels else {}


def built_classes(dataset, field: str) -> List[DataClasses]:
    """What data sets say that are built and have read everything; wrappers are looked into.

    Labels that :func:`data_classes` can know from the files are not looked at again.
    """
    inner = getattr(dataset, 'datasets', None)
    if isinstance(inner, (list, tuple)):
        return [each for index, one in enumerate(inner) for each in built_classes(one, f'{field}.datasets.{index}')]
    if hasattr(dataset, 'dataset'):
        return built_classes(dataset.dataset, f'{field}.dataset')
    things = _metainfo(dataset, 'thing_classes')
    found = DataClasses(field, type(dataset).__name__, _metainfo(dataset, 'classes'), len(things) if things else None)
    if not _reads_files(dataset) and hasattr(dataset, 'get_data_info'):
        found = found._replace(**_labels_in_memory(dataset))
    return [found]


def _labels_in_memory(dataset) -> dict:
    lowest = highest = None
    for index in range(len(dataset)):
        given = dataset.get_data_info(index).get('gt_label')
        if given is None:
            return {}
        for label in given if isinstance(given, (list, tuple)) else [given]:
            if not isinstance(label, int):
                return {}
            if lowest is None or label < lowest.number:
                lowest = Label(label, f'sample {index}')
            if highest is None or label > highest.number:
                highest = Label(label, f'sample {index}')
    return dict(lowest=lowest, highest=highest)


# --------------------------------------------------------------------------------------------------------- the verdict
def compare(
    heads: Dict[str, int], data: Sequence[DataClasses], cfg: Optional[Config] = None, parts: Sequence[str] = PARTS
) -> Verdict:
    """Which numbers and names do not agree.

    Args:
        heads (dict): Every ``num_classes`` of the model, by its place (:func:`model_classes`).
        data (Sequence[DataClasses]): Of the data sets, training first.
        cfg (Config, optional): For ``topk`` of head and evaluators. Defaults to None, which are not looked at.
        parts (Sequence[str]): Of 'train', 'val' and 'test', those that count.
    """
    verdict = Verdict([], {}, [])
    if has_classes_of_its_own(cfg):
        return verdict
    number = next((len(each.names) - len(each.empty) for each in data if each.names), None)
    _compare_folders(data, verdict)
    others = _compare_splits(data, verdict)
    # A folder that lacks a few of a thousand classes is no reason to change the model.
    others += [each for each in data if each.declared is not None and not _can_be_declared(each.known)]
    _compare_heads(heads, [each for each in data if each not in others], verdict)
    if number is None:
        number = _compare_with_each_other(heads, verdict)
    _compare_labels(heads, data, verdict)
    if cfg is not None and number:
        ranks = too_many_ranks(cfg, number, parts)
        asked = ', '.join(ranks)
        if ranks:
            verdict.problems.append(f'{asked} asks for more classes than the {number} there are')
            verdict.options.update(ranks)
    return verdict


def _compare_folders(data: Sequence[DataClasses], verdict: Verdict) -> None:
    """Folders that are no class, and folders that are not those of ``metainfo``."""
    for each in data:
        if each.declared is not None:
            verdict.problems.append(
                f'{each.shown} stands for {each.declared} classes, and {each.folder} has '
                f'{len(each.known)} class folders: {_some(each.known)}{_empty(each)}'
            )
            if _can_be_declared(each.known):
                verdict.options[f'{each.field}.metainfo.classes'] = ','.join(each.known)
        elif each.empty and each.field.startswith('train'):
            verdict.warnings.append(
                f'{each.shown}: {each.folder} has {_count(each.empty, "class folder")} without an '
                f'image, which count as classes: {_some(each.empty)}'
            )


def _compare_splits(data: Sequence[DataClasses], verdict: Verdict) -> List[DataClasses]:
    """Whether a name has one number in all data sets; returns those that have not."""
    named = [each for each in data if each.names and each.declared is None]
    if not named:
        return []
    first, wrong = named[0], []
    labels: Dict[str, List[int]] = {}
    for label, name in enumerate(first.known):
        labels.setdefault(name, []).append(label)  # ImageNet has two classes 'crane'
    for each in named[1:]:
        moved = [(label, name) for label, name in enumerate(each.known) if label not in labels.get(name, [label])]
        if not moved:
            continue
        label, name = moved[0]
        lost = [other for other in first.known if other not in each.known]
        more = [other for other in each.known if other not in labels]
        parts = [f'{_some(lost)} missing' if lost else '', f'{_some(more)} extra' if more else '']
        told = f' ({", ".join(part for part in parts if part)})' if any(parts) else ''
        verdict.problems.append(
            f'{each.field} has {len(each.known)} classes, {first.field} has {len(first.known)}{told}: {name!r} would '
            f'be label {label} in one and {labels[name][0]} in the other'
            + (
                '. Both need the same class folders, an empty one where there is no image'
                if each.folder and first.folder
                else ''
            )
        )
        wrong.append(each)
    return wrong


def _compare_heads(heads: Dict[str, int], data: Sequence[DataClasses], verdict: Verdict) -> None:
    groups: Dict[tuple, List[DataClasses]] = {}
    for each in data:
        if each.names:
            allowed = (len(each.names), each.things)  # a panoptic network has heads for all and heads for things
            wrong = tuple(place for place, number in heads.items() if number not in allowed)
            if wrong:
                groups.setdefault((len(each.names), wrong), []).append(each)
    for (number, wrong), group in groups.items():
        fields = f'{" and ".join(each.field for each in group)} ({group[0].kind})'
        first = group[0]
        where = f' (the folders {_some(first.known)} of {first.folder})' if first.folder else ''
        verdict.problems.append(
            f'{fields} {"has" if len(group) == 1 else "have"} {number} classes{where}{_empty(first)}, the model has '
            + ', '.join(f'{place}={heads[place]}' for place in wrong)
        )
        for place in wrong:
            if number - len(first.empty) != heads[place]:  # else it is enough to remove the empty ones
                verdict.options.setdefault(place, number - len(first.empty))


def _compare_with_each_other(heads: Dict[str, int], verdict: Verdict) -> Optional[int]:
    """The preprocessor of a classifier with its head, where no data set tells; returns the head's number."""
    head = heads.get('model.head.num_classes')
    if head is not None:
        for place in ('model.data_preprocessor.num_classes', 'data_preprocessor.num_classes'):
            if heads.get(place, head) != head:
                verdict.problems.append(f'model.head.num_classes={head}, but {place}={heads[place]}')
                verdict.options[place] = head
    return head


def _compare_labels(heads: Dict[str, int], data: Sequence[DataClasses], verdict: Verdict) -> None:
    head = heads.get('model.head.num_classes')
    for each in data:
        number = len(each.names) if each.names else head
        if each.unreadable:
            verdict.problems.append(f'{each.shown}: {each.unreadable}')
        if number is None or each.highest is None:
            continue
        wrong = next((label for label in (each.highest, each.lowest) if label and not 0 <= label.number < number), None)
        if wrong:
            verdict.problems.append(
                f'{each.shown} has the label {wrong.number} ({wrong.place}); with {number} classes '
                f'0 to {number - 1} are allowed'
            )
        elif not each.names and each.field.startswith('train') and each.highest.number < number - 1:
            verdict.warnings.append(
                f'{each.shown} has labels up to {each.highest.number}, model.head.num_classes={number}. If there are '
                f'{each.highest.number + 1} classes: --cfg-options '
                + ' '.join(f'{place}={each.highest.number + 1}' for place in heads)
            )


def _can_be_declared(names: Sequence[str]) -> bool:
    """Whether ``--cfg-options`` can name the classes: few, and in words that stay words."""
    words = all(name.replace('_', '').replace('-', '').isalnum() and not name[0].isdecimal() for name in names)
    return 1 < len(names) <= SHOWN and words


def _some(names: Sequence[str]) -> str:
    return ', '.join(names[:SHOWN]) + (' ...' if len(names) > SHOWN else '')


def _count(names: Sequence[str], noun: str) -> str:
    return f'{len(names)} {noun}{"" if len(names) == 1 else "s"}'


def _empty(each: DataClasses) -> str:
    return f', {len(each.empty)} of them empty ({_some(each.empty)}: remove it if it is no class)' if each.empty else ''
