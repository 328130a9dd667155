#!/usr/bin/env python
"""Test accuracy of a run with other statistics of batch norm: of plain training images, and of mixed ones.

    python projects/finetune/batch_norm.py work_dirs/finetune/50x45/rm-*/*/seed*/

No weight changes. If plain statistics alone cost accuracy, so does mixing that ends when the learning rate is near 0.
"""

import copy
import itertools
import json
import sys
from pathlib import Path
from typing import Dict, Iterator, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import torch
from mmengine.config import Config
from torch.optim.swa_utils import update_bn

from mmrm.cli.options import Parser
from mmrm.models.regularisers import bind_augments
from mmrm.report import grids
from mmrm.utils.errors import cli
from mmrm.utils.files import check_out, write_text
from mmrm.weights.build import open_run
from projects.finetune.measure import accuracy, predict, read_images
from tools.analysis.classifiers import build_dataset, read_batches, seeded


def inputs(model: torch.nn.Module, cfg: Config, mixed: bool) -> Iterator[torch.Tensor]:
    """One epoch of training batches as the network gets them, mixed by the run's own method or plain."""
    dataset, size = build_dataset(cfg, 'train'), cfg.train_dataloader.batch_size
    for batch in itertools.islice(read_batches(dataset, size, seed=0), len(dataset) // size):
        yield model.data_preprocessor(batch, training=mixed)['inputs']


def accuracies(run: Path) -> Dict[str, float]:
    """Test accuracy in percent with the statistics of the checkpoint, of plain and of mixed images."""
    found = open_run(run)
    images, values = read_images(found.cfg), {}
    for name in ('checkpoint', 'plain', 'mixed'):
        model = copy.deepcopy(found.model)
        bind_augments(model)
        with seeded(0):
            if name != 'checkpoint':
                update_bn(inputs(model, found.cfg, name == 'mixed'), model.backbone)
        values[name] = accuracy(predict(model.eval(), images.pixels)[1], images.labels)
    return values


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument('runs', type=Path, nargs='+', help='folders of runs')
    parser.add_argument('--out', type=Path, help='also write the numbers to a .json file')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing file')
    args = parser.parse_args(argv)
    if args.out:
        check_out(args.out, args.overwrite, ('.json',))
    found = {'/'.join(run.parts[-2:]): accuracies(run) for run in args.runs}
    names = list(next(iter(found.values())))
    lines = [[run, *(f'{values[name]:.2f}' for name in names)] for run, values in found.items()]
    print('\n'.join(grids.render('terminal', ('run', *names), lines, right=(1, 2, 3))))
    if args.out:
        write_text(args.out, json.dumps(found, indent=2) + '\n', args.overwrite)


if __name__ == '__main__':
    main()
