"""What the benchmarks share: their options, the shipped ImageNet configs in another size, and tables of times."""

import argparse
import os
from typing import List, Sequence

import numpy as np
import torch
from mmengine.config import Config

from mmrm.report import grids
from mmrm.version import __version__
from tools.analysis import classifiers
from tools.analysis.timing import ratio


def make_parser(doc: str, rounds: int = 0) -> argparse.ArgumentParser:
    """A parser that shows a benchmark's docstring, with ``--rounds`` where it takes turns."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds:
        parser.add_argument('--rounds', type=int, default=rounds, help='rounds (default: %(default)s)')
    return parser


def add_depth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--depth', type=int, default=50, choices=(18, 34, 50, 101), help='depth of the ResNet (default: 50)'
    )


def imagenet_config(folder: str, depth: int, classes: int = 1000) -> Config:
    """The shipped ImageNet config of a regulariser with a ResNet of another depth and another number of classes."""
    cfg = classifiers.load_config(f'configs/{folder}/resnet50_8xb64_in1k.py')
    cfg.model.backbone.depth = depth
    cfg.model.head.update(in_channels=2048 if depth >= 50 else 512, num_classes=classes)
    cfg.model.data_preprocessor.num_classes = classes
    return cfg


def milliseconds(seconds: Sequence[float], digits: int = 0) -> str:
    """The median."""
    return f'{1000 * np.median(seconds):.{digits}f}'


def times(seconds: List[float], base: List[float], digits: int = 3) -> str:
    """The median of the paired ratios and its 95 % interval."""
    middle, low, high = ratio(seconds, base)
    return f'{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})'


def show(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print what was measured, on what, as a table for a page."""
    print(
        f'{title}; mmrm {__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), '
        f'load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n'
    )
    print('\n'.join(grids.render('markdown', headers, rows, right=range(1, len(headers)))) + '\n')
