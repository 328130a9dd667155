#!/usr/bin/env python
"""Does RM fall when it is switched off at the end? Accuracy with batch norm statistics of plain and of mixed images.

    python projects/finetune/batch_norm.py work_dirs/plain_end/*/seed*/ --out batch_norm.json    # measures runs
    python projects/finetune/batch_norm.py                                                         # the published table

No weight changes: only the running means and variances are recomputed from training images.
"""

import argparse
import copy
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import torch
from mmengine.config import Config
from torch.optim.swa_utils import update_bn

from mmrm.cli.options import Parser
from mmrm.models.regularisers import bind_augments
from mmrm.report import grids
from mmrm.report.intervals import difference
from mmrm.utils.errors import UserFileError, cli
from mmrm.utils.files import check_out, write_text
from mmrm.weights.build import Run, open_run
from projects.cifar10.table import difference_text, spread
from projects.finetune.measure import accuracy, predict, read_images
from tools.analysis.classifiers import build_dataset, read_batches, seeded

RESULTS = Path(__file__).with_name('batch_norm.json')
STATISTICS = ('checkpoint', 'plain', 'mixed')
HEADERS = ('method', 'seeds', 'top-1', 'statistics of plain images', 'of mixed images', 'no mixing in the last epochs')


def inputs(model: torch.nn.Module, cfg: Config, mixed: bool) -> Iterator[torch.Tensor]:
    """One epoch of training batches as the network gets them, mixed by the run's own method or plain."""
    dataset, size = build_dataset(cfg, 'train'), cfg.train_dataloader.batch_size
    for batch in itertools.islice(read_batches(dataset, size, seed=0), len(dataset) // size):
        yield model.data_preprocessor(batch, training=mixed)['inputs']


def accuracies(found: Run) -> Dict[str, float]:
    """Test accuracy in percent with the statistics of the checkpoint, of plain and of mixed images."""
    images, values = read_images(found.cfg), {}
    for name in STATISTICS:
        model = copy.deepcopy(found.model)
        bind_augments(model)
        with seeded(0):
            if name != 'checkpoint':
                update_bn(inputs(model, found.cfg, name == 'mixed'), model.backbone)
        values[name] = accuracy(predict(model.eval(), images.pixels)[1], images.labels)
    return values


def lines(found: Dict[str, Dict[str, float]]) -> List[List[str]]:
    """Of each method its seeds and accuracy, what other statistics change, and what unmixed last epochs change.

    Args:
        found (Dict[str, Dict[str, float]]): Of ``method/seed<N>`` the accuracy under each of :data:`STATISTICS`.
    """
    methods: Dict[str, Dict[str, Dict[int, float]]] = {}
    for run, values in found.items():
        method, _, seed = run.rpartition('/seed')
        for name, value in values.items():
            methods.setdefault(method, {}).setdefault(name, {})[int(seed)] = value
    table = []
    for method, values in methods.items():
        own, mixed = values['checkpoint'], re.sub(r'_last_epochs=\d+', '', method)
        changes = [difference(values[name], own) for name in STATISTICS[1:]]
        changes.append(difference(own, methods[mixed]['checkpoint']) if mixed in methods and mixed != method else None)
        table.append([method, str(len(own)), spread(own.values()), *map(difference_text, changes)])
    return table


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument(
        'runs', type=Path, nargs='*', help='folders of runs, <method>/seed<N> (default: published ones)'
    )
    parser.add_argument('--out', type=Path, help='also write the numbers to a .json file')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing file')
    parser.add_argument('--format', choices=grids.FORMATS, default='terminal')
    args = parser.parse_args(argv)
    runs = {'/'.join(run.absolute().parts[-2:]): run for run in args.runs}
    for run in args.runs:
        if not re.fullmatch(r'seed\d+', run.absolute().name) or run not in runs.values():
            raise UserFileError(f'{run}: folders <method>/seed<N> of one mmrm compare are allowed, each once.')
    if args.out:
        check_out(args.out, args.overwrite, ('.json',))
    opened = {name: open_run(run) for name, run in runs.items()}  # all, before the first is measured
    found = {name: accuracies(run) for name, run in opened.items()} or json.loads(RESULTS.read_text())
    print('\n'.join(grids.render(args.format, HEADERS, lines(found))))
    if args.out:
        write_text(args.out, json.dumps(found, indent=2) + '\n', args.overwrite)


if __name__ == '__main__':
    main()
