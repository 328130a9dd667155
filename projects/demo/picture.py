"""The demo's picture: what RecursiveMix makes of cells, what the fine-tuned networks see, what they reached."""

import contextlib
import os
import warnings
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

import cv2
import numpy as np

from mmrm.utils import figures
from mmrm.utils.files import atomic_write
from projects.demo.photographs import CLASSES, SEG_CLASSES
from projects.demo.stages import COLUMNS, read_config
from projects.demo.verdict import NAMES

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = {'baseline': '#000000', 'cutmix': '#E69F00', 'rm': '#0072B2'}
CLASS_COLOURS = {'background': '#EEEEEE', 'RBC': '#D55E00', 'WBC': '#0072B2', 'Platelets': '#009E73'}
WORDS = {'RBC': 'red cell (RBC)', 'WBC': 'white cell (WBC)', 'Platelets': 'platelet'}
SCORE = 0.3  # below it a box is not drawn


def draw(work_dir: Path, results: Dict[str, dict], noise: Dict[str, Optional[float]], out: Union[str, Path]) -> None:
    """Draw the picture of a finished demo.

    Args:
        work_dir: The demo's folder.
        results: By stage name.
        noise: Of :func:`~projects.demo.verdict.measured_noise`.
        out: A ``.png`` file, replaced whole.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 10), dpi=110)
    _draw_mixes(figure, mixed_images(work_dir, count=6), top=0.98)
    with warnings.catch_warnings(), open(os.devnull, 'w') as quiet, contextlib.redirect_stdout(quiet):
        warnings.simplefilter('ignore')
        scene = seen_photograph(work_dir)
    _draw_photograph(figure, *scene, top=0.67)
    _draw_results(figure, results, noise, top=0.36)
    with atomic_write(out, overwrite=True) as part:
        figure.savefig(part, format='png')


def _row(figure, title: str, count: int, top: float, height: float, left: float = 0.02, gap: float = 0.02) -> list:
    """A title and ``count`` axes side by side below it; lengths in parts of the figure."""
    figure.text(0.5, top, title, fontsize=12, fontweight='bold', ha='center', va='center')
    width = (0.985 - left - (count - 1) * gap) / count
    return [figure.add_axes([left + i * (width + gap), top - 0.045 - height, width, height]) for i in range(count)]


def _outline(axis, box: Sequence[float], lines: Sequence[Tuple[str, float]]) -> None:
    """Outline x1, y1, x2, y2 with lines of (colour, width), one over the other."""
    from matplotlib.patches import Rectangle

    x1, y1, x2, y2 = box
    for colour, width in lines:
        corner = (x1 - 0.5, y1 - 0.5)
        axis.add_patch(Rectangle(corner, x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=width))


# -------------------------------------------------------------------------------------------------------- the mixes
def mixed_images(work_dir: Path, count: int, seed: int = 38) -> List[Tuple[np.ndarray, Dict[str, float], float, tuple]]:
    """A training image of each of ``count`` iterations in a row, as the network gets them; the classes take turns.

    Returns:
        list: For each iteration the image (uint8 RGB), its label (class name -> share), lambda and the box.
    """
    from mmengine.registry import DATASETS, MODELS, init_default_scope

    from mmrm.models.data_preprocessor import MIX_FIELD

    cfg = read_config('rm_cells')
    cfg.train_dataloader.dataset.data_root = str(work_dir / 'photographs' / 'cells')
    init_default_scope('mmpretrain')
    np.random.seed(seed)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    names, labels = dataset.metainfo['classes'], np.array(dataset.get_gt_labels())
    shown = []
    for number in range(count):
        item = dataset[int(np.random.choice(np.flatnonzero(labels == number % len(names))))]
        batch = preprocessor(dict(inputs=[item['inputs']], data_samples=[item['data_samples']]), training=True)
        sample, mix = batch['data_samples'][0], batch['data_samples'][0].get(MIX_FIELD)
        [image] = figures.to_images(batch['inputs'], preprocessor)  # to_rgb: of files, so RGB
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
            _outline(axis, box, (('black', 3), ('white', 1.4)))
        parts = sorted(label.items(), key=lambda pair: -pair[1])
        text = '\n'.join(f'{share:.2f} {name}' for name, share in parts if share >= 0.005)
        axis.set_title(f'$t={number + 1}$, $\\lambda={lam:.2f}$', fontsize=11)
        axis.text(0, 1.02 * image.shape[0], text, va='top', fontsize=10, linespacing=1.15)
        axis.set_axis_off()


# ----------------------------------------------------------------------------------------------------- a photograph
def seen_photograph(work_dir: Path):
    """A held-out photograph and what the networks that started from RM say about it.

    It is the first one with cells of all classes.

    Returns:
        tuple: The image (uint8 RGB), true and found boxes (lists of name, x1, y1, x2, y2), true and found maps (numbers
        in SEG_CLASSES).
    """
    import mmdet.apis
    import mmseg.apis
    from mmengine.registry import init_default_scope
    from pycocotools.coco import COCO

    from mmrm.weights import find_checkpoint

    data = work_dir / 'photographs'
    coco = COCO(data / 'coco/annotations/val.json')
    truth = {number: coco.imgToAnns[number] for number in sorted(coco.imgs)}
    fitting = [number for number, each in truth.items() if len({a['category_id'] for a in each}) == len(CLASSES)]
    number = (fitting or list(truth))[0]
    path = data / 'ade/images/val' / coco.imgs[number]['file_name']
    true_boxes = []
    for each in truth[number]:
        x, y, width, height = each['bbox']
        true_boxes.append((coco.cats[each['category_id']]['name'], x, y, x + width, y + height))

    init_default_scope('mmdet')
    detector = mmdet.apis.init_detector(
        read_config('atss_cells'), str(find_checkpoint(work_dir / 'atss/rm')), device='cpu'
    )
    found = mmdet.apis.inference_detector(detector, str(path)).pred_instances
    found = found[found.scores > SCORE]
    found_boxes = [(CLASSES[label], *box) for label, box in zip(found.labels.tolist(), found.bboxes.tolist())]

    init_default_scope('mmseg')
    segmentor = mmseg.apis.init_model(
        read_config('pspnet_cells'), str(find_checkpoint(work_dir / 'pspnet/rm')), device='cpu'
    )
    found_map = mmseg.apis.inference_model(segmentor, str(path)).pred_sem_seg.data[0].numpy()
    true_map = cv2.imread(str(data / 'ade/annotations/val' / f'{path.stem}.png'), cv2.IMREAD_UNCHANGED)
    return cv2.imread(str(path))[..., ::-1], true_boxes, found_boxes, true_map, found_map


def _draw_photograph(figure, image, true_boxes, found_boxes, true_map, found_map, top: float) -> None:
    from matplotlib.patches import Patch

    title = 'A held-out photograph, and the networks on the RM backbone'
    axes = _row(figure, title, 4, top, height=0.215, gap=0.01)
    _draw_boxes(axes[0], image, true_boxes, 'true boxes')
    _draw_boxes(axes[1], image, found_boxes, f'ATSS (score > {SCORE})')
    _draw_map(axes[2], true_map, 'true map: ellipses in the boxes')
    _draw_map(axes[3], found_map, 'PSPNet')
    handles = [Patch(facecolor=CLASS_COLOURS[name], label=words) for name, words in WORDS.items()]
    figure.legend(
        handles=handles, loc='center', bbox_to_anchor=(0.5, top - 0.268), ncols=len(handles), frameon=False, fontsize=10
    )


def _draw_boxes(axis, image: np.ndarray, boxes: list, title: str) -> None:
    axis.imshow(image)
    for name, *box in boxes:
        _outline(axis, box, (('white', 3.2), (CLASS_COLOURS[name], 1.8)))
    axis.set_title(title, fontsize=11)
    axis.set_axis_off()


def _draw_map(axis, label: np.ndarray, title: str) -> None:
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(CLASS_COLOURS[name]) for name in SEG_CLASSES])
    axis.imshow(colours[label], interpolation='nearest')
    axis.set_title(title, fontsize=11)
    axis.set_axis_off()


# ------------------------------------------------------------------------------------------------------ the results
def _draw_results(figure, results: Dict[str, dict], noise: Dict[str, Optional[float]], top: float) -> None:
    small = {key: results[f'small/{key}']['sides'] for key in COLUMNS if f'small/{key}' in results}
    title = 'RM at work, and results on held-out images by where the backbone comes from, one run each'
    axes = _row(figure, title, 4 if small else 3, top, height=0.255, left=0.05, gap=0.05)
    _draw_method(axes[0], results['pretrain/rm'])
    if small:
        _draw_sides(axes[3], small)
    for axis, (network, metric) in zip(axes[1:], (('atss', 'box AP (%)'), ('pspnet', 'mIoU (%)'))):
        _draw_bars(axis, f'{NAMES[network]}: {metric}', network, results, noise.get(network))


def _draw_method(axis, result: dict) -> None:
    """Lambda and the consistency loss as they were logged."""
    steps = [step['iteration'] for step in result['method']]
    axis.plot(steps, [step['lam'] for step in result['method']], 's:', color='#767676', markersize=3.5, label='λ')
    axis.plot(
        steps,
        [step['consistency'] for step in result['method']],
        '-o',
        color=COLOURS['rm'],
        markersize=3.5,
        label='consistency loss',
    )
    axis.set_title(f'RM on single cells: top-1 {result["value"]:.1f} %', fontsize=11)
    axis.set_xlabel('iteration')
    axis.set_ylim(0, 1.25 * max(axis.get_ylim()[1], 0.1))  # room for the legend
    axis.grid(color='#DDDDDD', linewidth=0.6)
    axis.legend(fontsize=9, loc='upper center', ncols=2, frameon=False)


def _draw_sides(axis, small: Dict[str, Dict[str, float]]) -> None:
    """Top-1 on whole test images of CIFAR-10 by their side in pixels."""
    for marker, (key, sides) in zip('os^', small.items()):
        points = sorted((int(side), value) for side, value in sides.items())
        axis.plot(*zip(*points), f'-{marker}', color=COLOURS[key], markersize=4, label=COLUMNS[key])
    axis.set_xticks([side for side, _ in points])
    axis.set_xlabel('side of the image, pixels')
    axis.set_title('Small images: top-1 (%)', fontsize=11)
    axis.grid(color='#DDDDDD', linewidth=0.6)
    axis.legend(fontsize=9, loc='lower right', frameon=False)


def _draw_bars(axis, title: str, network: str, results: Dict[str, dict], noise: Optional[float]) -> None:
    values = [results[f'{network}/{key}']['value'] for key in COLUMNS]
    bars = axis.bar(range(len(values)), values, 0.62, color=[COLOURS[key] for key in COLUMNS])
    axis.bar_label(bars, fmt='%.1f', fontsize=10, padding=2)
    ticks, highest = list(COLUMNS.values()), max(values)
    if noise is not None:
        # Beside the bars and as long as the noise: a difference that is shorter than it may be chance.
        middle = float(np.mean(values[1:]))
        axis.errorbar([len(values)], [middle], [noise / 2], color='#D55E00', capsize=6, linewidth=2)
        axis.text(len(values), middle + noise / 2, f'{noise:.1f}', ha='center', va='bottom', fontsize=10)
        ticks.append('noise')
        highest = max(highest, middle + noise / 2)
    axis.set_xticks(range(len(ticks)), ticks, fontsize=10)
    axis.set_ylim(0, max(1.15 * highest, 1))
    axis.set_title(title, fontsize=11)
    axis.grid(axis='y', color='#DDDDDD', linewidth=0.6)
    axis.set_axisbelow(True)
