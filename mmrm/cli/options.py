"""Command lines: the parser and the options that several commands share.

Nothing here imports torch or mmengine, so that ``--help`` and a mistyped option do not wait for them.
"""

import argparse
import difflib
import functools
import logging
import os

from ..utils.processes import RANK_VARIABLES, follow_parent

DEVICES = ('cuda', 'cpu', 'mps')
METHOD = 'none'  # what mmrm init writes unless it is asked for another: docs/when_rm_helps.md
OMEGA = 0.1  # of rm: the paper's on CIFAR; on ImageNet it has 0.5
# Batch augments that init writes and compare trains, with the paper's values.
METHODS = dict(
    none=None,
    cutmix=dict(type='CutMix', alpha=1.0),
    mixup=dict(type='Mixup', alpha=1.0),
    rm=dict(type='RecursiveMix', alpha=0.5),
)


class Parser(argparse.ArgumentParser):
    """argparse with one line instead of the whole usage for a mistake."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_argument('--trust', action='store_true', help='also read files that execute code (SECURITY.md)')

    def add_cfg_options(self, help: str, option: str = '--cfg-options') -> None:
        """``--cfg-options KEY=VALUE ...`` as ``{'a.b': value}``, ``{}`` without any."""
        self.add_argument(option, nargs='+', action=KeyValues, default={}, metavar='KEY=VALUE', help=help)

    def add_run_options(self) -> None:
        """Add what train and test take."""
        self.add_argument('--gpus', type=positive, help='start one process per GPU on this node (default: run here)')
        device = "default: the GPU (on a Mac, torch's mps), an error without one; MMRM_DEVICE=cpu is --device cpu"
        self.add_argument('--device', choices=DEVICES, help=device)
        self.add_cfg_options('settings that replace those of the config, e.g. train_dataloader.batch_size=32')
        launchers, which = ('none', 'pytorch', 'slurm'), 'what started this process; not needed with --gpus'
        self.add_argument('--launcher', choices=launchers, default='none', help=which)
        self.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)
        self.add_argument('--traceback', action='store_true', help='print the traceback of input errors too')

    def parse_args(self, args=None, namespace=None):
        """Parse, then have mmengine refuse what would execute code: every command calls this before its work."""
        parsed = super().parse_args(args, namespace)
        from .. import compat
        from ..utils.trust import trust

        trust(parsed.trust)
        compat.police()
        return parsed

    def error(self, message: str):
        if message.startswith('unrecognized arguments:'):
            given = message.split()[2].split('=')[0]
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(given, known, n=1)
            if near:
                message += f'; did you mean {near[0]}?'
        self.exit(2, f'error: {message} (--help lists the options)\n')


class KeyValues(argparse.Action):
    """``key=value`` pairs, with values as mmengine's ``DictAction`` reads them."""

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values:
            if '=' not in value or value.startswith('='):
                raise argparse.ArgumentError(self, f'{value!r} is not of the form key=value')
        from mmengine.config import DictAction  # takes a second, and the command needs mmengine anyway

        try:
            DictAction(self.option_strings, self.dest)(parser, namespace, values, option_string)
        except Exception as error:
            raise argparse.ArgumentError(self, f'{" ".join(values)}: {error}') from error
        for key, _, value in (each.partition('=') for each in values):
            if ' ' in value and not set(value) & set('[](),'):  # a path; mmengine would take the blanks out
                getattr(namespace, self.dest)[key] = value


def natural(text: str, low: int = 0) -> int:
    """An argument that is a whole number of at least ``low``."""
    if not text.isdecimal() or int(text) < low:
        raise argparse.ArgumentTypeError(f'{text!r} is not a whole number of {low} or more')
    return int(text)


positive = functools.partial(natural, low=1)


def start_process(args: argparse.Namespace) -> None:
    """What each process of a training or a test does first."""
    if args.traceback:
        os.environ['MMRM_TRACEBACK'] = '1'
    variable = RANK_VARIABLES.get(args.launcher, {}).get('LOCAL_RANK', '')
    os.environ['LOCAL_RANK'] = os.environ.get(variable, str(args.local_rank))
    # A full disk must not print a traceback for every line of the log; the checkpoint's error is the one that counts.
    logging.raiseExceptions = False
    follow_parent()
