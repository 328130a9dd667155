"""Classifiers and their data from configs, for analyses: read, checked and built without a Runner."""

import contextlib
import random
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import HOOKS
from mmpretrain.registry import BATCH_AUGMENTS, DATASETS, MODELS

from mmrm.core import RecursiveMix
from mmrm.models.regularisers import bind_augments
from mmrm.utils import paths
from mmrm.utils.config import datasets, number_of_classes, preprocessor_of, type_name
from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.utils.random_state import get_random_state, set_random_state
from mmrm.weights.build import build_model, choose_device, load, load_config, scope  # noqa: F401
from mmrm.weights.provenance import read_weights
from mmrm.weights.runs import find_checkpoint


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block from a seed, also on the GPU, and give the generators back as they were."""
    state = get_random_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(state)


def build_training_model(cfg: Config) -> torch.nn.Module:
    """The classifier of a config in training, with what its hooks put into it: DropBlock, and bound batch augments."""
    model = build_model(cfg)
    bind_augments(model)
    for hook in cfg.get('custom_hooks') or []:
        if type_name(hook) == 'DropBlockHook':
            HOOKS.build(dict(hook)).attach(model)
    return model


def build_preprocessor(cfg: Config):
    """The data preprocessor of a config, without batch augments."""
    scope(cfg)
    wanted = dict(preprocessor_of(cfg))
    wanted.setdefault('type', 'ClsDataPreprocessor')
    wanted.pop('batch_augments', None)
    return MODELS.build(wanted)


def build_dataset(cfg: Config, part: str):
    """The data set of ``train_dataloader``, ``val_dataloader`` or ``test_dataloader``."""
    scope(cfg)
    return DATASETS.build(cfg[f'{part}_dataloader'].dataset)


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


def data_name(cfg: Config, part: str) -> str:
    """What the data of a part is: its data set, its folder and which images of it."""
    found = [dataset for dataset, _ in datasets(cfg[f'{part}_dataloader'].dataset)]
    dataset = found[0] if found else {}
    where = dataset.get('data_root') or dataset.get('data_prefix') or ''
    which = dataset.get('split') or (dataset.get('data_prefix') if dataset.get('data_root') else '') or ''
    parts = (type_name(dataset), paths.show_path(Path(where)) if isinstance(where, str) and where else '', which)
    return ' '.join(part for part in parts if isinstance(part, str) and part)


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
        config = paths.show_path(Path(self.cfg.filename))
        after = f', epoch {self.epoch}' if self.epoch else ''
        return f'{self.name}: {paths.show_path(self.checkpoint)}{after}, config {config}'


def load_classifier(name: str, config: Union[str, Path], checkpoint: Union[str, Path], device: str = 'cpu') -> Trained:
    """Build a classifier and load its weights, all of them.

    Args:
        name (str): What to call it.
        config (str | Path): Its config.
        checkpoint (str | Path): Its weights, or the folder of its run: the best checkpoint, else the last.
        device (str): Defaults to 'cpu'.
    """
    cfg = load_config(config)
    if '://' not in str(checkpoint) and not paths.find(checkpoint).exists():
        raise UserFileError(f'checkpoint {checkpoint} of {name} does not exist.')
    weights = read_weights(find_checkpoint(checkpoint))
    model = build_model(cfg)
    load(model, weights.file)
    epoch = weights.meta.get('epoch')
    epoch = epoch if isinstance(epoch, int) else None
    return Trained(name, model.to(device).eval(), cfg, weights.file, epoch)


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


def recursive_mix_of(cfg: Config) -> Tuple[RecursiveMix, bool]:
    """The RecursiveMix of a config, new and empty, and whether the config has one; its defaults otherwise."""
    augments = (preprocessor_of(cfg).get('batch_augments') or {}).get('augments') or []
    for augment in augments if isinstance(augments, (list, tuple)) else [augments]:
        if type_name(augment) == 'RecursiveMix':
            return BATCH_AUGMENTS.build(dict(augment)), True
    return RecursiveMix(), False
