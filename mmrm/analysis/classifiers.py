"""Classifiers and their data from configs, for analyses: read, checked and built without a Runner."""
import contextlib
import copy
import random
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmpretrain.registry import DATASETS, MODELS

from .. import paths, preflight
from ..errors import UserFileError, UserValueError
from ..hooks.random_state import get_random_state, set_random_state


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block from a seed and give Python's, NumPy's and torch's generators back as they were."""
    state = get_random_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(state)


def load_config(config: Union[str, Path], options: Optional[dict] = None, part: Optional[str] = None) -> Config:
    """Read the config of a classifier.

    Args:
        config (str | Path): From the current folder, the checkout or its configs/.
        options (dict, optional): Settings that replace those of the config, ``{'a.b': value}``.
        part (str, optional): 'train', 'val' or 'test': the data that must be there. Defaults to None.

    Raises:
        UserFileError: If the config or the data is missing.
        UserValueError: If it is no config of a classifier.
    """
    path = paths.find_config(config)
    cfg = preflight.read_config(path, options)
    preflight.require(cfg, path, 'model', *([f'{part}_dataloader'] if part else []))
    kind = preflight.type_name(cfg.model)
    if kind != 'ImageClassifier':
        raise UserValueError(f'config {path} is not one of a classifier: its model is {kind or "without a type"}, and '
                             'an ImageClassifier is needed.')
    if part:
        preflight.find_data(cfg, (part, ))
    return cfg


def scope(cfg: Config) -> None:
    """Make the toolbox of a config the one whose names count."""
    init_default_scope(cfg.get('default_scope') or 'mmpretrain')


def build_model(cfg: Config) -> torch.nn.Module:
    """The classifier of a config, not initialised, without mmengine's chatter."""
    from mmengine.logging import MMLogger
    scope(cfg)
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel('WARNING')
    try:
        model = copy.deepcopy(cfg.model)
        model.data_preprocessor = copy.deepcopy(preflight.preprocessor_of(cfg))
        return MODELS.build(model)
    finally:
        logger.setLevel(level)


def build_preprocessor(cfg: Config):
    """The data preprocessor of a config, without batch augments."""
    scope(cfg)
    wanted = dict(preflight.preprocessor_of(cfg))
    wanted.setdefault('type', 'ClsDataPreprocessor')
    wanted.pop('batch_augments', None)
    return MODELS.build(wanted)


def build_dataset(cfg: Config, part: str):
    """The data set of ``train_dataloader``, ``val_dataloader`` or ``test_dataloader``."""
    scope(cfg)
    return DATASETS.build(cfg[f'{part}_dataloader'].dataset)


def pipeline_of(cfg: Config, part: str) -> List[dict]:
    """The transforms of a part's data set, those of the first one if it wraps several."""
    found = [dataset for dataset, _ in preflight.datasets(cfg[f'{part}_dataloader'].dataset)]
    return list(found[0].get('pipeline') or []) if found else []


def data_name(cfg: Config, part: str) -> str:
    """What the data of a part is: its data set, its folder and which images of it."""
    from .tables import show_path
    found = [dataset for dataset, _ in preflight.datasets(cfg[f'{part}_dataloader'].dataset)]
    dataset = found[0] if found else {}
    where = dataset.get('data_root') or dataset.get('data_prefix') or ''
    which = dataset.get('split') or (dataset.get('data_prefix') if dataset.get('data_root') else '') or ''
    parts = (preflight.type_name(dataset), show_path(Path(where)) if isinstance(where, str) and where else '', which)
    return ' '.join(part for part in parts if isinstance(part, str) and part)


def class_names(dataset) -> Optional[Sequence[str]]:
    """The names of a data set's classes, None if it has none."""
    return (getattr(dataset, 'metainfo', None) or {}).get('classes')


def read_batches(dataset, size: int, seed: int) -> Iterator[dict]:
    """Endless batches of a data set in an order drawn from ``seed``, as a data loader gives them."""
    if len(dataset) < size:
        raise UserValueError(f'a batch of {size} images from a data set of {len(dataset)}.')
    order, drawn = [], np.random.RandomState(seed)
    while True:
        while len(order) < size:
            order += drawn.permutation(len(dataset)).tolist()
        taken, order = order[:size], order[size:]
        items = [dataset[index] for index in taken]
        yield dict(inputs=[item['inputs'] for item in items], data_samples=[item['data_samples'] for item in items])


def soft_labels(samples: Sequence, num_classes: int) -> torch.Tensor:
    """The labels of data samples as scores, shape ``(N, num_classes)``."""
    scores = torch.zeros(len(samples), num_classes)
    for row, sample in zip(scores, samples):
        if 'gt_score' in sample:
            row += sample.gt_score.cpu().float()
        elif 'gt_label' in sample:
            row[sample.gt_label.cpu()] = 1.
        else:
            raise UserValueError('the data set has no labels: there is nothing to fuse or to compare.')
    return scores


def number_of_classes(cfg: Config) -> int:
    """As the head or the preprocessor of a config says."""
    for node in (cfg.model.get('head') or {}, preflight.preprocessor_of(cfg)):
        if isinstance(node.get('num_classes'), int):
            return node['num_classes']
    raise UserValueError('the config says nowhere how many classes there are (model.head.num_classes).')


class Trained(NamedTuple):
    """A classifier with its weights.

    Args:
        name (str): What to call it in a figure.
        model (nn.Module): In eval mode, on its device.
        cfg (Config): Its config.
        checkpoint (Path): Its weights.
        epoch (int, optional): After which they were saved, where the file says so.
    """
    name: str
    model: torch.nn.Module
    cfg: Config
    checkpoint: Path
    epoch: Optional[int] = None

    @property
    def origin(self) -> str:
        """What made it, for a figure's foot."""
        from .tables import show_path
        config = show_path(Path(self.cfg.filename))
        after = f', epoch {self.epoch}' if self.epoch else ''
        return f'{self.name}: {show_path(self.checkpoint)}{after}, config {config}'


def load_classifier(name: str, config: Union[str, Path], checkpoint: Union[str, Path], device: str = 'cpu') -> Trained:
    """Build a classifier and load its weights, all of them.

    Args:
        name (str): What to call it.
        config (str | Path): Its config.
        checkpoint (str | Path): Its weights, or the folder of its run: the best checkpoint, else the last.
        device (str): Defaults to 'cpu'.
    """
    from ..weights import find_checkpoint, read_checkpoint
    cfg = load_config(config)
    if '://' not in str(checkpoint) and not paths.find(checkpoint).exists():
        raise UserFileError(f'checkpoint {checkpoint} of {name} does not exist.')
    checkpoint = Path(find_checkpoint(checkpoint))
    model = build_model(cfg)
    preflight.check_weights(model, str(checkpoint), unused=preflight.UNUSED_IN_TEST)
    saved = read_checkpoint(checkpoint)
    meta = saved.get('meta') if isinstance(saved, dict) else None
    epoch = (meta or {}).get('epoch') or (saved.get('epoch') if isinstance(saved, dict) else None)
    return Trained(name, model.to(device).eval(), cfg, checkpoint, epoch if isinstance(epoch, int) else None)


def parse_models(given: Sequence[Tuple[str, str, str]], device: str = 'cpu') -> List[Trained]:
    """``--model NAME CONFIG CHECKPOINT`` of the tools."""
    if not given:
        raise UserValueError('there is no model: give --model NAME CONFIG CHECKPOINT, once for each checkpoint.')
    return [load_classifier(name, config, checkpoint, device) for name, config, checkpoint in given]


def check_same_classes(models: Sequence[Trained]) -> None:
    """Raise if classifiers that are compared have different numbers of classes."""
    counts = {trained.name: number_of_classes(trained.cfg) for trained in models}
    if len(set(counts.values())) > 1:
        told = ', '.join(f'{name}: {count}' for name, count in counts.items())
        raise UserValueError(f'the models have different numbers of classes ({told}): they cannot be compared.')
