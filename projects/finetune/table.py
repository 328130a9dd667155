#!/usr/bin/env python
"""The tables of the fine-tuning study, from its file of results: accuracy, the decision, the measures, the pilots.

Methods are compared seed by seed: the runs of a seed saw the same images.
"""

import math
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.cli.options import Parser
from mmrm.report import grids
from mmrm.report.intervals import Difference, difference
from mmrm.utils.errors import UserFileError, cli
from projects.cifar10.table import difference_text, spread
from projects.finetune.protocol import BATCH, CELLS, COMPARISONS, DECIDING, METHODS, Setting, chosen
from projects.finetune.run import RESULTS, pilot_means, read_results

NAMES = dict(none='none', mixup='Mixup', cutmix='CutMix', rm='RM')
CLASSES = 37
MEASURES = dict(
    small='top-1, smallest third of the animals',
    **{'shrunk_0.75': 'top-1 at 84 px', 'shrunk_0.5': 'top-1 at 56 px', 'shrunk_0.375': 'top-1 at 42 px'},
    energy='activation map on the animal',
    pointing='its maximum on the animal',
    ece='calibration error',
    nll='test cross entropy',
)

LATER = ("RM at none's learning rate", 'minus none', 'minus RM at its own')


def by_seed(
    results: Sequence[dict], cell: str, method: str, measure: str = 'top1', later: bool = False
) -> Dict[int, float]:
    """Seed -> accuracy, or another measure, of a method in a cell, in the tests or in the runs added later."""
    rows = [row for row in results if (row['cell'], row['method'], row.get('later', False)) == (cell, method, later)]
    return {row['seed']: row['top1'] if measure == 'top1' else row['measures'][measure] for row in rows}


def confidence(cell: str) -> float:
    """Of the interval in a cell: in the deciding one corrected for the number of comparisons."""
    return 1 - 0.05 / COMPARISONS if cell == DECIDING else 0.95


def compare(
    results: Sequence[dict], cell: str, method: str, measure: str = 'top1', rival: str = 'none'
) -> Optional[Difference]:
    """A method minus another, paired by seed."""
    values = [by_seed(results, cell, each, measure) for each in (method, rival)]
    return difference(*values, confidence=confidence(cell) if (measure, rival) == ('top1', 'none') else 0.95)


def decide(results: Sequence[dict]) -> str:
    """The method that becomes the default of ``mmrm init``; of several that pass the one with the largest mean.

    Raises:
        UserFileError: If the deciding cell is not complete.
    """
    for method in METHODS:
        if set(by_seed(results, DECIDING, method)) != set(CELLS[DECIDING].seeds):
            raise UserFileError(f'{method} does not have all of its {len(CELLS[DECIDING].seeds)} runs in {DECIDING}')
    found = {method: compare(results, DECIDING, method) for method in METHODS if method != 'none'}
    passed = {method: each.mean for method, each in found.items() if each.low > 0}
    return max(passed, key=passed.get) if passed else 'none'


def dose(cell: str, setting: Setting) -> float:
    """The expected share of the training batches that RM mixes.

    The history is empty at the start of an epoch, so the first batch that is drawn for mixing only fills it. The last
    tenth of the epochs may be plain.
    """
    images, epochs, _ = CELLS[cell]
    batches, prob = -(-images * CLASSES // BATCH), setting['prob']
    mixed = epochs - math.ceil(epochs / 10) if setting.get('plain_end') else epochs
    return (batches * prob - (1 - (1 - prob) ** batches)) / batches * mixed / epochs


def accuracy_lines(results: Sequence[dict]) -> List[List[str]]:
    """Images x epochs, seeds, then of each method its accuracy, and its difference from none."""
    lines = []
    for cell in CELLS:
        counts = {method: len(by_seed(results, cell, method)) for method in METHODS}
        if any(counts.values()):
            seeds = ', '.join(f'{NAMES[method]} {count}' for method, count in counts.items())
            equal = len(set(counts.values())) == 1
            lines.append([cell, str(counts['none']) if equal else seeds, *_values(results, cell, 'top1')])
    return lines


def measure_lines(results: Sequence[dict]) -> List[List[str]]:
    """The same for each measure in the deciding cell."""
    return [[title, *_values(results, DECIDING, measure)] for measure, title in MEASURES.items()]


def all_cells(results: Sequence[dict], method: str, rival: str, form: str) -> str:
    """The table of a method minus another: each measure in each cell."""
    lines = [
        [title, *(difference_text(compare(results, cell, method, measure, rival)) for cell in CELLS)]
        for measure, title in dict(top1='top-1', **MEASURES).items()
    ]
    return '\n'.join(grids.render(form, (f'{NAMES[method]} minus {NAMES[rival]}', *CELLS), lines))


def _values(results: Sequence[dict], cell: str, measure: str) -> List[str]:
    values = [spread(by_seed(results, cell, method, measure).values()) for method in METHODS]
    return values + [difference_text(compare(results, cell, method, measure)) for method in METHODS[1:]]


def pilot_lines(results: Sequence[dict]) -> List[List[str]]:
    """Every pilot that is done, in the order in which it was run: method, setting, mean of its seeds."""
    return [
        [NAMES[method], setting, f'{mean:.2f}']
        for method in METHODS
        for setting, mean in pilot_means(results, method).items()
    ]


def page_parts(results: Sequence[dict], form: str) -> List[str]:
    """What README.md has of the tests: accuracy in the cells, RM's dose, the measures, the decision."""
    methods = [*(NAMES[method] for method in METHODS), *(f'{NAMES[method]} minus none' for method in METHODS[1:])]
    setting = chosen('rm', pilot_means(results, 'rm'))
    doses = ', '.join(f'{100 * dose(cell, setting):.1f} % in {cell}' for cell in CELLS)
    even = max(row['measures']['even'] for row in results if row['cell'] != 'pilot')  # the same for all runs
    try:
        decision = f'The default of `mmrm init`: {decide(results)}.'
    except UserFileError as error:
        decision = f'Not decided: {error}.'
    parts = [
        '\n'.join(grids.render(form, ('cell', 'seeds', *methods), accuracy_lines(results))),
        f'Expected share of the batches that RM mixes: {doses}.',
        '\n'.join(grids.render(form, (f'in {DECIDING}', *methods), measure_lines(results))),
        f'A constant map would have {even:.1f} % on the animal.',
        all_cells(results, 'rm', 'none', form),
        decision,
    ]
    if by_seed(results, DECIDING, 'rm', later=True):
        parts.append('\n'.join(grids.render(form, (f'in {DECIDING}', *LATER), later_lines(results))))
    return parts


def later_lines(results: Sequence[dict]) -> List[List[str]]:
    """Each measure of the RM runs that were added after the tests, and its differences from none and RM there."""
    lines = []
    for measure, title in dict(top1='top-1', **MEASURES).items():
        later = by_seed(results, DECIDING, 'rm', measure, later=True)
        rivals = (by_seed(results, DECIDING, method, measure) for method in ('none', 'rm'))
        lines.append([title, spread(later.values()), *(difference_text(difference(later, each)) for each in rivals)])
    return lines


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument('--results', type=Path, default=RESULTS)
    parser.add_argument('--format', choices=grids.FORMATS, default='terminal')
    args = parser.parse_args(argv)
    results = read_results(args.results)
    if not results:
        raise UserFileError(f'{args.results} has no results. They come from: python projects/finetune/run.py pilots')
    print('\n'.join(grids.render(args.format, ('method', 'pilot', 'held-out top-1'), pilot_lines(results), right=(2,))))
    if accuracy_lines(results):
        more = (all_cells(results, *pair, args.format) for pair in (('cutmix', 'none'), ('rm', 'cutmix')))
        print('\n' + '\n\n'.join((*page_parts(results, args.format), *more)))


if __name__ == '__main__':
    main()
