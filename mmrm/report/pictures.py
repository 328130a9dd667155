"""Pictures that need the checkpoint and the data of a run: what a classifier looks at and where it errs.

They are computed once and kept in the run's folder, by the hash of checkpoint and config. A picture that cannot be made
is noted and leaves the others alone.
"""

import base64
import contextlib
import hashlib
import io
import json
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from ..datasets.locate import find_data
from ..utils import figures
from ..utils.errors import UserError, UserFileError, one_line
from ..utils.files import write_text
from ..utils.random_state import seeded
from ..utils.trust import read_foreign_config
from ..weights import find_checkpoint
from ..weights.build import build_model, load
from . import cam
from .collect import Collected, Run

FILE = 'report_pictures.json'
VERSION = 3  # of what is drawn
SEED = 0
IMAGES = 4  # for activation maps
TESTED = 2000  # images in which confusions are looked for
CONFUSIONS, EXAMPLES = 5, 6
MOST = 6  # runs of a task, side by side
SMALL, LARGE = 128, 320  # pixels of a picture's longer side, at least and at most


def of_runs(collected: Collected, device: str = 'cpu', log: Callable[[str], None] = print) -> Dict[str, dict]:
    """The pictures of classifiers by folder: of the first run of every group that has a checkpoint, at most MOST.

    Args:
        collected (Collected): The runs of a page.
        device (str): Where the networks run. Defaults to 'cpu'.
        log (callable): Called with a line of text for each run.
    """
    found: Dict[str, dict] = {}
    for task, groups in collected.tasks().items():
        if not task.startswith('Classification'):
            continue
        for group in list(groups)[MOST:]:
            log(f'pictures: {group} left out, {MOST} of a task are shown side by side')
        for members in list(groups.values())[:MOST]:
            run = next(filter(checkpoint_of, members), members[0])
            log(f'pictures: {task}: {run.name}')
            found[str(run.log.folder)] = of_run(run, device)
    return found


def of_run(run: Run, device: str = 'cpu') -> dict:
    """The pictures of a classifier: from where they are kept, else drawn and kept.

    Returns:
        dict: ``maps`` and ``confusions``, where they could be made, and ``notes``, which say what could not.
    """
    checkpoint = checkpoint_of(run)
    if run.config is None or checkpoint is None:
        return dict(notes=[f'no pictures: there is no {"checkpoint" if run.config else "config"} in its folder'])
    key = hashlib.sha256(f'{VERSION}\n'.encode() + run.config.read_bytes() + checkpoint.read_bytes()).hexdigest()
    file = run.log.folder / FILE
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(file.read_text())
        if isinstance(known, dict) and known.get('key') == key and is_drawn(known.get('pictures')):
            return known['pictures']
    drawn, complete = _draw(run, checkpoint, device)
    if complete:
        with contextlib.suppress(UserFileError):  # a folder that may not be written to
            write_text(file, json.dumps(dict(key=key, pictures=drawn)), overwrite=True)
    return drawn


def is_drawn(pictures: Any) -> bool:
    """Whether a file, which may be anybody's, holds what :func:`of_run` returns, with no image of another place."""
    try:
        confused = pictures.get('confusions', [])
        shots = [each for item in pictures.get('maps', {}).values() for each in (item, item['truth'])]
        shots += [each for item in confused for each in item['images']]
        complete = all({'truth', 'predicted', 'count', 'of'} <= set(item) for item in confused)
        complete &= all({'caption', 'alt'} <= set(each) for each in shots) and isinstance(pictures['notes'], list)
        return complete and all(each['image'].startswith('data:image/') for each in shots)
    except (AttributeError, KeyError, TypeError):
        return False


def checkpoint_of(run: Run) -> Optional[Path]:
    """The run's best checkpoint, else its last; None if none was kept."""
    try:
        return Path(find_checkpoint(run.log.folder))
    except (UserError, OSError):
        return None


def _draw(run: Run, checkpoint: Path, device: str) -> Tuple[dict, bool]:
    """The pictures, and whether all of them could be made."""
    drawn: dict = dict(notes=[])
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), seeded(SEED):
        warnings.simplefilter('ignore')
        try:
            cfg = read_config(run.config)
            model = load_model(cfg, checkpoint, device)
        except Exception as error:  # of the config, the toolbox or the weights
            drawn['notes'].append(f'no pictures of the network: {one_line(error)}')
            return drawn, False
        parts = dict(maps=lambda: maps(cfg, model), confusions=lambda: confusions(cfg, model, drawn['notes']))
        for name, draw in parts.items():
            try:
                drawn[name] = draw()
            except Exception as error:  # of the data, the toolbox or a package that is missing
                drawn['notes'].append(f'{name}: not made ({one_line(error)})')
    return drawn, set(parts) < set(drawn)


# ------------------------------------------------------------------------------------------------------ model and data
def read_config(path: Path) -> Config:
    """The config that a run wrote down, its data looked up from the current folder and the project's."""
    cfg = read_foreign_config(path)
    init_default_scope(cfg.get('default_scope') or 'mmpretrain')
    find_data(cfg, ())
    return cfg


def load_model(cfg: Config, checkpoint: Path, device: str) -> torch.nn.Module:
    """The network of a config with all weights of a checkpoint, in eval mode."""
    from mmengine.model import revert_sync_batchnorm

    model = revert_sync_batchnorm(build_model(cfg))
    load(model, checkpoint)
    return model.to(device).eval()


def test_part(cfg: Config) -> str:
    """The part of the data that the run was validated on."""
    return 'val' if cfg.get('val_dataloader') else 'test'


def test_data(cfg: Config):
    return DATASETS.build(cfg[f'{test_part(cfg)}_dataloader'].dataset)


def spread(length: int, number: int) -> List[int]:
    """So many places in a data set, evenly."""
    number = min(number, length)
    return [int((index + 0.5) * length / number) for index in range(number)]


def readable(dataset, places: Sequence[int]) -> List[Tuple[int, dict]]:
    """Items of a data set with their places, without those whose image is gone or damaged."""
    found = []
    for place in places:
        with contextlib.suppress(Exception):  # whatever a pipeline raises
            found.append((place, dataset[place]))
    return found


def to_rgb(cfg: Config, inputs: torch.Tensor) -> np.ndarray:
    """An image as a data set gives it, ``(3, H, W)``, as uint8 RGB ``(H, W, 3)``."""
    image = inputs.permute(1, 2, 0).numpy()
    return image[..., ::-1] if figures.channel_order(cfg) == 'bgr' else image


# ------------------------------------------------------------------------------------------------------------- pixels
def encode(image: np.ndarray) -> str:
    """An image, uint8 RGB, as a data address: small ones enlarged pixel by pixel, large ones shrunk."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    small = max(picture.size) <= SMALL
    factor = max(-(-SMALL // max(picture.size)), 1)
    picture = picture.resize((picture.width * factor, picture.height * factor), Image.NEAREST)
    picture.thumbnail((LARGE, LARGE), Image.LANCZOS)
    buffer = io.BytesIO()
    kind, options = ('png', {}) if small else ('jpeg', dict(quality=82))
    picture.save(buffer, kind, optimize=True, **options)
    return f'data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}'


# --------------------------------------------------------------------------------------------------------- classifiers
def class_name(dataset, index: int) -> str:
    names = figures.class_names(dataset)
    return figures.short_name(names[index]) if names else f'class {index}'


def maps(cfg: Config, model: torch.nn.Module) -> Dict[str, dict]:
    """Activation maps of test images for their class. Those of mixed images: tools/analysis/cam.py."""
    dataset, device, found = test_data(cfg), next(model.parameters()).device, {}
    for place, item in readable(dataset, spread(len(dataset), 2 * IMAGES))[:IMAGES]:
        pixels, index = item['inputs'], int(item['data_samples'].gt_label)
        shown, label = to_rgb(cfg, pixels), class_name(dataset, index)
        inputs = model.data_preprocessor(dict(inputs=[pixels.to(device)], data_samples=None), training=False)['inputs']
        [heat], [share] = cam.activation_maps(model, inputs, [index])
        heat = heat[: shown.shape[0], : shown.shape[1]]  # the preprocessor may have padded it
        title = f'test image {place}, {label}'
        found[title] = dict(
            truth=dict(image=encode(shown), caption=title, alt=title),
            image=encode(cam.overlay(shown, heat)),
            caption=f'p = {share:.2f}',
            alt=f'activation map of {title}, p = {share:.2f}',
        )
    return found


def confusions(cfg: Config, model: torch.nn.Module, notes: List[str]) -> List[dict]:
    """The pairs of classes that are confused most, with the surest mistakes."""
    dataset = test_data(cfg)
    places = spread(len(dataset), TESTED)
    wrong: Dict[Tuple[int, int], List[Tuple[float, int]]] = {}
    seen: List[int] = []
    for start in range(0, len(places), 64):
        items = readable(dataset, places[start : start + 64])
        if not items:
            continue
        with torch.no_grad():
            answers = model.test_step({key: [item[key] for _, item in items] for key in ('inputs', 'data_samples')})
        for (place, _), answer in zip(items, answers):
            truth, guess = int(answer.gt_label), int(answer.pred_score.argmax())
            seen.append(truth)
            if truth != guess:
                wrong.setdefault((truth, guess), []).append((float(answer.pred_score[guess]), place))
    if len(places) < len(dataset):
        notes.append(f'confusions: in {len(places)} of {len(dataset)} images, evenly taken')
    if len(seen) < len(places):
        notes.append(f'confusions: {len(places) - len(seen)} images could not be read')
    found = []
    for (truth, guess), mistakes in sorted(wrong.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:CONFUSIONS]:
        name, other = class_name(dataset, truth), class_name(dataset, guess)
        images = [
            dict(
                image=encode(to_rgb(cfg, dataset[place]['inputs'])),
                caption=f'p = {share:.2f}',
                alt=f'{name} taken for {other}, p = {share:.2f}',
            )
            for share, place in sorted(mistakes, reverse=True)[:EXAMPLES]
        ]
        found.append(dict(truth=name, predicted=other, count=len(mistakes), of=seen.count(truth), images=images))
    return found
