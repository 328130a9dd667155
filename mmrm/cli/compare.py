"""Train a classifier with several mixing methods and seeds, and compare them: one table, one page."""

import argparse
import ast
import copy
import inspect
import json
import os
import re
import shlex
import signal
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..utils.errors import UserError, UserValueError, check_numbers, cli
from .options import METHODS, OMEGA, Parser, natural, positive

HEAD_OPTIONS = ('omega', 'share_fc', 'roi_layers')  # of rm: those of RMConsistencyHead
EPOCH_OPTIONS = ('first_epochs', 'last_epochs')  # of all that mix: those of MixScheduleHook
# Heads and necks that RMConsistencyHead replaces with the same network (docs/networks.md).
HEADS, NECK = ('LinearClsHead', 'StackedLinearClsHead'), 'GlobalAveragePooling'


class Method(NamedTuple):
    """A method with its options: ``rm:prob=0.5,omega=0.5`` is ``('rm', {'prob': 0.5, 'omega': 0.5})``."""

    label: str
    name: str
    options: Dict[str, Any]

    @property
    def folder(self) -> str:
        return re.sub('[:,]', '_', self.label)


def method(text: str) -> Method:
    """An argument of ``--methods``."""
    name, _, words = text.partition(':')
    if name not in METHODS or not re.fullmatch(r'(\w+=[\w.+-]+(,\w+=[\w.+-]+)*)?', words):
        raise argparse.ArgumentTypeError(
            f'{text!r}: {", ".join(METHODS)} are allowed, with options as in rm:prob=0.5,omega=0.5'
        )
    pairs = (word.split('=') for word in words.split(',') if word)
    return Method(text, name, {key: _value(value, (METHODS[name] or {}).get(key)) for key, value in pairs})


def _value(text: str, default: Any):
    try:
        value = ast.literal_eval(text.capitalize())
    except (ValueError, SyntaxError):
        return text
    return float(value) if type(value) is int and isinstance(default, float) else value  # Mixup refuses alpha=1


def build_parser() -> Parser:
    parser = Parser(prog='mmrm compare', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help='config of a classifier, as for mmrm train')
    methods = f'some of {", ".join(METHODS)}, with options as in rm:prob=0.5,omega=0.5 (default: none cutmix rm)'
    default = [method(name) for name in ('none', 'cutmix', 'rm')]
    parser.add_argument('--methods', nargs='+', type=method, metavar='METHOD', default=default, help=methods)
    parser.add_argument('--seeds', nargs='+', type=natural, default=[0, 1, 2], metavar='N', help='default: 0 1 2')
    parser.add_argument('--jobs', type=positive, default=1, metavar='N', help='runs at a time (default: 1)')
    parser.add_argument('--gpus', type=positive, default=1, metavar='N', help='GPUs of a run (default: 1)')
    parser.add_argument('--work-dir', help='folder of <method>/seed<N> (default: work_dirs/<config>-compare)')
    parser.add_argument('--images-per-class', type=positive, metavar='N', help='train on N of each, drawn by the seed')
    parser.add_argument('--test-last', action='store_true', help='validate once: the last epoch, on the test data')
    parser.add_argument('--metric', default='accuracy/top1', help='metric to compare (default: accuracy/top1)')
    parser.add_argument('--device', choices=('cuda', 'cpu'), help='as in mmrm train')
    parser.add_cfg_options('settings for all runs, as in mmrm train')
    parser.add_argument('--dry-run', action='store_true', help='write the configs and print the commands only')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = build_parser().parse_args(argv)
    from ..report.page import try_report
    from ..utils.files import write_text
    from ..utils.paths import default_work_dir, find_config
    from .jobs import run_all

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the runs as Ctrl-C does
    config = find_config(args.config)
    default = default_work_dir(config)
    root = Path(args.work_dir or default.with_name(f'{default.name}-compare')).expanduser().absolute()
    runs = plan(config, root, args)
    if args.dry_run:
        for run in runs:
            print(f'{run.state()}: {shlex.join(run.command())}')
        return
    check_configs([run for run in runs if run.state() == 'new' and run.seed == args.seeds[0]])
    cpu = (args.device or os.environ.get('MMRM_DEVICE')) == 'cpu'
    states = run_all(runs, args.jobs, cpu, finished=lambda run: f'at {run.validations()[run.epochs]:.2f}')
    rows = [result_of(run, states[run.name]) for run in runs]
    text = '\n'.join(table(rows, args.metric)) + '\n'
    write_text(root / 'results.jsonl', ''.join(json.dumps(row) + '\n' for row in rows), overwrite=True)
    write_text(root / 'table.md', text, overwrite=True)
    print(text, end='')
    try_report(root)
    if set(states.values()) - {'finished'}:
        sys.exit(1)


# ------------------------------------------------------------------------------------------------------------- the runs
def plan(config: Path, root: Path, args: argparse.Namespace) -> list:
    """The runs, none of them started, all methods of a seed before the next seed. Writes the config of each.

    Raises:
        UserError: If a method does not fit the config, or a folder holds a run with other settings.
    """
    from ..utils.files import write_text
    from ..utils.settings import fingerprint
    from ..weights.build import check_is_classifier
    from . import jobs

    base = jobs.merged_config(config, args.cfg_options)
    check_is_classifier(base, f'config {config}')
    if args.test_last:
        set_test_last(base, config)
    labels = labels_of(base) if args.images_per_class else None
    runs, texts, arguments = [], [], ['--device', args.device] if args.device else []
    for each in {each.label: each for each in args.methods}.values():
        cfg = copy.deepcopy(base)
        set_method(cfg, each)
        text, epochs = f'{cfg.pretty_text.rstrip()}\n', int(cfg.train_cfg.max_epochs)
        for seed in dict.fromkeys(args.seeds):
            chosen = ''
            if labels is not None:
                cfg.train_dataloader.dataset.indices = draw(labels, args.images_per_class, seed)
                chosen = f"train_dataloader['dataset']['indices'] = {list(cfg.train_dataloader.dataset.indices)}\n"
            folder = root / each.folder / f'seed{seed}'
            name, marks = f'{each.label} seed {seed}', dict(fingerprint=fingerprint(cfg, seed), metric=args.metric)
            run = jobs.Job(name, folder.with_suffix('.py'), {}, seed, folder, epochs, arguments, args.gpus, **marks)
            jobs.check_same(run)
            runs.append(run)
            texts.append(text + chosen)
    for run, text in zip(runs, texts):
        write_text(run.config, text, overwrite=True)
    return sorted(runs, key=lambda run: args.seeds.index(run.seed))


def set_method(cfg, each: Method) -> None:
    """Set how a classifier mixes its batches, and its learning rate if one is given; the network is the same.

    What the config says of the same augment stays, such as its alpha.

    Raises:
        UserValueError: If RM does not fit the head, or a method has no such option.
    """
    from mmpretrain.registry import BATCH_AUGMENTS

    from ..utils.config import type_name

    model, head = cfg.model, cfg.model.head
    place = model if model.get('data_preprocessor') else cfg
    place.setdefault('data_preprocessor', {})
    preprocessor = place.data_preprocessor
    before = preprocessor.get('batch_augments') or model.get('train_cfg') or {}  # mmpretrain's configs have either
    if type_name(preprocessor) in ('', 'ClsDataPreprocessor'):
        preprocessor.type = 'RMDataPreprocessor'
    if type_name(head) in HEADS and type_name(model.get('neck') or dict(type=NECK)) == NECK:
        head.type, model.neck = 'RMConsistencyHead', None
    if type_name(head) == 'RMConsistencyHead':
        head.omega = 0 if each.name != 'rm' else head.get('omega') or OMEGA
    elif each.name == 'rm':
        raise UserValueError(f'{each.label} needs RMConsistencyHead; the head is {type_name(head)} (docs/networks.md).')
    if isinstance(model.get('train_cfg'), dict):
        model.train_cfg = {key: value for key, value in model.train_cfg.items() if key not in ('augments', 'probs')}
    augment, probs, schedule = METHODS[each.name], None, {}
    allowed = inspect.signature(BATCH_AUGMENTS.get(augment['type'])).parameters if augment else ()
    if augment:
        known = before.get('augments') or []
        known = [known] if isinstance(known, dict) else known
        same = [dict(one) for one in known if type_name(one) == augment['type']]
        augment = (same or [dict(augment)])[0]
        probs = before.get('probs') if len(known) == len(same) == 1 else None
    for key, value in each.options.items():
        if key in allowed:
            augment[key] = value
            probs = None if key == 'prob' else probs  # RecursiveMix has its own, which replaces the config's
        elif key == 'prob' and augment:
            check_numbers(each.label, 0, 1, prob=value)
            probs = float(value)
        elif key in EPOCH_OPTIONS and augment:
            schedule[key] = value
        elif key in HEAD_OPTIONS and each.name == 'rm':
            head[key] = value
        elif key == 'lr':
            check_numbers(each.label, 0, above=True, lr=value)
            optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer')
            if not isinstance(optimizer, dict):
                raise UserValueError(f'{each.label}: lr needs optim_wrapper.optimizer in the config, a dict.')
            optimizer.lr = value
        else:
            more = ['lr', *allowed, *(HEAD_OPTIONS if each.name == 'rm' else ())]
            more += ['prob', *EPOCH_OPTIONS] if augment else []
            raise UserValueError(f'{each.label}: {each.name} takes {", ".join(more)}, not {key}.')
    mixing = dict(augments=augment) if probs is None else dict(augments=augment, probs=probs)
    preprocessor.batch_augments = mixing if augment else None
    hooks = list(cfg.get('custom_hooks') or [])
    if schedule or not augment:  # the config's own is replaced, or has nothing to switch
        hooks = [hook for hook in hooks if type_name(hook) != 'MixScheduleHook']
    if each.name == 'rm' and not any(type_name(hook) == 'ResetHistoryHook' for hook in hooks):
        hooks.append(dict(type='ResetHistoryHook'))
    cfg.custom_hooks = hooks + ([dict(type='MixScheduleHook', **schedule)] if schedule else [])


def set_test_last(cfg, config: Path) -> None:
    """Let a run validate once, after its last epoch, and on the test data; no checkpoint is chosen by that."""
    from ..utils.config import require

    require(cfg, config, 'test_dataloader', 'test_evaluator', 'test_cfg')
    cfg.val_dataloader, cfg.val_evaluator = cfg.test_dataloader, cfg.test_evaluator
    cfg.val_cfg = {key: value for key, value in cfg.test_cfg.items() if key != 'type'}
    cfg.train_cfg.val_interval = cfg.train_cfg.max_epochs
    if (cfg.get('default_hooks') or {}).get('checkpoint'):
        cfg.default_hooks.checkpoint.save_best = None


def labels_of(cfg) -> List[int]:
    """The label of each training image."""
    from ..datasets.locate import find_data
    from ..engine.classes import build_lazily

    found = copy.deepcopy(cfg)
    find_data(found, ('train',))
    dataset = found.train_dataloader.dataset
    if 'dataset' in dataset or 'datasets' in dataset or dataset.get('indices') is not None:
        raise UserValueError('--images-per-class needs a train data set that is not wrapped and has no indices.')
    built = build_lazily(dataset, found.get('default_scope'))
    if not hasattr(built, 'get_gt_labels'):
        raise UserValueError(f'--images-per-class: {type(built).__name__} does not list the labels of its images.')
    built.full_init()
    return [int(label) for label in built.get_gt_labels()]


def draw(labels: Sequence[int], number: int, seed: int) -> List[int]:
    """The indices of ``number`` images of each class, drawn by the seed: the same for every method."""
    import numpy as np

    rng, labels = np.random.default_rng(seed), np.asarray(labels)
    counts = {int(label): int((labels == label).sum()) for label in np.unique(labels)}
    few = {label: count for label, count in counts.items() if count < number}
    if few:
        raise UserValueError(f'--images-per-class {number}: class {min(few)} has {few[min(few)]} training images.')
    chosen = [rng.choice(np.flatnonzero(labels == label), number, replace=False) for label in counts]
    return sorted(int(index) for index in np.concatenate(chosen))


def check_configs(runs: list) -> None:
    """Raise if a config would fail: before the first run starts, and with all problems of all methods."""
    from .check import check

    problems = [f'{run.name}: {problem}' for run in runs for problem in check(run.config).problems]
    if problems:
        raise UserError(f'{len(problems)} problem(s)\n- ' + '\n- '.join(problems))


# ---------------------------------------------------------------------------------------------------------- the results
def result_of(run, state: str) -> Dict[str, Any]:
    """What is known of a run: its state and, if it is finished, the metric of its last epoch."""
    from ..report.runs import read_run, sessions

    found = read_run(run.work_dir) if sessions(run.work_dir) else None
    return dict(
        method=run.name.rpartition(' seed ')[0],
        seed=run.seed,
        state=state,
        value=run.validations().get(run.epochs) if state == 'finished' else None,
        epochs=run.epochs,
        hours=round(found.training.get('hours', 0.0), 4) if found else None,
        fingerprint=run.fingerprint,
    )


def table(rows: Sequence[Dict[str, Any]], metric: str) -> List[str]:
    """A row per method in Markdown: mean and standard deviation, and the difference to the first method."""
    from ..report.grids import render
    from ..report.intervals import difference

    values: Dict[str, Dict[int, float]] = {row['method']: {} for row in rows}
    for row in rows:
        if row['value'] is not None:
            values[row['method']][row['seed']] = row['value']
    first, lines = next(iter(values)), []
    for name, found in values.items():
        missing = sum(row['method'] == name and row['value'] is None for row in rows)
        seeds = f'{len(found)}, {missing} failed or unfinished' if missing else str(len(found))
        mean = f'{statistics.fmean(found.values()):.2f}' if found else '-'
        spread = f' ± {statistics.stdev(found.values()):.2f}' if len(found) > 1 else ''
        gap = difference(found, values[first]) if name != first else None
        interval = '' if gap is None or gap.low is None else f' ({gap.low:+.2f} to {gap.high:+.2f})'
        lines.append([name, seeds, mean + spread, '' if gap is None else f'{gap.mean:+.2f}{interval}'])
    text = render('markdown', ['method', 'seeds', metric, f'to {first}'], lines, right=(2, 3))
    text += ['', 'The last epoch. Differences are paired by seed, with 95 % intervals.']
    return text + [f'{row["method"]} seed {row["seed"]}: {row["state"]}' for row in rows if row['value'] is None]
