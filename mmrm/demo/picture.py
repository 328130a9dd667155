"""The demo's picture: what RecursiveMix makes of images, what the fine-tuned networks see, how all of them learnt."""

import contextlib
import os
import warnings
from pathlib import Path
from typing import Dict, List, Tuple, Union

import cv2
import numpy as np

from ..utils.files import atomic_write
from .world import CLASSES, SEG_CLASSES

# Okabe and Ito's colours, told apart by colour-blind readers too; each line also has its own marker and dashes.
LINES = {
    'random': ('#000000', ':', 's', 'from random'),
    'baseline': ('#0072B2', '--', 'o', 'from baseline'),
    'rm': ('#D55E00', '-', '^', 'from RM'),
}
# The objects of a map in strong colours, the grounds in light ones.
SEG_COLOURS = (
    '#E69F00',
    '#0072B2',
    '#D55E00',
    '#009E73',
    '#CC79A7',
    '#F0E442',
    '#000000',
    '#7F3C8D',
    '#C9C9C9',
    '#B5D99C',
    '#F2D8A7',
    '#9CC5E8',
    '#DDF1FA',
    '#DDB5A5',
)
SCORE = 0.3  # below it a box is not drawn


def draw(work_dir: Path, results: Dict[str, dict], out: Union[str, Path]) -> None:
    """Draw the picture of a finished demo.

    Args:
        work_dir: The demo's folder.
        results: By stage name; ``curve`` maps an epoch to percent.
        out: A ``.png`` file, replaced whole.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9.6), dpi=110)
    FigureCanvasAgg(figure)
    _draw_mixes(figure, mixed_images(work_dir, count=6), top=0.98)
    with warnings.catch_warnings(), open(os.devnull, 'w') as quiet, contextlib.redirect_stdout(quiet):
        warnings.simplefilter('ignore')
        scene = seen_scene(work_dir)
    _draw_scene(figure, *scene, top=0.655)
    _draw_curves(figure, results, top=0.385)
    with atomic_write(out, overwrite=True) as part:
        figure.savefig(part, format='png')


def _row(figure, title: str, count: int, top: float, height: float, left: float = 0.02, gap: float = 0.02) -> list:
    """A title and ``count`` axes side by side below it; lengths in parts of the figure."""
    figure.text(0.5, top, title, fontsize=12, fontweight='bold', ha='center', va='center')
    width = (0.985 - left - (count - 1) * gap) / count
    return [figure.add_axes([left + i * (width + gap), top - 0.045 - height, width, height]) for i in range(count)]


# -------------------------------------------------------------------------------------------------------- the mixes
def mixed_images(work_dir: Path, count: int, seed: int = 0) -> List[Tuple[np.ndarray, Dict[str, float], float, tuple]]:
    """The first training images of ``count`` iterations in a row, as the network gets them.

    Returns:
        list: For each iteration the image (uint8 RGB), its label (class name -> share), lambda and the box.
    """
    from mmengine.registry import DATASETS, MODELS, init_default_scope

    from ..models.data_preprocessor import MIX_FIELD
    from .config import read_config

    cfg = read_config('rm_r18', MMRM_WORLD=str(work_dir / 'world'))
    init_default_scope('mmpretrain')
    np.random.seed(seed)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    names = [name.replace('_', ' ') for name in dataset.metainfo['classes']]
    shown = []
    for index in np.random.permutation(len(dataset))[:count]:
        item = dataset[int(index)]
        batch = preprocessor(dict(inputs=[item['inputs']], data_samples=[item['data_samples']]), training=True)
        sample, mix = batch['data_samples'][0], batch['data_samples'][0].get(MIX_FIELD)
        image = batch['inputs'] * preprocessor.std + preprocessor.mean
        image = image[0].clamp(0, 255).byte().permute(1, 2, 0).numpy()
        label = {name: float(share) for name, share in zip(names, sample.gt_score) if share > 0}
        shown.append((image, label, mix.lam, mix.box))
    return shown


def _draw_mixes(figure, shown: list, top: float) -> None:
    axes = _row(
        figure,
        'RecursiveMix, six iterations in a row: each image holds the one before it, whole and resized',
        len(shown),
        top,
        height=0.18,
    )
    for number, (axis, (image, label, lam, box)) in enumerate(zip(axes, shown)):
        axis.imshow(image, interpolation='nearest')
        if lam:
            from matplotlib.patches import Rectangle

            for colour, width in (('black', 3), ('white', 1.4)):
                axis.add_patch(
                    Rectangle(
                        (box.x1 - 0.5, box.y1 - 0.5),
                        box.x2 - box.x1,
                        box.y2 - box.y1,
                        fill=False,
                        edgecolor=colour,
                        linewidth=width,
                    )
                )
        parts = sorted(label.items(), key=lambda pair: -pair[1])
        text = '\n'.join(f'{share:.2f} {name}' for name, share in parts if share >= 0.005)
        axis.set_title(f'$t={number + 1}$, $\\lambda={lam:.2f}$', fontsize=11)
        axis.text(0, 1.02 * image.shape[0], text, va='top', fontsize=10, linespacing=1.15)
        axis.set_axis_off()


# -------------------------------------------------------------------------------------------------------- the scene
def seen_scene(work_dir: Path):
    """A held-out scene and what the networks that started from RM say about it.

    The scene is the first one with three objects or more and no crowd. COCO's and ADE20K's layouts hold the same scenes
    in the same order.

    Returns:
        tuple: The image (uint8 RGB), true and found boxes (lists of name, x1, y1, x2, y2, score), true and found maps
        (numbers in SEG_CLASSES, 255 for none).
    """
    import mmdet.apis
    import mmseg.apis
    from mmengine.registry import init_default_scope
    from pycocotools.coco import COCO

    from ..weights import find_checkpoint
    from .config import read_config

    coco = COCO(work_dir / 'world/coco/annotations/instances_val2017.json')
    truth = {i: coco.imgToAnns[i] for i in sorted(coco.imgs)}
    fitting = [i for i, each in truth.items() if len(each) > 2 and not any(a['iscrowd'] for a in each)]
    number = (fitting or list(truth))[0]
    path = work_dir / 'world/coco/val2017' / coco.imgs[number]['file_name']
    true_boxes = [
        (
            coco.cats[a['category_id']]['name'],
            a['bbox'][0],
            a['bbox'][1],
            a['bbox'][0] + a['bbox'][2],
            a['bbox'][1] + a['bbox'][3],
            1.0,
        )
        for a in truth[number]
    ]

    init_default_scope('mmdet')
    detector = mmdet.apis.init_detector(
        read_config('atss_r18'), str(find_checkpoint(work_dir / 'atss/rm')), device='cpu'
    )
    found = mmdet.apis.inference_detector(detector, str(path)).pred_instances
    found = found[found.scores > SCORE]
    found_boxes = [
        (CLASSES[label], *box, score)
        for label, box, score in zip(found.labels.tolist(), found.bboxes.tolist(), found.scores.tolist())
    ]

    init_default_scope('mmseg')
    segmentor = mmseg.apis.init_model(
        read_config('pspnet_r18'), str(find_checkpoint(work_dir / 'pspnet/rm')), device='cpu'
    )
    found_map = mmseg.apis.inference_model(segmentor, str(path)).pred_sem_seg.data[0].numpy()
    from .world import STUFF, THINGS

    values = np.full(256, 255, np.uint8)
    for index, name in enumerate(SEG_CLASSES):
        values[{**THINGS, **STUFF}[name][1]] = index
    folder = work_dir / 'world/ade/annotations/validation'
    true_map = values[cv2.imread(str(sorted(folder.iterdir())[list(truth).index(number)]), cv2.IMREAD_UNCHANGED)]
    return cv2.imread(str(path))[..., ::-1], true_boxes, found_boxes, true_map, found_map


def _draw_scene(figure, image, true_boxes, found_boxes, true_map, found_map, top: float) -> None:
    axes = _row(
        figure, 'A held-out scene, and the networks that started from the RM backbone', 4, top, height=0.2, gap=0.01
    )
    _draw_boxes(axes[0], image, true_boxes, 'true boxes')
    _draw_boxes(axes[1], image, found_boxes, f'ATSS (score > {SCORE})')
    _draw_map(axes[2], true_map, 'true map')
    _draw_map(axes[3], found_map, 'PSPNet')


def _label(axis, x: float, y: float, text: str, **kwargs) -> None:
    axis.text(
        x,
        y,
        text,
        fontsize=8.5,
        color='white',
        clip_on=True,
        bbox=dict(facecolor='black', alpha=0.75, pad=1.2, linewidth=0),
        **kwargs,
    )


def _draw_boxes(axis, image: np.ndarray, boxes: list, title: str) -> None:
    from matplotlib.patches import Rectangle

    axis.imshow(image, interpolation='nearest')
    for name, x1, y1, x2, y2, score in boxes:
        for colour, width in (('black', 3.2), ('#F0E442', 1.6)):
            axis.add_patch(
                Rectangle((x1 - 0.5, y1 - 0.5), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=width)
            )
        _label(axis, x1, max(y1, 7), name if score == 1 else f'{name} {score:.2f}', va='bottom')
    axis.set_title(title, fontsize=11)
    axis.set_axis_off()


def _draw_map(axis, label: np.ndarray, title: str) -> None:
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(c) for c in SEG_COLOURS] + [(1, 1, 1)])
    axis.imshow(colours[np.minimum(label, len(SEG_COLOURS))], interpolation='nearest')
    for index in np.unique(label[label != 255]):
        # A name on each large region, at the pixel that is deepest inside it.
        _, parts, stats, _ = cv2.connectedComponentsWithStats((label == index).astype(np.uint8))
        for part in range(1, len(stats)):
            if stats[part][cv2.CC_STAT_AREA] >= 60:
                inside = cv2.distanceTransform(np.pad((parts == part).astype(np.uint8), 1), cv2.DIST_L2, 5)[1:-1, 1:-1]
                y, x = np.unravel_index(inside.argmax(), inside.shape)
                _label(axis, x, y, SEG_CLASSES[index], ha='center', va='center')
    axis.set_title(title, fontsize=11)
    axis.set_axis_off()


# ------------------------------------------------------------------------------------------------------- the curves
def _draw_curves(figure, results: Dict[str, dict], top: float) -> None:
    title = 'Results on the held-out images, one seed: the pipeline at work, not a comparison of methods'
    axes = _row(figure, title, 3, top, height=0.28, left=0.04, gap=0.045)
    rows = (
        ('pretrain', 'Classification: top-1 (%)', 100 / len(CLASSES)),
        ('atss', 'ATSS: box AP (%)', None),
        ('pspnet', 'PSPNet: mIoU (%)', None),
    )
    for axis, (key, title, floor) in zip(axes, rows):
        for name, (colour, dashes, marker, label) in LINES.items():
            curve = results.get(f'{key}/{name}', {}).get('curve', {})
            points = sorted((int(epoch), value) for epoch, value in curve.items())
            if points:
                label = label if key != 'pretrain' else label.split()[-1]
                axis.plot(*zip(*points), color=colour, linestyle=dashes, marker=marker, markersize=5, label=label)
        untrained = results.get(f'{key}/untrained', {}).get('value', floor)
        if untrained is not None:
            axis.axhline(untrained, color='#767676', linewidth=1, label='chance' if floor else 'untrained')
        axis.set_title(title, fontsize=11)
        axis.set_xlabel('epoch')
        axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(color='#DDDDDD', linewidth=0.6)
        axis.legend(fontsize=9)
