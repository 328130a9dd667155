"""Pictures that need the checkpoint and the data of a run: what it was fed, what it looks at, where it errs.

They are computed once and kept in the run's folder, by the hash of checkpoint and config; beside the report where that
folder may not be written to. A picture that cannot be made is told and leaves the others alone.
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import warnings
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..utils.errors import UserError, UserFileError
from ..utils.files import write_text
from .collect import Run

FILE = 'report_pictures.json'
VERSION = 1  # of what is drawn
SEED = 0
FED = 6  # successive iterations
SCENES = 4  # of a detector or segmentor
IMAGES = 3  # natural ones for activation maps
MIXED = 2  # mixed ones for activation maps
TESTED = 2000  # images in which confusions are looked for
CONFUSIONS, EXAMPLES = 5, 6
MOST = 6  # runs of a task, side by side
SCORE = 0.3  # below it a box is not drawn
SMALL, LARGE = 128, 320  # pixels of a picture's longer side, at least and at most


def of_runs(
    runs: Sequence[Run], device: str = 'cpu', beside: Optional[Path] = None, tell: Callable[[str], None] = print
) -> Dict[str, dict]:
    """The pictures of runs by folder: of the first run of every group that has a checkpoint, of a task at most MOST.

    Args:
        runs (Sequence[Run]): The runs of a page.
        device (str): Where the networks run. Defaults to 'cpu'.
        beside (Path, optional): Holds what a run's folder may not. Defaults to None, nothing is kept then.
        tell (callable): Called with a line of text for each run.
    """
    found: Dict[str, dict] = {}
    done: Dict[str, List[str]] = {}
    for run in runs:
        groups = done.setdefault(run.task, [])
        if run.group in groups:
            continue
        if len(groups) >= MOST:
            tell(f'pictures: {run.name} left out, {MOST} of a task are shown side by side')
            continue
        if checkpoint_of(run) is None and any(checkpoint_of(other) for other in runs if _same_group(run, other)):
            continue  # another seed has one
        groups.append(run.group)
        tell(f'pictures: {run.task}: {run.name}')
        found[str(run.log.folder)] = of_run(run, device, beside)
    return found


def _same_group(one: Run, other: Run) -> bool:
    return (one.task, one.group) == (other.task, other.group)


def of_run(run: Run, device: str = 'cpu', beside: Optional[Path] = None) -> dict:
    """The pictures of a run: from where they are kept, else drawn and kept.

    Returns:
        dict: ``fed``, ``maps``, ``confusions`` of a classifier, ``predictions`` of a detector or segmentor, where they
        could be made, and ``notes``, which tell what could not.
    """
    checkpoint = checkpoint_of(run)
    if run.config is None:
        return dict(notes=['no pictures: there is no config in its folder'])
    key = _key(run.config, checkpoint)
    places = [run.log.folder / FILE]
    if beside is not None:
        places.append(Path(beside) / 'report_pictures' / f'{key[:16]}.json')
    for place in places:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(place.read_text())
            if isinstance(known, dict) and known.get('key') == key and isinstance(known.get('pictures'), dict):
                return known['pictures']
    drawn, whole = _draw(run, checkpoint, device)
    if whole:
        for place in places:
            try:
                if place.parent == run.log.folder and not os.access(place.parent, os.W_OK):
                    continue
                write_text(place, json.dumps(dict(key=key, pictures=drawn)), overwrite=True)
                break
            except UserFileError:
                continue
    return drawn


def checkpoint_of(run: Run) -> Optional[Path]:
    """The run's best checkpoint, else its last; None if none was kept."""
    from ..weights import find_checkpoint

    try:
        return Path(find_checkpoint(run.log.folder))
    except (UserError, OSError):
        return None


def _key(config: Path, checkpoint: Optional[Path]) -> str:
    digest = hashlib.sha256(f'{VERSION}\n'.encode() + config.read_bytes())
    if checkpoint is not None:
        with open(checkpoint, 'rb') as file:
            for block in iter(lambda: file.read(1 << 20), b''):
                digest.update(block)
    return digest.hexdigest()


def _draw(run: Run, checkpoint: Optional[Path], device: str) -> Tuple[dict, bool]:
    """The pictures, and whether all of them could be made."""
    from ..weights.classifiers import seeded

    drawn: dict = dict(notes=[])
    quiet = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), seeded(SEED):
        warnings.simplefilter('ignore')
        try:
            cfg = read_config(run)
        except Exception as error:
            return dict(notes=[f'no pictures: its config cannot be read ({_told(error)})']), False
        kind = run.task.split(',')[0]
        parts: List[Tuple[str, Callable]] = []
        if kind == 'Classification':
            parts.append(('fed', lambda model: fed(cfg)))
        if checkpoint is None:
            drawn['notes'].append('no checkpoint in its folder: nothing that needs the network')
        elif kind == 'Classification':
            parts.append(('maps', lambda model: maps(cfg, model)))
            parts.append(('confusions', lambda model: confusions(cfg, model, drawn['notes'])))
        elif kind in ('Detection', 'Segmentation'):
            parts.append(('predictions', lambda model: predictions(cfg, model, kind)))
        else:
            drawn['notes'].append('no pictures for this kind of task')
        model = None
        for name, part in parts:
            try:
                if name != 'fed' and model is None:
                    model = load_model(cfg, checkpoint, device)
                drawn[name] = part(model)
            except Exception as error:  # of the data, the toolbox or a package that is not there
                drawn['notes'].append(f'{name}: not made ({_told(error)})')
    whole = all(name in drawn for name, _ in parts) and bool(parts) and checkpoint is not None
    return drawn, whole


def _told(error: BaseException) -> str:
    text = ' '.join(str(error).split()) or type(error).__name__
    return text if len(text) <= 240 else f'{text[:237]}...'


# ------------------------------------------------------------------------------------------------------ model and data
def read_config(run: Run):
    """The config that a run wrote down, its data looked up from the current folder, the project's and the run's own."""
    from mmengine.config import Config
    from mmengine.registry import init_default_scope

    from ..datasets.locate import find_data
    from ..utils.config import datasets

    cfg = Config.fromfile(run.config)
    init_default_scope(cfg.get('default_scope') or 'mmpretrain')
    for part in ('train', 'val', 'test'):
        for dataset, _ in datasets((cfg.get(f'{part}_dataloader') or {}).get('dataset') or {}):
            root = dataset.get('data_root')
            if isinstance(root, str) and root and not Path(root).is_absolute() and not Path(root).exists():
                above = (folder / root for folder in run.log.folder.absolute().parents)
                dataset['data_root'] = next((str(path) for path in above if path.exists()), root)
    find_data(cfg, ())
    return cfg


def load_model(cfg, checkpoint: Path, device: str):
    """The network of a config with all weights of a checkpoint, in eval mode."""
    from mmengine.model import revert_sync_batchnorm
    from mmengine.registry import MODELS

    from ..utils.config import type_name
    from ..weights.classifiers import build_model
    from ..weights.strict import UNUSED_IN_TEST, load_weights

    if type_name(cfg.model) == 'ImageClassifier':
        model = build_model(cfg)
    else:
        model = MODELS.build(cfg.model)
    model = revert_sync_batchnorm(model)
    load_weights(model, str(checkpoint), unused=UNUSED_IN_TEST)
    return model.to(device).eval()


def tested_data(cfg):
    """The data set that the run was validated on."""
    from mmengine.registry import DATASETS

    part = 'val' if cfg.get('val_dataloader') else 'test'
    return DATASETS.build(cfg[f'{part}_dataloader'].dataset)


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


# ------------------------------------------------------------------------------------------------------------- pixels
def encode(image: np.ndarray, photo: bool = False) -> str:
    """An image, uint8 RGB, as a data address: small ones enlarged pixel by pixel, large ones shrunk."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image))
    side = max(picture.size)
    if side < SMALL:
        factor = -(-SMALL // side)
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.NEAREST)
    elif side > LARGE:
        picture.thumbnail((LARGE, LARGE), Image.LANCZOS)
    buffer = io.BytesIO()
    if photo or side > SMALL:
        picture.save(buffer, 'JPEG', quality=82, optimize=True)
    else:
        picture.save(buffer, 'PNG', optimize=True)
    kind = 'jpeg' if photo or side > SMALL else 'png'
    return f'data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}'


def framed(image: np.ndarray, box) -> np.ndarray:
    """An image with a box outlined in black and white, enlarged first so that the line is thin."""
    from PIL import Image, ImageDraw

    factor = max(-(-SMALL // max(image.shape[:2])), 1)
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture = picture.resize((picture.width * factor, picture.height * factor), Image.NEAREST)
    if box is not None:
        draw = ImageDraw.Draw(picture)
        corners = [box.x1 * factor, box.y1 * factor, box.x2 * factor - 1, box.y2 * factor - 1]
        draw.rectangle(corners, outline='black', width=3)
        draw.rectangle([corners[0] + 1, corners[1] + 1, corners[2] - 1, corners[3] - 1], outline='white', width=1)
    return np.asarray(picture)


# --------------------------------------------------------------------------------------------------------- classifiers
def fed(cfg) -> List[dict]:
    """The first sample of successive training batches, as the network got it: the run's own data, pipeline, mixing."""
    from mmengine.registry import DATASETS, MODELS

    from ..models.data_preprocessor import MIX_FIELD
    from ..utils import figures, panels
    from ..utils.config import number_of_classes, pipeline_of, preprocessor_of
    from ..weights.classifiers import read_batches

    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    settings = dict(preprocessor_of(cfg))
    settings.setdefault('type', 'ClsDataPreprocessor')
    preprocessor = MODELS.build(settings)
    order = figures.channel_order(preprocessor, pipeline_of(cfg, 'train'))
    names = panels.class_names(dataset)
    batches = read_batches(dataset, min(8, len(dataset)), SEED)
    found = []
    for step in range(FED):
        data = preprocessor(next(batches), training=True)
        sample = data['data_samples'][0]
        mix = getattr(sample, MIX_FIELD, None)
        image = figures.to_images(data['inputs'][:1], preprocessor, order)[0]
        scores = panels.soft_labels([sample], number_of_classes(cfg))[0].numpy()
        box = mix.box if mix is not None and mix.lam > 0 else None
        lines = [] if mix is None else [figures.lambda_text(mix.lam)]
        lines += figures.label_text(scores, names)
        found.append(
            dict(
                image=encode(framed(image, box)),
                caption='\n'.join([f't = {step + 1}', *lines]),
                alt=f'training image at iteration {step + 1}: {", ".join(lines)}',
            )
        )
    return found


def _raw_images(cfg, items: Sequence[dict]) -> List[np.ndarray]:
    """Images as a data set gives them, uint8 RGB."""
    from ..utils import figures
    from ..utils.config import pipeline_of

    part = 'val' if cfg.get('val_dataloader') else 'test'
    swap = figures.channel_order(None, pipeline_of(cfg, part)) == 'bgr'
    images = [item['inputs'].permute(1, 2, 0).numpy() for item in items]
    return [image[..., ::-1] if swap else image for image in images]


def maps(cfg, model) -> List[dict]:
    """Activation maps: of natural test images for their class, and of mixed ones for each class in them."""
    import torch

    from ..utils import figures, panels
    from ..utils.config import number_of_classes
    from . import cam

    dataset = tested_data(cfg)
    names = panels.class_names(dataset)
    items = [item for _, item in readable(dataset, spread(len(dataset), 2 * IMAGES))][: max(IMAGES, 4)]
    number = number_of_classes(cfg)
    labels = panels.soft_labels([item['data_samples'] for item in items], number)
    subjects = [
        (f'test image {place + 1}', item['inputs'], [int(labels[place].argmax())])
        for place, item in enumerate(items[:IMAGES])
    ]
    if len({tuple(item['inputs'].shape) for item in items}) == 1:
        mixed, fused = _mixed(torch.stack([item['inputs'] for item in items]).float(), labels)
        for place in range(min(MIXED, len(mixed))):
            image = mixed[place].round().clamp(0, 255).to(torch.uint8)
            present = [int(each) for each in fused[place].argsort(descending=True)[:2] if fused[place, each] > 0.1]
            subjects.append((f'mixed image {place + 1}', image, present))
    found = []
    device = next(model.parameters()).device
    for title, pixels, classes in subjects:
        shown = _raw_images(cfg, [dict(inputs=pixels)])[0]
        inputs = model.data_preprocessor(dict(inputs=[pixels.to(device)], data_samples=None), training=False)['inputs']
        heats, likely = cam.activation_maps(model, inputs, classes)
        for index, heat, share in zip(classes, heats, likely):
            label = figures.short_name(names[index]) if names else f'class {index}'
            heat = heat[: shown.shape[0], : shown.shape[1]]
            found.append(
                dict(
                    key=f'{title}, {label}',
                    truth=dict(image=encode(shown), caption=f'{title}\n{label}', alt=f'{title}, {label}'),
                    image=encode(cam.overlay(shown, heat)),
                    caption=f'p = {share:.2f}',
                    alt=f'activation map of {title} for {label}, p = {share:.2f}',
                )
            )
    return found


def _mixed(pixels, labels):
    """Images with the ones before them pasted in, in a box that is neither tiny nor all; the same for every run."""
    from ..core import RecursiveMix
    from ..weights.classifiers import seeded

    augment = RecursiveMix()
    with seeded(SEED):
        for step in range(100):
            mixed, fused, mix = augment.mix(pixels.roll(step, 0), labels.roll(step, 0))
            if 0.2 < mix.lam < 0.5:
                break
    return mixed, fused


def confusions(cfg, model, notes: List[str]) -> List[dict]:
    """The pairs of classes that are taken for each other most, with the surest mistakes."""
    import torch

    from ..utils import figures, panels

    dataset = tested_data(cfg)
    places = spread(len(dataset), TESTED)
    if len(places) < len(dataset):
        notes.append(f'confusions: in {len(places)} of {len(dataset)} images, evenly taken')
    names = panels.class_names(dataset)
    wrong: Dict[Tuple[int, int], List[Tuple[float, int]]] = {}
    seen: Dict[int, int] = {}
    missing = 0
    for start in range(0, len(places), 64):
        wanted = places[start : start + 64]
        items = readable(dataset, wanted)
        missing += len(wanted) - len(items)
        if not items:
            continue
        batch = {key: [item[key] for _, item in items] for key in ('inputs', 'data_samples')}
        with torch.no_grad():
            answers = model.test_step(batch)
        for (place, _), answer in zip(items, answers):
            truth, guess = int(answer.gt_label), int(answer.pred_score.argmax())
            seen[truth] = seen.get(truth, 0) + 1
            if truth != guess:
                wrong.setdefault((truth, guess), []).append((float(answer.pred_score[guess]), place))
    if missing:
        notes.append(f'confusions: {missing} images could not be read')
    found = []
    for (truth, guess), mistakes in sorted(wrong.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:CONFUSIONS]:
        name, other = ((figures.short_name(names[each]) if names else f'class {each}') for each in (truth, guess))
        images = []
        for share, place in sorted(mistakes, reverse=True)[:EXAMPLES]:
            shown = _raw_images(cfg, [dataset[place]])[0]
            images.append(
                dict(image=encode(shown), caption=f'p = {share:.2f}', alt=f'{name} taken for {other}, p = {share:.2f}')
            )
        found.append(dict(truth=name, predicted=other, count=len(mistakes), of=seen[truth], images=images))
    return found


# --------------------------------------------------------------------------------------------- detectors and segmentors
def predictions(cfg, model, kind: str) -> List[dict]:
    """Scenes of the test data with the truth and the network's answer."""
    import torch

    dataset = tested_data(cfg)
    classes = list((dataset.metainfo or {}).get('classes') or ())
    draw = _boxes if kind == 'Detection' else _segments
    found = []
    for place in spread(len(dataset), SCENES):
        title = f'scene {place}'
        try:
            item = dataset[place]
            with torch.no_grad():
                answer = model.test_step(dict(inputs=[item['inputs']], data_samples=[item['data_samples']]))[0]
            truth, guess, told = draw(dataset, place, item, answer, classes)
        except Exception as error:  # an image that is gone or damaged
            told = f'{title}: {_told(error)}'
            found.append(
                dict(key=title, truth=dict(image=None, caption='', alt=told), image=None, caption='', alt=told)
            )
            continue
        found.append(
            dict(
                key=title,
                truth=dict(image=encode(truth, photo=True), caption='truth', alt=f'{title}, truth: {told[0]}'),
                image=encode(guess, photo=True),
                caption='' if told[1] else 'nothing found',
                alt=f'{title}, prediction: {told[1]}',
            )
        )
    return found


def colour_of(index: int) -> Tuple[int, int, int]:
    """A colour for each class, neighbours far from each other."""
    import colorsys

    red, green, blue = colorsys.hsv_to_rgb(index * 0.61803 % 1, 0.65 + 0.3 * (index % 2), 0.95 - 0.2 * (index % 3 == 2))
    return int(255 * red), int(255 * green), int(255 * blue)


def _boxes(dataset, place: int, item: dict, answer, classes: Sequence[str]):
    """Boxes of the truth and of the answer on the image, and both in words."""
    from PIL import Image

    info = dataset.get_data_info(place)
    with Image.open(info['img_path']) as file:
        image = np.asarray(file.convert('RGB'))
    truth = [(each['bbox_label'], each['bbox'], None) for each in info['instances'] if not each.get('ignore_flag')]
    instances = answer.pred_instances
    guess = [
        (label, box, score)
        for label, box, score in zip(instances.labels.tolist(), instances.bboxes.tolist(), instances.scores.tolist())
        if score >= SCORE
    ]
    told = [', '.join(_name(classes, label) for label, _, _ in each) for each in (truth, guess)]
    return _with_boxes(image, truth, classes), _with_boxes(image, guess, classes), told


def _name(classes: Sequence[str], label: int) -> str:
    return str(classes[label]) if label < len(classes) else f'class {label}'


def _with_boxes(image: np.ndarray, boxes: list, classes: Sequence[str]) -> np.ndarray:
    from PIL import Image, ImageDraw

    factor = max(LARGE / max(image.shape[:2]), 1.0) if max(image.shape[:2]) < LARGE else LARGE / max(image.shape[:2])
    picture = Image.fromarray(image)
    picture = picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for label, box, score in boxes:
        corners = [value * factor for value in box]
        corners[2:] = [max(corners[2], corners[0] + 1), max(corners[3], corners[1] + 1)]
        colour = colour_of(label)
        draw.rectangle(corners, outline='black', width=4)
        draw.rectangle(corners, outline=colour, width=2)
        text = _name(classes, label) + ('' if score is None else f' {score:.2f}')
        at = (corners[0] + 1, max(corners[1] - 12, 0))
        draw.rectangle(draw.textbbox(at, text), fill='black')
        draw.text(at, text, fill='white')
    return np.asarray(picture)


def _segments(dataset, place: int, item: dict, answer, classes: Sequence[str]):
    """Maps of the truth and of the answer over the image, and both in words."""
    from PIL import Image

    truth = item['data_samples'].gt_sem_seg.data[0].numpy()
    guess = answer.pred_sem_seg.data[0].cpu().numpy()
    with Image.open(dataset.get_data_info(place)['img_path']) as file:
        image = file.convert('RGB').resize((guess.shape[1], guess.shape[0]))
    if truth.shape != guess.shape:
        truth = np.asarray(Image.fromarray(truth.astype(np.uint8)).resize(image.size, Image.NEAREST))
    told = [
        ', '.join(_name(classes, int(each)) for each in np.unique(labels[labels != 255])) for labels in (truth, guess)
    ]
    return _over(np.asarray(image), truth), _over(np.asarray(image), guess), told


def _over(image: np.ndarray, labels: np.ndarray, strength: float = 0.6) -> np.ndarray:
    colours = np.array([colour_of(index) for index in range(256)], np.float32)
    shown = image * (1 - strength) + colours[labels.astype(np.uint8)] * strength
    shown[labels == 255] = image[labels == 255]
    return shown.round().astype(np.uint8)
