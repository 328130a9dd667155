"""Check that the head, the preprocessor and the data sets have the same classes.

A head with too many outputs trains silently, one with too few fails in mid-run, and class folders that differ between
two splits give one class two labels. All of this can be found before the first iteration.
"""

from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmpretrain.datasets.custom import find_folders

from ..utils.config import PARTS, loader_datasets, preprocessor_is_beside, type_name
from ..utils.errors import UserValueError, abbreviate

SHOWN = 10  # names in a message


class DataClasses(NamedTuple):
    """The classes of a data set.

    Args:
        field (str): Its place in the config, e.g. 'train_dataloader.dataset'.
        kind (str): Its class.
        names (tuple[str]): The classes in the order of their labels, () if they are not known.
        things (int): How many of them are things, where a panoptic data set has things and stuff; else 0.
        folder (str): The folder whose subfolders are the classes, if they are.
        labels (dict): Where each label is found first, where labels were read, e.g. ``{7: 'line 12 of train.txt'}``.
            One that is not a whole number is a string.
    """

    field: str
    kind: str
    names: Tuple[str, ...] = ()
    things: int = 0
    folder: str = ''
    labels: Dict[Union[int, str], str] = {}

    def __str__(self) -> str:
        return f'{self.field} ({self.kind})'


class ClassReport(NamedTuple):
    """Args:
    problems (list[str]): What would stop a run or make its result wrong.
    options (dict): The ``--cfg-options`` that fix it.
    warnings (list[str]): What may be intended.
    """

    problems: List[str]
    options: Dict[str, object]
    warnings: List[str]

    def text(self) -> str:
        """All problems and the options that fix them, in one line."""
        options = ' '.join(f'{key}={value}' for key, value in self.options.items())
        return '; '.join(self.problems) + (f'. To fix it: --cfg-options {options}' if options else '.')

    def check(self) -> None:
        """Raise if there is a problem."""
        if self.problems:
            raise UserValueError(self.text())


def check_classes(cfg: Config, parts: Sequence[str] = PARTS) -> ClassReport:
    """Compare the classes in a config, the class folders and the annotation files, without building the model.

    No image is listed, so it is quick for ImageNet, too.

    Args:
        cfg (Config): The config, its paths as they are to be opened.
        parts (Sequence[str]): Which of 'train', 'val' and 'test' to check.
    """
    scope = cfg.get('default_scope')
    built = [(build_lazily(config, scope), field) for _, config, field in loader_datasets(cfg, parts)]
    data = [data_classes(dataset, field) for dataset, field in built if dataset is not None]
    return compare(model_classes(cfg), data, cfg, parts)


def check_runner_classes(runner) -> None:
    """Compare the classes of a runner's config with those of the data sets that it has built by now, once.

    A label beyond the head's outputs fails late with an unclear error (on CUDA as an assertion in a kernel), one-hot
    labels of another length fail at the loss, and a head with too many outputs does not fail at all.

    Raises:
        UserValueError: If two numbers differ.
    """
    if getattr(runner, '_classes_agree', False):
        return
    loops = dict(train=runner._train_loop, val=runner._val_loop, test=runner._test_loop)
    built = {part: loop.dataloader.dataset for part, loop in loops.items() if hasattr(loop, 'dataloader')}
    data = [
        data_classes(dataset, field)
        for part in built
        for dataset, field in unwrapped_datasets(built[part], f'{part}_dataloader.dataset')
    ]
    report = compare(model_classes(runner.cfg), data, runner.cfg, list(built))
    report.check()
    for warning in report.warnings:
        runner.logger.warning(warning)
    runner._classes_agree = True


@HOOKS.register_module()
class CheckClassesHook(Hook):
    """Runs :func:`check_runner_classes` before the first epoch of training, validation or testing.

    mmrm's tools do so without it; it is for other ones.
    """

    def before_run(self, runner) -> None:
        check_runner_classes(runner)


# ----------------------------------------------------------------------------------------------------------- the model
def model_classes(cfg: Config) -> Dict[str, int]:
    """Every ``num_classes`` of the model and its preprocessor, by its place in the config."""
    roots = ['model', *(['data_preprocessor'] if preprocessor_is_beside(cfg) else [])]
    nodes = [found for root in roots for found in _nodes(cfg.get(root), root)]
    numbers = {f'{place}.num_classes': node.get('num_classes') for place, node in nodes}
    return {place: number for place, number in numbers.items() if isinstance(number, int)}


def _nodes(node, field: str) -> Iterator[Tuple[str, dict]]:
    """Every dict in a config with its place, without parts that count something else than the classes of the data."""
    items = []
    if isinstance(node, (list, tuple)):
        items = enumerate(node)
    elif isinstance(node, dict) and type_name(node) != 'STDCHead':  # boundary or not
        yield field, node
        items = node.items()
    for key, value in items:
        if key not in ('semantic_head', 'rpn_head', 'backbone'):  # HTC's stuff maps; object or not
            yield from _nodes(value, f'{field}.{key}')


# ------------------------------------------------------------------------------------------------------------ the data
def build_lazily(dataset: dict, scope: Optional[str]):
    """A data set that has its settings and paths but has read nothing, None if its class cannot be built like this."""
    try:
        with DATASETS.switch_scope_and_registry(dataset.get('_scope_', scope)) as registry:
            return registry.build(dict(dataset, pipeline=[], lazy_init=True))
    except Exception:  # whatever a class raises: the run raises it again
        return None


def unwrapped_datasets(dataset, field: str = '') -> Iterator[Tuple[object, str]]:
    """A built data set, or those in its wrappers (ConcatDataset, RepeatDataset), each with its place."""
    inner = getattr(dataset, 'datasets', None)
    if isinstance(inner, (list, tuple)):
        for index, each in enumerate(inner):
            yield from unwrapped_datasets(each, f'{field}.datasets.{index}')
    elif hasattr(dataset, 'dataset'):
        yield from unwrapped_datasets(dataset.dataset, f'{field}.dataset')
    else:
        yield dataset, field


def data_classes(dataset, field: str) -> DataClasses:
    """The classes of a data set; those of one that has not read its samples yet are read from its files."""
    meta = getattr(dataset, 'metainfo', None) or {}
    given = (meta.get(key) for key in ('classes', 'thing_classes'))
    names, things = (tuple(value) if isinstance(value, (list, tuple)) else () for value in given)
    found = DataClasses(field, type(dataset).__name__, names, len(things))
    if not _reads_files(dataset):
        return found._replace(labels=_labels_of_samples(dataset))
    if dataset.ann_file:
        return found._replace(labels=_labels_of_file(Path(dataset.ann_file)))
    if names or not Path(dataset.img_prefix).is_dir():  # another check reports it
        return found
    return found._replace(names=tuple(find_folders(dataset.img_prefix)[0]), folder=dataset.img_prefix)


def _reads_files(dataset) -> bool:
    """Whether it is mmpretrain's CustomDataset or one that reads like it: folders as classes, or a list of labels."""
    reader = next((kind for kind in type(dataset).__mro__ if 'load_data_list' in vars(kind)), None)
    return (
        reader is not None
        and reader.__module__.partition('.')[0] in ('mmpretrain', 'mmrm')
        and hasattr(dataset, 'is_valid_file')
        and bool(getattr(dataset, 'with_label', False))
        and '://' not in f'{dataset.img_prefix}{dataset.ann_file}'
    )


def _labels_of_file(path: Path) -> Dict[Union[int, str], str]:
    """The labels of a file with a path and a label on each line."""
    first: Dict[Union[int, str], str] = {}
    if path.is_file():  # another check reports it
        with open(path, encoding='utf-8') as file:
            for number, line in enumerate(file, 1):
                label = line.strip().rpartition(' ')[2]
                first.setdefault(int(label) if label.isdecimal() else label, f'line {number} of {path}')
    return first


def _labels_of_samples(dataset) -> Dict[int, str]:
    """The labels of a data set that has read its samples; {} if they have none."""
    first: Dict[int, str] = {}
    for index in range(len(dataset) if getattr(dataset, '_fully_initialized', False) else 0):
        given = dataset.get_data_info(index).get('gt_label')
        for label in given if isinstance(given, (list, tuple)) else [given]:
            if not isinstance(label, int):
                return {}
            first.setdefault(label, f'sample {index}')
    return first


# ------------------------------------------------------------------------------------------------------ the comparison
def compare(heads: Dict[str, int], data: Sequence[DataClasses], cfg: Config, parts: Sequence[str]) -> ClassReport:
    """Report which numbers and names do not agree.

    Args:
        heads (dict): Every ``num_classes`` of the model, by its place (:func:`model_classes`).
        data (Sequence[DataClasses]): Of the data sets, training first.
        cfg (Config): For ``topk`` of head and evaluators.
        parts (Sequence[str]): The evaluators to check.
    """
    report = ClassReport([], {}, [])
    model = cfg.get('model') or {}
    if model.get('language_model') or model.get('tracker'):  # its numbers count words or persons, not classes
        return report
    head = heads.get('model.head.num_classes')
    known = [each for each in data if each.names]
    if not known and head is not None:  # the preprocessor must still agree with the head
        known = [DataClasses('model.head', 'the head', tuple(map(str, range(head))))]
    moved = _compare_splits(known, report)
    _compare_heads(heads, [each for each in known if each not in moved], report)
    for each in data:
        _compare_labels(each, heads, head, report)
    ranks = _too_large_topk(cfg, len(known[0].names), parts) if known else {}
    if ranks:
        report.problems.append(f'{", ".join(ranks)} asks for more classes than the {len(known[0].names)} there are')
        report.options.update(ranks)
    return report


def _compare_splits(data: Sequence[DataClasses], report: ClassReport) -> List[DataClasses]:
    """Report names that have another label than in the first data set; returns the data sets that have such names."""
    labels: Dict[str, List[int]] = {}
    for label, name in enumerate(data[0].names if data else ()):
        labels.setdefault(name, []).append(label)  # ImageNet has two classes 'crane'
    wrong = []
    for each in data[1:]:
        moved = [(label, name) for label, name in enumerate(each.names) if label not in labels.get(name, [label])]
        if not moved:
            continue
        label, name = moved[0]
        differing = abbreviate(sorted({*labels} ^ {*each.names}), SHOWN) or 'none'
        report.problems.append(
            f'{each.field} has {len(each.names)} classes, {data[0].field} has {len(data[0].names)} (not in both: '
            f'{differing}): {name!r} would be label {label} in one and {labels[name][0]} in the other. Both need the '
            'same classes in the same order; a class without images needs an empty folder'
        )
        wrong.append(each)
    return wrong


def _compare_heads(heads: Dict[str, int], data: Sequence[DataClasses], report: ClassReport) -> None:
    reported = set()
    for each in data:
        number = len(each.names)
        allowed = (number, each.things)  # a panoptic network has heads for all and heads for things
        wrong = tuple(place for place, given in heads.items() if given not in allowed)
        if not wrong or (number, wrong) in reported:
            continue
        reported.add((number, wrong))
        folders = f' (the folders {abbreviate(each.names, SHOWN)} of {each.folder})' if each.folder else ''
        given = ', '.join(f'{place}={heads[place]}' for place in wrong)
        report.problems.append(f'{each} has {number} classes{folders}, the model has {given}')
        for place in wrong:
            report.options.setdefault(place, number)


def _compare_labels(data: DataClasses, heads: Dict[str, int], head: Optional[int], report: ClassReport) -> None:
    number = len(data.names) or head
    if number is None or not data.labels:
        return
    wrong = [label for label in data.labels if label not in range(number)]
    if wrong:
        report.problems.append(
            f'{data} has the label {wrong[0]} ({data.labels[wrong[0]]}); with {number} classes 0 to {number - 1} are '
            'allowed'
        )
        return
    highest = max(data.labels)
    if not data.names and data.field.startswith('train') and highest < number - 1:
        report.warnings.append(
            f'{data} has labels up to {highest}, model.head.num_classes={number}. If there are {highest + 1} classes: '
            f'--cfg-options {" ".join(f"{place}={highest + 1}" for place in heads)}'
        )


def _too_large_topk(cfg: Config, number: int, parts: Sequence[str]) -> Dict[str, object]:
    """The ``topk`` of head and evaluators that need more classes than there are, each with a value that fits."""
    roots = {'model.head': (cfg.get('model') or {}).get('head')}
    roots.update({f'{part}_evaluator': cfg.get(f'{part}_evaluator') for part in parts})
    found = {}
    for place, node in (each for field, root in roots.items() for each in _nodes(root, field)):
        if not node.get('cal_acc') and type_name(node) not in ('Accuracy', 'MultiLabelMetric'):
            continue
        ranks = node.get('topk')
        ranks = [ranks] if isinstance(ranks, int) else list(ranks or ())
        if ranks and max(ranks) > number:
            fitting = [rank for rank in ranks if rank <= number] or [1]
            found[f'{place}.topk'] = fitting[0] if len(fitting) == 1 else str(fitting).replace(' ', '')
    return found
