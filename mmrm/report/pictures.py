"""Pictures that need the checkpoint and the data of a run: what a classifier looks at and where it errs.

They are computed once and kept in the run's folder, by the hash of the checkpoint. A picture that cannot be made
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
from mmengine.registry import DATASETS
from PIL import Image

from ..datasets.locate import find_data
from ..utils.errors import UserError, UserFileError, one_line
from ..utils.figures import short_name
from ..utils.files import write_text
from ..utils.random_state import seeded
from ..utils.trust import registered_only
from ..weights import find_checkpoint
from ..weights.build import Run as Trained
from ..weights.build import open_run
from ..weights.inputs import Reader, normalise
from . import cam
from .collect import Collected, Run

FILE = 'report_pictures.json'
VERSION = 4  # of what is drawn
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
    if checkpoint is None:
        return dict(notes=['no pictures: there is no checkpoint in its folder'])
    key = hashlib.sha256(f'{VERSION}\n'.encode() + checkpoint.read_bytes()).hexdigest()
    file = run.log.folder / FILE
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(file.read_text())
        if isinstance(known, dict) and known.get('key') == key and is_drawn(known.get('pictures')):
            return known['pictures']
    drawn, complete = _draw(checkpoint, device)
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
    with contextlib.suppress(UserError, OSError):
        return Path(find_checkpoint(run.log.folder))
    return None


def _draw(checkpoint: Path, device: str) -> Tuple[dict, bool]:
    """The pictures, and whether all of them could be made."""
    drawn: dict = dict(notes=[])
    parts, quiet = dict(maps=maps, confusions=confusions), contextlib.redirect_stdout(io.StringIO())
    with warnings.catch_warnings(), quiet, seeded(SEED), registered_only(f'checkpoint {checkpoint}'):
        warnings.simplefilter('ignore')
        try:
            run = open_run(checkpoint, device=device)
            find_data(run.cfg, ())
            dataset = DATASETS.build((run.cfg.get('val_dataloader') or run.cfg.test_dataloader).dataset)
            reader = Reader(run.cfg)
        except Exception as error:  # of the config, the toolbox, the weights or the data
            drawn['notes'].append(f'no pictures: {one_line(error)}')
            return drawn, False
        for name, draw in parts.items():
            try:
                drawn[name] = draw(run, dataset, reader, drawn['notes'])
            except Exception as error:  # of the data, the toolbox or a package that is missing
                drawn['notes'].append(f'{name}: not made ({one_line(error)})')
    return drawn, set(parts) < set(drawn)


# ---------------------------------------------------------------------------------------------------------------- data
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


def pixels_of(item: dict) -> np.ndarray:
    """The image of an item, uint8 ``(H, W, 3)``, channels as the data preprocessor takes them."""
    return item['inputs'].permute(1, 2, 0).numpy()


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


def shot(image: np.ndarray, caption: str, alt: str) -> Dict[str, str]:
    """A picture as the page shows it."""
    return dict(image=encode(image), caption=caption, alt=alt)


# --------------------------------------------------------------------------------------------------------- classifiers
def maps(run: Trained, dataset, reader: Reader, notes: List[str]) -> Dict[str, dict]:
    """Activation maps of test images for their class. Those of mixed images: tools/analysis/cam.py."""
    found = {}
    for place, item in readable(dataset, spread(len(dataset), 2 * IMAGES))[:IMAGES]:
        pixels, index = pixels_of(item), int(item['data_samples'].gt_label)
        [heat], [share] = cam.activation_maps(run.model, normalise(pixels, run.model.data_preprocessor), [index])
        heat = heat[: pixels.shape[0], : pixels.shape[1]]  # the preprocessor may have padded it
        shown, title = reader.to_rgb(pixels), f'test image {place}, {short_name(run.classes[index])}'
        drawn = shot(cam.overlay(shown, heat), f'p = {share:.2f}', f'activation map of {title}, p = {share:.2f}')
        found[title] = dict(drawn, truth=shot(shown, title, title))
    return found


def confusions(run: Trained, dataset, reader: Reader, notes: List[str]) -> List[dict]:
    """The pairs of classes that are confused most, with the surest mistakes."""
    places = spread(len(dataset), TESTED)
    wrong: Dict[Tuple[int, int], List[Tuple[float, int]]] = {}
    seen: List[int] = []
    for start in range(0, len(places), 64):
        items = readable(dataset, places[start : start + 64])
        if not items:
            continue
        with torch.no_grad():
            answers = run.model.test_step({key: [item[key] for _, item in items] for key in ('inputs', 'data_samples')})
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
        name, other = short_name(run.classes[truth]), short_name(run.classes[guess])
        images = [
            shot(reader.to_rgb(pixels_of(dataset[place])), f'p = {p:.2f}', f'{name} taken for {other}, p = {p:.2f}')
            for p, place in sorted(mistakes, reverse=True)[:EXAMPLES]
        ]
        found.append(dict(truth=name, predicted=other, count=len(mistakes), of=seen.count(truth), images=images))
    return found
