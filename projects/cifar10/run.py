#!/usr/bin/env python
"""RM against baseline, Mixup and CutMix on a part of CIFAR-10: the matrix of runs, and what each of them found.

The configs hold the protocol; here is what differs from run to run: the method, the seed, and with the seed the images.
"""

import argparse
import platform
import shlex
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Union

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from rich.console import Console

from mmrm.cli import jobs
from mmrm.cli.options import Parser
from mmrm.report.page import try_report
from mmrm.report.runs import read_run
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.paths import find_config, home
from mmrm.utils.processes import clock
from mmrm.utils.settings import fingerprint
from mmrm.version import __version__
from tools.runs import options as run_options
from tools.runs import results
from tools.runs.options import one_of

CONFIG = 'resnet18-w16_1xb64_cifar10-250'
PART = 'train_dataloader.dataset.per_class'
FLOAT32 = {'optim_wrapper.type': 'OptimWrapper', 'val_cfg.fp16': False, 'test_cfg.fp16': False}
KEY = ('method', 'seed')
WORK_DIR = 'work_dirs/experiment'  # of the project
# What is kept of every epoch: the name in the log, and the name in the results.
CURVES = {
    'loss': 'loss',
    'loss_consistency': 'consistency',
    'rm_kl': 'kl',
    'rm_kl_blind': 'kl_blind',
    'rm_lambda': 'lambda',
}


class Method(NamedTuple):
    """A row of the table: the folder of its config, what is set in it, and how many seeds it has."""

    folder: str
    options: dict
    seeds: int


METHODS = {
    'baseline': Method('baseline', {}, 5),
    'cutmix': Method('cutmix', {}, 5),
    'rm': Method('rm', {}, 5),
    'mixup': Method('mixup', {}, 3),
    'rm-omega0': Method('rm', {'model.head.omega': 0.0}, 3),
}


@dataclass
class Trial(jobs.Job):
    """One run of the experiment.

    Args:
        method (str): One of :data:`METHODS`.
        settings (dict): Where it departs from the protocol.
        **kwargs: As for :class:`mmrm.cli.jobs.Job`.
    """

    method: str = ''
    settings: dict = field(default_factory=dict)


def plan(
    methods: Optional[Sequence[str]] = None,
    seeds: Optional[Sequence[int]] = None,
    root: Optional[Union[str, Path]] = None,
    options: Optional[dict] = None,
    device: str = 'cpu',
) -> List[Trial]:
    """The runs of the experiment, none of them started; all methods of a seed before the next seed.

    Args:
        methods (Sequence[str], optional): Some of :data:`METHODS`. Defaults to None, all.
        seeds (Sequence[int], optional): For all methods. Defaults to None, as many as the protocol has for each.
        root (str | Path, optional): Folder of the runs. Defaults to None, ``work_dirs/experiment`` of the project.
        options (dict, optional): Settings for all runs, ``{'a.b': value}``. Defaults to None.
        device (str): 'cpu' or 'cuda'. Defaults to 'cpu'.

    Raises:
        UserError: If there are too few images for a seed, or a folder holds a run with other settings.
    """
    methods = list(dict.fromkeys(methods or METHODS))
    root = Path(root).expanduser().absolute() if root else home() / WORK_DIR
    wanted = {method: list(dict.fromkeys(seeds)) if seeds else range(METHODS[method].seeds) for method in methods}
    runs = []
    for seed in sorted({seed for each in wanted.values() for seed in each}):
        for method in methods:
            if seed in wanted[method]:
                runs.append(_run(method, seed, root, options or {}, device))
                jobs.check_same(runs[-1])
    return runs


def _run(method: str, seed: int, root: Path, options: dict, device: str) -> Trial:
    folder, own, _ = METHODS[method]
    twice = sorted(set(own) & set(options))
    if twice:
        raise UserValueError(f'--cfg-options cannot set {", ".join(twice)}: {method} sets it')
    config = find_config(f'configs/{folder}/{CONFIG}.py')
    merged = {**own, **options}
    cfg = jobs.merged_config(config, merged)
    if PART not in merged:
        size = cfg.train_dataloader.dataset.per_class[1]
        if not 0 <= seed < 5000 // size:
            raise UserValueError(
                f'seed {seed}: every seed has its own {size} images per class, and CIFAR-10 has 5000; '
                f'allowed: 0 to {5000 // size - 1}'
            )
        merged[PART] = cfg.train_dataloader.dataset.per_class = [seed * size, (seed + 1) * size]
    return Trial(
        f'{method} seed {seed}',
        config,
        merged,
        seed,
        root / method / f'seed{seed}',
        int(cfg.train_cfg.max_epochs),
        ['--device', device],
        method=method,
        fingerprint=fingerprint(cfg, seed),
        settings=options,
    )


# -------------------------------------------------------------------------------------------------------------- results
def result_of(run: Trial) -> dict:
    """What a finished run found: test accuracies, a curve for each of :data:`CURVES` and its time.

    Versions and the processor are those of the process that asks.
    """
    import mmengine
    import mmpretrain
    import torch

    found = read_run(run.work_dir)
    test = {str(epoch): round(found.validations[epoch][jobs.METRIC], 2) for epoch in sorted(found.validations)}
    curves = {}
    for key, name in CURVES.items():
        curve = [found.epochs.get(epoch, {}).get(key) for epoch in range(1, run.epochs + 1)]
        if any(value is not None for value in curve):
            curves[name] = [None if value is None else float(f'{value:.4g}') for value in curve]
    return dict(
        method=run.method,
        seed=run.seed,
        fingerprint=run.fingerprint,
        epochs=run.epochs,
        test=test,
        train=curves,
        hours=round(found.training['hours'], 3),
        settings=run.settings,
        mmrm=__version__,
        torch=torch.__version__,
        mmpretrain=mmpretrain.__version__,
        mmengine=mmengine.__version__,
        processor=processor(),
    )


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.processor() or platform.machine()


def read_results(path: Union[str, Path]) -> List[dict]:
    """The results in a file, one per line; none if there is no file.

    Raises:
        UserFileError: If a line is not a result.
    """
    return results.read(path, _check, KEY)


def _check(result: dict) -> dict:
    one_of('method', result['method'], list(METHODS))
    result['seed'], result['fingerprint'] = int(result['seed']), str(result['fingerprint'])
    result['settings'] = dict(result.get('settings', {}))
    result['test'] = {int(epoch): float(value) for epoch, value in result['test'].items()}
    result['train'] = dict(result['train'])
    result['epochs'], result['hours'] = int(result['epochs']), float(result['hours'])
    if result['epochs'] not in result['test']:
        raise ValueError('no test of the last epoch')
    return result


def add_result(path: Union[str, Path], result: dict) -> None:
    """Put a result into a file, which appears whole or stays as it was. One that is there already is not put twice.

    Raises:
        UserFileError: If the file has a result of the same method and seed under other settings.
    """
    results.add(path, result, _check, KEY)


def parser() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__, allow_abbrev=False)
    seeds = ', '.join(f'{name} {method.seeds}' for name, method in METHODS.items())
    run_options.add(parser, list(METHODS), seeds, WORK_DIR, 'all runs')
    parser.add_argument(
        '--float32', action='store_true', help='float32, for CPUs without bfloat16 kernels; about twice as long'
    )
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the runs as Ctrl-C does
    console = Console(soft_wrap=True)
    root, path = run_options.places(args, WORK_DIR)
    settings = {**(FLOAT32 if args.float32 else {}), **args.cfg_options}
    runs = plan(args.methods, args.seeds, root, settings, args.device)
    known = results.known(path, runs, _check, KEY)
    waiting = [run for run in runs if run.name not in known]
    if args.dry_run:
        for run in runs:
            state = run.state() if run in waiting else 'finished'
            console.print(f'{state}: {shlex.join(run.command())}', markup=False, highlight=False)
        return

    def finished(run: Trial) -> str:
        result = result_of(run)
        add_result(path, result)
        return f'at {result["test"][str(run.epochs)]:.2f} after {clock(3600 * result["hours"])} of training'

    console.print(f'{len(runs)} runs, {len(known)} of them finished already; results go to {path}', highlight=False)
    number = run_options.side_by_side(args, bfloat16=not args.float32) if waiting else 1
    states = jobs.run_all(waiting, number, args.device == 'cpu', print, finished)
    try_report(root)
    if set(states.values()) - {'finished'}:
        sys.exit(1)
    console.print(f'all done; the table: python projects/cifar10/table.py {path}', highlight=False)


if __name__ == '__main__':
    main()
