#!/usr/bin/env python
"""How true a mixed label is: each image's share in the label beside its object's share of the visible object pixels.

Objects are masks: the trimaps of Oxford-IIIT Pet, or any folder of masks. Nothing is trained; the augments mix masks
as they mix images. Two numbers, in percent: half the absolute difference between the label and the shares of visible
object pixels, and how many images have more than 5 % of their label from an image of whose object no pixel shows.
"""

import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import cv2
import numpy as np
import torch
from mmpretrain.registry import BATCH_AUGMENTS
from PIL import Image
from torchvision.transforms import RandomResizedCrop

import mmrm.models  # noqa: F401  registers RecursiveMix
from mmrm.cli.options import natural, positive
from mmrm.core import RecursiveMix, mix_labels, sample_box, sample_lambda
from mmrm.datasets.images import EXTENSIONS, inspect_image
from mmrm.models.regularisers.puzzlemix import import_gco, puzzle_mix
from mmrm.report import grids
from mmrm.report.intervals import difference
from mmrm.utils import figures
from mmrm.utils.errors import UserError, UserFileError, UserValueError, cli
from mmrm.utils.files import check_out, write_text
from tools.analysis import plots
from tools.analysis.classifiers import seeded
from tools.analysis.options import Parser, add_table, table_format, write_table

TRIMAPS = 'annotations/trimaps'
PETS = (
    'Get Oxford-IIIT Pet: python -c "from torchvision.datasets import OxfordIIITPet as Pets; '
    "Pets('data', download=True)\""
)
LABEL = 0.05  # a share of the label above which its object should show
HISTORY = 8  # iterations before RM's images count, so that its history is as deep as in training
BATCH = 4  # images that share a box: few, so that many boxes are drawn
UNMIXED = 'no mixing'
COLUMNS = ('label off by (%)', 'no pixel shows (%)')
# Options of a measurement, which a file of results cannot have.
MEASURING = ('--images', '--masks', '--values', '--count', '--seeds')
MEASURING += ('--size', '--crop', '--least-pixels', '--results', '--figure')


# ------------------------------------------------------------------------------------------------------------ methods
def cut_with_rm_lambda(images: torch.Tensor, scores: torch.Tensor, alpha: float = 0.5):
    """CutMix with the box of RecursiveMix: the partner's share is U(0, alpha) before the box is clipped."""
    height, width = images.shape[-2:]
    partner, box = torch.randperm(len(images)), sample_box(sample_lambda(alpha, np.random), height, width, np.random)
    place = (..., slice(box.y1, box.y2), slice(box.x1, box.x2))
    mixed = images.clone()
    mixed[place] = images[partner][place]
    return mixed, mix_labels(scores, scores[partner], box.area / (height * width))


def puzzle_with_masks(images: torch.Tensor, scores: torch.Tensor):
    """PuzzleMix with the masks as its saliency and its picture: the most that it could know without a network."""
    masks, partner = images.sum(1), torch.randperm(len(images))
    mixed, share = puzzle_mix(
        images, masks[:, None], masks, partner, lam=np.random.beta(1, 1), blocks=2 ** np.random.randint(1, 5)
    )
    return mixed, mix_labels(scores, scores[partner], 1 - share)


def build(name: str, **settings) -> Callable:
    """A function that makes a batch augment of the registry."""
    return lambda: BATCH_AUGMENTS.build(dict(type=name, **settings))


def recursive_mix(alpha: float = 0.5) -> Callable:
    return build('RecursiveMix', alpha=alpha)


# Row of the table -> what makes the augment, and for RecursiveMix how many images its history holds: up to N
# (the history was emptied N iterations ago), or None for as many as in training.
METHODS: Dict[str, Tuple[Callable, Optional[int]]] = {
    UNMIXED: (lambda: lambda images, scores: (images, scores), None),
    'Mixup': (build('Mixup', alpha=1.0), None),
    'CutMix': (build('CutMix', alpha=1.0), None),
    "CutMix, RM's λ": (lambda: cut_with_rm_lambda, None),
    'PuzzleMix, masks as saliency': (lambda: puzzle_with_masks, None),
    'ResizeMix': (build('ResizeMix', alpha=1.0), None),
    'RS (ablation)': (build('ResizeFillMix', alpha=1.0), None),
    'RM': (recursive_mix(), None),
    'RM, α 0.25': (recursive_mix(0.25), None),
    'RM, α 1': (recursive_mix(1.0), None),
    'RM, history of 1': (recursive_mix(), 1),
    'RM, history of 2': (recursive_mix(), 2),
    'RM, history of 4': (recursive_mix(), 4),
}
OUTLINES = 'Outlines: the object of the current image is white, of the one before yellow, then blue, pink.'
SHOWN = ('Mixup', 'CutMix', 'ResizeMix', 'RM')  # in the figure


# -------------------------------------------------------------------------------------------------------------- masks
class Source(NamedTuple):
    """A photograph (uint8 BGR, or the file that holds it) and the pixels of its object (bool, of the same shape)."""

    image: Any
    mask: np.ndarray


def read_sources(data: Path, images: str, masks: str, values: Sequence[int], side: int) -> List[Source]:
    """The masks of a folder, shrunk to ``side`` pixels; those of trainval.txt, if it lies beside their folder.

    Args:
        data: Of Oxford-IIIT Pet, or any folder.
        images: Folder in ``data`` with the photographs, which only the figure reads.
        masks: Folder in ``data`` with a PNG file for each photograph.
        values: Of the object's pixels.
        side: Longest short side; larger masks are shrunk, to save memory.
    """
    folder = data / masks
    hint = f' {PETS}' if folder == data / TRIMAPS else ''
    listed = folder.parent / 'trainval.txt'
    if listed.is_file():
        lines = listed.read_text(errors='replace').splitlines()
        names = [line.split()[0] for line in lines if line.strip() and not line.startswith('#')]
    else:
        names = sorted(path.stem for path in folder.glob('*.png') if not path.name.startswith('.'))
    if len(names) < BATCH:
        found = f'{folder} has {len(names)} masks' if folder.is_dir() else f'{folder} does not exist'
        if listed.is_file():
            found = f'{listed} names {len(names)} masks'
        raise UserFileError(f'{found}; --masks names a folder in DATA with at least {BATCH} masks (.png).{hint}')
    photographs = (data / images).glob('*')
    files = {path.stem: path for path in photographs if path.suffix.lower() in EXTENSIONS}
    by = f', which {listed} names,' if listed.is_file() else ''
    sources = []
    for name in names:
        path = folder / f'{name}.png'
        problem = inspect_image(path).problem
        if not problem:
            with Image.open(path) as image:  # OpenCV would replace the indices of a palette by its colours
                mask = np.array(image.convert('L') if image.mode == '1' else image)
            problem = '' if mask.ndim == 2 else f'has {mask.shape[2]} channels'
        if problem:
            raise UserFileError(f'{path}{by} {problem}; a mask has one channel or a palette.{hint}')
        mask = np.isin(mask, values).astype(np.uint8)
        scale = min(1, side / min(mask.shape))
        mask = cv2.resize(mask, None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST)
        sources.append(Source(files.get(name, data / images / f'{name}.jpg'), mask.astype(bool)))
    if not any(source.mask.any() for source in sources):
        raise UserValueError(
            f'no mask of {folder} has a pixel of the values {values}: --values names those of the object.'
        )
    return sources


def crop(source: Source, size: int, least: float, photograph: bool = False) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    """The mask, and on request the photograph, after RandomResizedCrop (``least`` of the area or more) and a flip."""
    y, x, height, width = RandomResizedCrop.get_params(torch.from_numpy(source.mask), (least, 1), (3 / 4, 4 / 3))
    flip, image = np.random.rand() < 0.5, None

    def cut(array: np.ndarray, interpolation: int) -> np.ndarray:
        array = cv2.resize(array[y : y + height, x : x + width], (size, size), interpolation=interpolation)
        return array[:, ::-1] if flip else array

    if photograph:
        image = source.image if isinstance(source.image, np.ndarray) else cv2.imread(str(source.image))
        if image is None:
            raise UserFileError(f'{source.image} cannot be read. --images names the folder of photographs in DATA.')
        (rows, columns), sides = source.mask.shape, image.shape[:2]
        if abs(rows * sides[1] - columns * sides[0]) > sum(sides):  # more than a pixel of the mask, which was shrunk
            raise UserFileError(
                f'{source.image} has {sides[1]} x {sides[0]} pixels; its mask has other proportions and must cover it.'
            )
        image = cut(cv2.resize(image, source.mask.shape[::-1], interpolation=cv2.INTER_AREA), cv2.INTER_AREA)
    return cut(source.mask.astype(np.uint8), cv2.INTER_NEAREST), image


# ---------------------------------------------------------------------------------------------------------- measuring
def trace_pairs(augment: Callable, masks: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Mix a batch of masks ``(N, H, W)``: the labels and the visible pixels of each object, both ``(N, N)``."""
    images = torch.zeros(len(masks), *masks.shape)
    images.diagonal(dim1=0, dim2=1).copy_(masks.permute(1, 2, 0))
    mixed, labels = augment(images, torch.eye(len(masks)))
    return labels, mixed.sum((2, 3))


def trace_history(augment: RecursiveMix, masks: torch.Tensor, first: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Mix batches of masks ``(T, N, H, W)`` one after the other: as :func:`trace_pairs`, both ``((T - first) * N, T)``.

    Sample ``i`` holds only samples ``i`` of the batches before, so the iteration names the source. It is the value of
    the object's pixels, counted from 1; resizing to the nearest pixel keeps it.
    """
    augment.reset()
    steps, number = masks.shape[:2]
    found = []
    for step, batch in enumerate(masks):
        labels = torch.zeros(number, steps)
        labels[:, step] = 1
        mixed, labels, _ = augment.mix((step + 1) * batch[:, None], labels)
        if step >= first:
            places = mixed.flatten(1).long() + torch.arange(number)[:, None] * (steps + 1)
            pixels = torch.bincount(places.flatten(), minlength=number * (steps + 1))
            found.append((labels, pixels.view(number, steps + 1)[:, 1:].float()))
    labels, visible = zip(*found)
    return torch.cat(labels), torch.cat(visible)


def compare(labels: torch.Tensor, visible: torch.Tensor, least: float = 0) -> Tuple[float, float]:
    """The two numbers of mixed images, in percent.

    Args:
        labels: The share of each source in the label, shape ``(N, sources)``.
        visible: The pixels of its object that show, weighed by opacity, same shape.
        least: An object that shows fewer pixels counts as not shown.

    An image that shows no object at all is off by 100 %.
    """
    shown = visible * ((visible > 0) & (visible >= least))
    total = shown.sum(1, keepdim=True)
    off = ((labels - shown / total.clamp(min=1e-9)).abs().sum(1) + (total[:, 0] == 0)) / 2
    missing = ((labels > LABEL) & (shown == 0)).any(1)
    return 100 * float(off.mean()), 100 * float(missing.float().mean())


def audit(
    sources: Sequence[Source],
    methods: Optional[Sequence[str]] = None,
    count: int = 20000,
    seeds: int = 5,
    size: int = 64,
    least_crop: float = 0.08,
    least_pixels: int = 16,
) -> Dict[str, List[List[float]]]:
    """Measure methods: the same crops for all of them, other ones for each seed.

    Args:
        sources: At least :data:`BATCH`.
        methods: Of :data:`METHODS`; None for all that can run.
        count: About how many mixed images per method, of all seeds together.
        seeds: Independent repetitions.
        size: Side of an image in pixels.
        least_crop: Least area of RandomResizedCrop; 1 takes the whole image, or its centre if it is too long.
        least_pixels: The smallest visible object of the second pair of numbers.

    Returns:
        Method -> for each seed the two numbers of :func:`compare`, of any pixel and of ``least_pixels``.
    """
    results: Dict[str, List[List[float]]] = {name: [] for name in methods or METHODS}
    if methods is None:
        try:
            import_gco()
        except UserError as error:
            print(f'note: without PuzzleMix: {error}', file=sys.stderr)
            results.pop('PuzzleMix, masks as saliency')
    number = max(count // seeds // BATCH, 1)
    for seed in range(seeds):
        with seeded(seed):
            picked = np.random.randint(len(sources), size=number * BATCH)
            masks = np.stack([crop(sources[index], size, least_crop)[0] for index in picked])
        batches = torch.from_numpy(masks).float().unflatten(0, (number, BATCH))
        for name, values in results.items():
            with seeded(seed):
                labels, visible = trace(name, batches)
            if not len(labels):
                raise UserValueError(f'count={count}, seeds={seeds}: {name} mixed no image; raise count.')
            values.append([round(value, 3) for least in (0, least_pixels) for value in compare(labels, visible, least)])
    return results


def trace(name: str, batches: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Labels and visible pixels of batches of masks, shape ``(batches, N, H, W)``, mixed by one of :data:`METHODS`.

    Images that got no other one (an empty box, or a sample that is its own partner) are left out.
    """
    make, depth = METHODS[name]
    augment, found = make(), []
    if isinstance(augment, RecursiveMix):
        first = depth or HISTORY
        steps = first + 1 if depth else 3 * HISTORY
        # As many images as of the other methods: those that only fill the history come from other batches.
        order = torch.randint(len(batches), (max(len(batches) // (steps - first), 1), steps))
        found = [trace_history(augment, batches[chain], first) for chain in order]
    else:
        found = [trace_pairs(augment, batch) for batch in batches]
    labels, visible = (torch.cat(each) for each in zip(*found))
    kept = (labels.max(1).values < 1) | (name == UNMIXED)
    return labels[kept], visible[kept]


# ------------------------------------------------------------------------------------------------------------ showing
def table(results: dict) -> Tuple[List[str], List[List[str]]]:
    """Headers and rows: means over the seeds with 95 % intervals."""
    least = results['settings']['least_pixels']
    headers = ['', *COLUMNS, f'fewer than {least} px show (%)']
    rows = []
    for name, runs in results['methods'].items():
        cells = []
        off, missing, _, specks = zip(*runs, strict=True)
        for values in (off, missing, specks):
            found = difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0))
            cells.append(f'{found.mean:.1f}' + ('' if found.high is None else f' ± {found.high - found.mean:.1f}'))
        rows.append([name, *cells])
    return headers, rows


def draw(sources: Sequence[Source], columns: int = 5, size: int = 96, least_crop: float = 0.08, seed: int = 0):
    """Mixed photographs, the same current ones in each row, with the label and the shares of the visible objects."""
    with seeded(seed):
        picked = np.random.permutation(len(sources))[: columns + 2]
        crops = [crop(sources[index], size, least_crop, photograph=True) for index in picked]
    rows = []
    for name in SHOWN:
        with seeded(seed):
            rows.append((name, [_panel(*each) for each in _mixed(METHODS[name][0](), crops)]))
    figure = figures.draw_rows(rows)
    plots.provenance(figure, [OUTLINES])
    return figure


def _mixed(augment: Callable, crops: Sequence[Tuple[np.ndarray, np.ndarray]]):
    """Image, label and visible objects for each crop after the first two; the source of a pair is the crop before."""
    count = len(crops)
    masks, photographs = (torch.from_numpy(np.stack(each)).float() for each in zip(*crops))
    images = torch.zeros(count, count + 3, *masks.shape[1:])
    images[:, :3] = photographs.permute(0, 3, 1, 2).flip(1)
    images[:, 3:].diagonal(dim1=0, dim2=1).copy_(masks.permute(1, 2, 0))
    for index in range(count):
        if isinstance(augment, RecursiveMix):
            mixed, labels, _ = augment.mix(images[index : index + 1], torch.eye(count)[index : index + 1])
        elif index >= 2:
            labels = torch.ones(1, 1)
            while labels.max() == 1:  # a sample may be its own partner
                mixed, labels = augment(images[[index, index - 1]], torch.eye(count)[[index, index - 1]])
        if index >= 2:
            order = list(range(index, -1, -1))
            yield mixed[0, :3], labels[0, order], mixed[0, 3:][order]


def _panel(image: torch.Tensor, label: torch.Tensor, objects: torch.Tensor) -> figures.Panel:
    picture = np.ascontiguousarray(image.permute(1, 2, 0).round().byte().numpy())
    picture = cv2.resize(picture, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST)
    for colour, each in zip(('#FFFFFF', '#F0E442', '#56B4E9', '#CC79A7'), objects):
        shape = cv2.resize((each > 0).byte().numpy(), picture.shape[:2], interpolation=cv2.INTER_NEAREST)
        outline, _ = cv2.findContours(shape, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(picture, outline, -1, [int(colour[place : place + 2], 16) for place in (1, 3, 5)], 1)
    visible = objects.sum((1, 2))
    shares = visible / visible.sum().clamp(min=1e-9)
    shown = [index for index in range(len(label)) if label[index] >= 0.005][:4]
    lines = [
        f'{word} ' + ' + '.join(f'{100 * float(each[index]):.0f}' for index in shown)
        for word, each in (('label', label), ('shown', shares))
    ]
    return figures.Panel(picture, lines)


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        'data', type=Path, help='folder of Oxford-IIIT Pet, another one with masks, or a file of results'
    )
    parser.add_argument('--images', default='images', help='folder in DATA with the photographs, for --figure (images)')
    parser.add_argument(
        '--masks',
        default=TRIMAPS,
        help=f'folder in DATA with the masks, .png; a trainval.txt beside it lists their names (default: {TRIMAPS})',
    )
    parser.add_argument(
        '--values', type=natural, nargs='+', default=[1], metavar='N', help="values of the object's pixels in masks (1)"
    )
    parser.add_argument('--count', type=positive, default=20000, help='mixed images per method (default: 20000)')
    parser.add_argument('--seeds', type=positive, default=5, help='number of seeds (default: 5)')
    parser.add_argument('--size', type=positive, default=64, help='side of an image in pixels (default: 64)')
    parser.add_argument(
        '--crop', type=float, default=0.08, help="least area of training's random crop, 1: none (default: 0.08)"
    )
    parser.add_argument(
        '--least-pixels',
        type=positive,
        default=16,
        help='smallest visible object of the last two columns (default: 16)',
    )
    parser.add_argument('--results', help='also write the numbers of each seed to a .json file')
    parser.add_argument('--figure', help='also draw mixed photographs: .png, .svg or .pdf')
    add_table(parser)
    args = parser.parse_args(argv)
    form = table_format(args.out, args.overwrite, args.format)
    if args.data.suffix == '.json':
        words = {word.partition('=')[0] for word in (sys.argv[1:] if argv is None else argv)}
        given = [option for option in MEASURING if option in words]
        if given:
            raise UserValueError(f'{args.data} holds results that are only shown; not allowed: {", ".join(given)}.')
        if not args.data.exists():
            raise UserFileError(f'{args.data} does not exist.')
        try:
            shown = table(json.loads(args.data.read_text()))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserFileError(f'{args.data} is not a file that --results wrote: {error!r}') from None
    else:
        if not 0 < args.crop <= 1:
            raise UserValueError(f'--crop {args.crop:g} must be above 0 and at most 1.')
        if args.figure:
            figures.check_picture(args.figure, args.overwrite)
        if args.results:
            check_out(args.results, args.overwrite, ('.json',))
        sources = read_sources(args.data, args.images, args.masks, args.values, 2 * args.size + 16)
        settings = dict(
            count=args.count, seeds=args.seeds, size=args.size, least_crop=args.crop, least_pixels=args.least_pixels
        )
        if args.figure:  # first: it takes seconds
            print(figures.save(draw(sources, least_crop=args.crop), args.figure, args.overwrite))
        methods = audit(sources, **settings)
        results = dict(settings=dict(settings, masks=len(sources), values=args.values), methods=methods)
        if args.results:
            print(write_text(args.results, json.dumps(results, indent=1) + '\n', args.overwrite))
        shown = table(results)
    write_table(grids.render(form, *shown, right=range(1, 5)), args.out, args.overwrite)


if __name__ == '__main__':
    main()
