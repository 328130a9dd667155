#!/usr/bin/env python
"""Fine-tuning with none, Mixup, CutMix and RM: the pilots, then the cells. Interrupted, it resumes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.cli.options import Parser, positive
from mmrm.utils.errors import UserError, cli
from mmrm.utils.paths import home
from projects.finetune import protocol
from projects.finetune.protocol import CELLS, METHODS, PILOT, Cell, Setting, name
from tools.runs import results

HERE = Path(__file__).resolve().parent
RESULTS = HERE / 'results.jsonl'
KEY = ('cell', 'method', 'setting', 'seed')


def read_results(path: Path = RESULTS) -> List[dict]:
    """What is known, a run per line: cell, method, setting, seed, top1 in percent, hours, fingerprint and measures.

    ``later`` marks a run in a cell that was added after the tests.
    """
    return results.read(path, _check, KEY)


def _check(result: dict) -> dict:
    if result['method'] not in METHODS or result['cell'] not in ('pilot', *CELLS):
        raise ValueError('unknown method or cell')
    return dict(result, seed=int(result['seed']), top1=float(result['top1']))


def pilot_means(known: Sequence[dict], method: str) -> Dict[str, float]:
    """The mean accuracy of each setting that has all of its pilots."""
    found: Dict[str, Dict[int, float]] = {}
    for row in known:
        if row['cell'] == 'pilot' and row['method'] == method:
            found.setdefault(row['setting'], {})[row['seed']] = row['top1']
    return {key: sum(each.values()) / len(each) for key, each in found.items() if set(each) == set(PILOT.seeds)}


def train(cell_name: str, cell: Cell, method: str, setting: Setting, args, later: bool = False) -> None:
    """Train what is missing of a setting with mmrm compare, and put it into the file of results."""
    known = {row['seed'] for row in read_results(args.results) if _key(row) == (cell_name, method, name(setting))}
    seeds = [seed for seed in cell.seeds if seed not in known]
    if not seeds:
        return
    print(f'{cell_name} {method} {name(setting)}: seeds {seeds}', flush=True)
    folder = hashlib.sha256(name(setting).encode()).hexdigest()[:8]
    work_dir = Path(args.work_dir).absolute() / cell_name / f'{method}-{folder}'
    command = [sys.executable, '-m', 'mmrm', 'compare', str(HERE / 'configs' / 'pets.py'), '--work-dir', str(work_dir)]
    command += ['--jobs', str(args.jobs), '--device', args.device, '--seeds', *map(str, seeds)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE.parents[1]), os.environ.get('PYTHONPATH', '')]))
    code = subprocess.call(command + protocol.arguments(method, setting, cell), env=environment)
    table = work_dir / 'results.jsonl'
    rows = [json.loads(line) for line in table.read_text().splitlines()] if table.is_file() else []
    for row in rows:
        if row['value'] is not None and row['seed'] in seeds:
            found = dict(cell=cell_name, method=method, setting=name(setting), seed=row['seed'], top1=row['value'])
            found.update(hours=row['hours'], fingerprint=row['fingerprint'], **(dict(later=True) if later else {}))
            if cell is not PILOT:
                found['measures'] = measured(next(work_dir.glob(f'*/seed{row["seed"]}')), row['value'])
            results.add(args.results, found, _check, KEY)
    if code:
        raise UserError(f'mmrm compare ended with exit code {code}; run the same command to resume')


def measured(run: Path, top1: float) -> Dict[str, float]:
    """The measures of a run; they are made from its checkpoint, whose accuracy must be the run's own."""
    from projects.finetune.measure import measure

    values = measure(run)
    if abs(values['top1'] - top1) > 0.1:
        raise UserError(f'{run}: the checkpoint has {values["top1"]:.2f} % top-1, the run had {top1:.2f} %.')
    return values


def _key(row: dict) -> tuple:
    return row['cell'], row['method'], row['setting']


def run_pilots(args) -> None:
    """All six settings of each method; the later ones depend on the earlier ones."""
    for method in args.methods:
        while True:
            found = pilot_means(read_results(args.results), method)
            waiting = [setting for setting in protocol.pilots(method, found) if name(setting) not in found]
            if not waiting:
                break
            for setting in waiting:
                train('pilot', PILOT, method, setting, args)


def run_rate(args) -> None:
    """The chosen setting of each method at none's learning rate: pilots, and cells on request.

    Made after the tests, so it decides nothing.
    """
    settings = chosen_settings(args.results)
    for cell in ('pilot', *(args.cells or ())):
        for method in args.methods:
            setting = dict(settings[method], lr=settings['none']['lr'])
            later = cell != 'pilot' and setting != settings[method]  # none's own runs are those of the tests
            train(cell, CELLS.get(cell, PILOT), method, setting, args, later)


def run_cells(args) -> None:
    """The cells with the settings that the pilots chose. No method is tested before all pilots of all are done."""
    settings = chosen_settings(args.results)
    for cell in args.cells or CELLS:
        for method in args.methods:
            train(cell, CELLS[cell], method, settings[method], args)


def chosen_settings(path: Path) -> Dict[str, Setting]:
    """What the pilots chose for each method."""
    known = read_results(path)
    try:
        return {method: protocol.chosen(method, pilot_means(known, method)) for method in METHODS}
    except ValueError as error:
        raise UserError(f'{error}: python projects/finetune/run.py pilots') from error


PARTS = dict(pilots=run_pilots, test=run_cells, rate=run_rate)


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument('part', choices=PARTS)
    parser.add_argument('--methods', nargs='+', choices=METHODS, default=METHODS)
    parser.add_argument('--cells', nargs='+', choices=tuple(CELLS), help='default: all; for rate none')
    parser.add_argument('--jobs', type=positive, default=2, help='runs at a time (default: 2)')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--work-dir', default=str(home() / 'work_dirs' / 'finetune'))
    parser.add_argument('--results', type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    PARTS[args.part](args)


if __name__ == '__main__':
    main()
