"""What a run reads: how many samples, and which, so that a resume and a table notice other data or another metric."""

import hashlib
import os
import zlib
from typing import Any, Dict, List, Optional

import numpy as np
import torch

from ..utils.config import type_name
from ..utils.errors import UserValueError
from ..utils.random_state import kept_generators
from ..utils.settings import IGNORED, plain
from .batched_images import unwrapped
from .classes import unwrapped_datasets
from .loops import copies, put_back

# What a sample is: its names, without the folders they are in, and its labels.
NAMES = ('img_path', 'seg_map_path')
LABELS = ('gt_label', 'gt_score', 'instances', 'img')
UNIMPORTANT = (*IGNORED, 'collect_device', 'collect_dir', 'outfile_prefix', 'prefix')  # of a metric


def describe_data(loops: Dict[str, Any], cfg: dict) -> dict:
    """What a run reads, in the types of JSON.

    It is written to ``data.json`` in the work dir and, as ``meta.mmrm_run.data``, into every checkpoint::

        {"train": {"samples": 50000, "sha256": "8d0f..."},
         "val": {"samples": 10000, "sha256": "77a1..."},
         "val_evaluator": {"type": "Accuracy", "topk": [1, 5]}}

    ``sha256`` (16 hexadecimal digits) is over the samples in their order: the names of their files without folders,
    which may move, and their labels or boxes; of images in memory also the pixels. It is null for data that does not
    list its samples. A run without validation has neither of the last two.

    Args:
        loops: The loops of the run by their part, 'train' and 'val'; None for one that it lacks.
        cfg: The config, for its ``val_evaluator``.
    """
    found: Dict[str, Any] = {}
    for part, loop in loops.items():
        if hasattr(loop, 'dataloader'):
            dataset = loop.dataloader.dataset
            digest = hashlib.sha256()
            known = _add(dataset, digest)
            samples = len(dataset) if hasattr(dataset, '__len__') else None
            found[part] = dict(samples=samples, sha256=digest.hexdigest()[:16] if known else None)
    if 'val' in found and cfg.get('val_evaluator'):
        found['val_evaluator'] = plain(cfg['val_evaluator'], UNIMPORTANT)
    return found


def _add(dataset: Any, digest) -> bool:
    """Add the samples of a data set, or of those in a wrapper, to a hash; False if it does not list them."""
    known = True
    for each, _ in unwrapped_datasets(dataset):
        known = known and hasattr(each, 'get_data_info')
        for index in range(len(each) if hasattr(each, 'get_data_info') else 0):
            info = each.get_data_info(index)
            names = [os.path.basename(str(info.get(key))) for key in NAMES]
            digest.update(f'{names}{[_label(info.get(key)) for key in LABELS]}\n'.encode())
    return known


def _label(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return zlib.crc32(value.tobytes())
    return value.item() if isinstance(value, np.generic) else value


def check_same_data(old: Optional[dict], new: dict, path: str) -> None:
    """Raise if a checkpoint, with ``old``, is of a run on other data or with other metrics; what one lacks is not
    compared."""
    problems: List[str] = []
    for key, before in (old or {}).items():
        now = new.get(key, before)
        if now != before:
            problems.append(f'{key}: {_words(before)} in the checkpoint, {_words(now)} here')
    if problems:
        raise UserValueError(
            f'checkpoint {path} is of a run on other data or with other metrics ({"; ".join(problems)}). Resume with '
            f'those, or start a new run from its weights: --cfg-options load_from={path}'
        )


def _words(value: Any) -> str:
    if isinstance(value, dict) and 'samples' in value:
        return f'{value["samples"]} samples (hash {value["sha256"]})'
    return str(value)


def no_samples(dataset: dict) -> UserValueError:
    """The error for the config of a data set without a sample."""
    named = {key: dataset[key] for key in ('data_root', 'data_prefix', 'ann_file', 'indices') if dataset.get(key)}
    return UserValueError(f'the data set {type_name(dataset)} is empty: {named}')


def check_last_batch(runner) -> None:
    """Raise if the last batch of an epoch is one image and the network cannot train on it: batch norm on a 1 x 1 map.

    One image goes through the network then, which is left as it was.
    """
    loader = runner.train_dataloader
    size, sampler = getattr(loader.batch_sampler, 'batch_size', None), getattr(loader, 'sampler', None)
    if not size or size < 2 or getattr(loader.batch_sampler, 'drop_last', False) or not hasattr(sampler, '__len__'):
        return
    if len(sampler) % size != 1 or hasattr(sampler, '_infinite_indices'):
        return
    model, kept = unwrapped(runner.model), copies(runner)
    model.train()
    with kept_generators(), torch.no_grad():
        try:
            data = model.data_preprocessor(loader.collate_fn([loader.dataset[0]]), training=False)
            model._run_forward(data, mode='loss')
        except Exception as error:  # any other comes again in the run
            if 'more than 1 value per channel' in str(error):
                raise UserValueError(
                    f'the last batch of an epoch is one image ({len(sampler)} in batches of {size}), and batch norm '
                    'cannot train on it, because its map is 1 x 1. Leave it out: --cfg-options '
                    'train_dataloader.drop_last=True, or choose another batch_size.'
                ) from error
    put_back(kept)
