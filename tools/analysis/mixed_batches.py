#!/usr/bin/env python
"""What the network is fed: a sample over successive iterations under Mixup, CutMix and RecursiveMix."""

import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import numpy as np
import torch
from mmengine.config import Config
from mmpretrain.registry import BATCH_AUGMENTS
from torch import nn

from mmrm.cli.options import natural, positive
from mmrm.core import Box
from mmrm.models.regularisers.dropblock import drop_block
from mmrm.utils import figures
from mmrm.utils.config import number_of_classes
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.figures import Panel
from mmrm.utils.paths import show_path
from tools.analysis import classifiers, plots
from tools.analysis.options import picture_parser

# The CutMix authors' settings for CIFAR, but for the probability: every iteration is shown mixed.
COMPARED = dict(Mixup=dict(type='Mixup', alpha=1.0), CutMix=dict(type='CutMix', alpha=1.0))
RESIZE = dict(type='ResizeMix', alpha=1.0)
# What works on feature maps, shown on the images. There Manifold Mixup is Mixup and Feature CutMix is CutMix.
OTHERS = {
    'MoEx': dict(type='MoEx', lam=0.5, layer='input'),
    'CutMix + MoEx': dict(type='CutMixMoEx', lam=0.9, moex_prob=1.0, layer='input'),
}
KEEP = 0.9  # DropBlock's, with blocks of an eighth of the image


class Mixed(NamedTuple):
    """One iteration of one method.

    Args:
        images (ndarray): uint8 RGB, shape ``(N, H, W, 3)``.
        scores (ndarray): Fused labels, shape ``(N, num_classes)``.
        shares (ndarray): Lambda of each sample: the share that is not its own image, shape ``(N, )``.
        box (Box, optional): Where the other image is, None where it is everywhere or nowhere.
    """

    images: np.ndarray
    scores: np.ndarray
    shares: np.ndarray
    box: Optional[Box] = None


class Gallery(NamedTuple):
    """What :func:`collect` returns: method -> its iterations, the names of the classes, and what was used."""

    methods: Dict[str, List[Mixed]]
    classes: Optional[Sequence[str]]
    settings: Dict[str, str]


def mix_pairs(augment, inputs: torch.Tensor, scores: torch.Tensor):
    """Apply a batch augment that mixes pairs of the batch (Mixup, CutMix) and find out what it did.

    It draws lambda, partners and box inside; two probes bring them out: labels that name the samples, and a channel
    that does.

    Args:
        augment (callable): Takes and returns images and labels.
        inputs (Tensor): Shape ``(N, C, H, W)``.
        scores (Tensor): Shape ``(N, num_classes)``.

    Returns:
        tuple[Tensor, Tensor, Tensor, Box | None]: Mixed images and labels, the share of the partner in each sample,
        and the box that the partners fill.
    """
    number, _, height, width = inputs.shape
    own = torch.arange(number, dtype=inputs.dtype).view(-1, 1, 1, 1)
    mixed, matrix = augment(torch.cat([inputs, own.expand(-1, 1, height, width)], 1), torch.eye(number))
    moved = (mixed[:, -1] != own[:, 0]).any(0)
    box = None
    if moved.any():
        rows, columns = torch.nonzero(moved.any(1)).flatten(), torch.nonzero(moved.any(0)).flatten()
        box = Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return mixed[:, :-1], matrix @ scores, 1 - matrix.diagonal(), box


def mix_whole(augment, inputs: torch.Tensor, scores: torch.Tensor):
    """As :func:`mix_pairs`, for an augment that looks at all channels together and so cannot have another channel."""
    mixed, matrix = augment(inputs, torch.eye(len(inputs)))
    return mixed, matrix @ scores, 1 - matrix.diagonal()


def collect(cfg: Config, iterations: int = 6, batch: int = 8, seed: int = 0, others: bool = False) -> Gallery:
    """Feed successive batches of a config's training data to each method, the same ones to all.

    Args:
        cfg (Config): Of a classifier (:func:`tools.analysis.classifiers.load_config` with ``part='train'``).
        iterations (int): How many. Defaults to 6.
        batch (int): Images an iteration, at least 2. Defaults to 8.
        seed (int): Of the order of the data, its augmentation and the mixing. Defaults to 0.
        others (bool): Whether to add DropBlock, ResizeMix and :data:`OTHERS`, at the input. Defaults to False.

    Returns:
        Gallery: With the methods 'Input', 'Mixup', 'CutMix' and 'RM', and the others before 'RM'.
    """
    if iterations < 1 or batch < 2:
        raise UserValueError(f'iterations={iterations} must be 1 or more and batch={batch} 2 or more.')
    preprocessor, dataset = classifiers.build_preprocessor(cfg), classifiers.build_dataset(cfg, 'train')
    order = figures.channel_order(cfg, preprocessor)
    number = number_of_classes(cfg)
    augment, own = classifiers.recursive_mix_of(cfg)
    pairs = {name: BATCH_AUGMENTS.build(dict(settings)) for name, settings in COMPARED.items()}
    more = {name: BATCH_AUGMENTS.build(dict(settings)) for name, settings in OTHERS.items()} if others else {}
    for each in more.values():
        each.bind(nn.Identity())
    resize = BATCH_AUGMENTS.build(dict(RESIZE))
    names = ('Input', *(['DropBlock'] if others else []), *pairs, *(['ResizeMix', *more] if others else []), 'RM')
    methods: Dict[str, List[Mixed]] = {name: [] for name in names}

    def keep(name, inputs, scores, shares, box=None):
        methods[name].append(Mixed(figures.to_images(inputs, preprocessor, order), scores.numpy(), shares.numpy(), box))

    with classifiers.seeded(seed):
        stream = classifiers.read_batches(dataset, batch, seed)
        for step in range(iterations):
            data = preprocessor(next(stream), training=True)
            inputs, scores = data['inputs'], figures.soft_labels(data['data_samples'], number)
            keep('Input', inputs, scores, torch.zeros(batch))
            if others:
                block = max(inputs.shape[-1] // 8, 1)
                with classifiers.seeded(seed + step):  # the other rows are the same with and without these
                    keep('DropBlock', drop_block(inputs, block, KEEP), scores, torch.zeros(batch))
                    keep('ResizeMix', *mix_pairs(resize, inputs, scores))
                    for name, other in more.items():
                        keep(name, *mix_whole(other, inputs, scores))
            for name, pair in pairs.items():
                mixed, fused, shares, box = mix_pairs(pair, inputs, scores)
                keep(name, mixed, fused, shares, box if name == 'CutMix' else None)
            mixed, fused, mix = augment.mix(inputs, scores)
            shares = torch.zeros(batch)
            shares[: mix.count] = mix.lam
            keep('RM', mixed, fused, shares, mix.box if mix.lam else None)
    settings = {name: f'alpha {value["alpha"]:g}' for name, value in dict(COMPARED, ResizeMix=RESIZE).items()}
    settings.update(
        {name: f'lambda {value["lam"]:g}, at the input' for name, value in OTHERS.items()},
        DropBlock=f'keep {KEEP:g}, at the input',
    )
    settings['RM'] = f'alpha {augment.alpha:g}, {augment.interpolation}' + ('' if own else ' (default)')
    return Gallery(methods, figures.class_names(dataset), settings)


# -------------------------------------------------------------------------------------------------------------- drawing
def draw_gallery(gallery: Gallery, samples: int = 1, foot: Sequence[str] = ()):
    """The figure of a gallery: a column an iteration, a row a method, for each of the first ``samples``."""
    available = len(gallery.methods['Input'][0].images)
    if not 1 <= samples <= available:
        raise UserValueError(f'samples={samples} must be from 1 to {available}, the images of a batch.')
    rows = []
    for sample in range(samples):
        for name, iterations in gallery.methods.items():
            settings = gallery.settings.get(name)
            panels = [
                panel_of(mixed, sample, gallery.classes, name not in ('Input', 'DropBlock')) for mixed in iterations
            ]
            rows.append((f'{name}\n{settings}' if settings else name, panels))
    steps = len(gallery.methods['Input'])
    figure = figures.draw_rows(rows, [f't = {step + 1}' for step in range(steps)])
    plots.provenance(figure, foot)
    return figure


def panel_of(mixed: Mixed, sample: int, classes: Optional[Sequence[str]], with_share: bool = True) -> Panel:
    """One sample of an iteration, with lambda above its fused label."""
    lines = figures.label_text(mixed.scores[sample], classes)
    share = [f'λ = {figures.share_text(mixed.shares[sample])}'] if with_share else []
    return Panel(mixed.images[sample], [*share, *lines], mixed.box if mixed.shares[sample] > 0 else None)


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = picture_parser(__doc__, config=True)
    parser.add_argument('--iterations', type=positive, default=6, help='columns (default: 6)')
    parser.add_argument(
        '--samples', type=positive, default=1, help='samples of the batch, a row for each method (default: 1)'
    )
    parser.add_argument('--batch', type=positive, default=8, help='images per iteration (default: 8)')
    parser.add_argument(
        '--all', action='store_true', help='also DropBlock, ResizeMix, MoEx and CutMix + MoEx, at the input'
    )
    parser.add_argument('--seed', type=natural, default=0, help='random seed (default: 0)')
    args = parser.parse_args(argv)
    figures.check_picture(args.out, args.overwrite)
    cfg = classifiers.load_config(args.config, args.cfg_options, 'train')
    if not classifiers.recursive_mix_of(cfg)[1]:
        print(f'note: {args.config} has no RecursiveMix; its defaults are shown', file=sys.stderr)
    gallery = collect(cfg, args.iterations, max(args.batch, args.samples), args.seed, args.all)
    foot = [f'data: {classifiers.data_name(cfg, "train")}, config {show_path(Path(cfg.filename))}, seed {args.seed}']
    print(figures.save(draw_gallery(gallery, args.samples, foot), args.out, args.overwrite))


if __name__ == '__main__':
    main()
