"""The demo: RecursiveMix trains on photographs, and backbones of three pretrainings find blood cells in others.

Every number comes from ``tools/train.py``: processes of one thread each, as many side by side as there are cores. Each
of them is a :class:`Stage` with a folder in the work dir, so that a second call resumes where the first one ended.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple, Union

from mmengine.config import Config
from rich.console import Console
from rich.table import Table

from mmrm.cli import jobs
from mmrm.report.page import try_report
from mmrm.report.runs import merge_sessions, read_run
from mmrm.utils import paths, settings
from mmrm.utils.errors import UserError, UserFileError, one_line
from mmrm.utils.files import LockedError, locked, write_text
from mmrm.utils.processes import clock, cores
from mmrm.version import __version__
from projects.demo import small_images
from projects.demo.photographs import COUNTS, FILE, make_photographs
from projects.demo.verdict import measured_noise, small_noise, small_verdict, verdict
from projects.transfer.protocol import shipped_weights

CONFIGS = Path(__file__).resolve().parent / 'configs'
QUICK = dict(train=16, val=4)  # photographs
QUICK_IMAGES = 20  # of CIFAR-10
QUICK_OPTIONS = {
    'train_cfg.max_epochs': 1,
    'train_cfg.val_interval': 1,
    'default_hooks.checkpoint.interval': 1,
    'default_hooks.logger.interval': 1,
}
LOCK = '.demo.lock'
ROWS = {
    'pretrain': 'single cells: top-1',
    'atss': 'ATSS: box AP',
    'pspnet': 'PSPNet: mIoU',
    'small': f'CIFAR-10 at {small_images.SHOWN} x {small_images.SHOWN}: top-1',
}
COLUMNS = {'baseline': 'baseline', 'cutmix': 'CutMix', 'rm': 'RM'}
# Row of the table -> the config in configs/, what its evaluator calls the result, what brings that to percent, and the
# columns: 'pretrain' starts from nothing, the others from a shipped backbone. In the order in which they start.
NETWORKS = {
    'pretrain': ('rm_cells', 'accuracy/top1', 1, ('rm',)),
    'atss': ('atss_cells', 'coco/bbox_mAP', 100, ('rm', 'baseline', 'cutmix')),
    'pspnet': ('pspnet_cells', 'mIoU', 1, ('rm', 'baseline', 'cutmix')),
}


@dataclasses.dataclass
class Stage(jobs.Job):
    """One training of the demo: a job with the name ``<row>/<column>`` and its metric."""

    metric: str = ''
    scale: float = 1

    def validations(self) -> Dict[int, float]:
        """The result in percent by epoch."""
        logged = merge_sessions(self.work_dir).validations
        return {step: found[self.metric] * self.scale for step, found in logged.items() if self.metric in found}

    def result(self) -> dict:
        """What a finished stage found: ``value`` in percent, ``seconds``, and of RM its λ and consistency loss."""
        found = read_run(self.work_dir)
        method = [
            dict(iteration=number, lam=each['rm_lambda'], consistency=each['loss_consistency'])
            for number, each in found.iterations.items()
            if 'rm_lambda' in each
        ]
        seconds = round(3600 * found.training.get('hours', 0), 1)
        return dict(value=self.validations()[self.epochs], seconds=seconds, **(dict(method=method) if method else {}))


def read_config(name: str) -> Config:
    """Read a config of the demo."""
    return Config.fromfile(CONFIGS / f'{name}.py')


def plan(work_dir: Path, quick: bool = False) -> List[Stage]:
    """The stages, none of them started.

    Raises:
        UserFileError: If a shipped backbone is missing.
    """
    stages = []
    for row, (name, metric, scale, columns) in NETWORKS.items():
        for column in columns:
            options = dict(QUICK_OPTIONS) if quick else {}
            made_of = [hash_of(FILE), __version__, versions()]
            if row != 'pretrain':
                file = shipped_weights(column)
                options.update({'model.init_cfg.type': 'StrictPretrained', 'model.init_cfg.checkpoint': str(file)})
                made_of.append(hash_of(file))
            config = jobs.merged_config(CONFIGS / f'{name}.py', options)
            stages.append(
                Stage(
                    f'{row}/{column}',
                    CONFIGS / f'{name}.py',
                    options,
                    seed=0,
                    work_dir=work_dir / row / column,
                    epochs=config.train_cfg.max_epochs,
                    arguments=['--device', 'cpu'],
                    fingerprint=settings.fingerprint(config, made_of),
                    metric=metric,
                    scale=scale,
                )
            )
    return stages


def remove_stale(stages: List[Stage]) -> None:
    """Remove the folders of stages that were made of something else; the work dir is the demo's own."""
    for stage in stages:
        try:
            jobs.check_same(stage)
        except UserFileError:
            shutil.rmtree(stage.work_dir)


# --------------------------------------------------------------------------------------------------------- the demo
def run_demo(
    work_dir: Union[str, Path, None] = None,
    jobs_at_once: Optional[int] = None,
    quick: bool = False,
    console: Optional[Console] = None,
    download: bool = True,
) -> dict:
    """Run what is not done yet, then write and print the table, draw the picture and write the report.

    Args:
        work_dir: Holds all that the demo writes but CIFAR-10. Defaults to ``work_dirs/demo`` (``.../demo-quick``).
        jobs_at_once: How many processes run at once. Defaults to the number of cores, at most 4.
        quick: A few photographs and one epoch each: every step runs, but nothing is learnt.
        console: Where to print. Defaults to the terminal.
        download: Whether to fetch CIFAR-10, into the data folder, if it is not there; not with ``quick``.

    Returns:
        dict: The results by stage name, as in ``results.json``.
    """
    console = console or Console(soft_wrap=True, highlight=False)
    default = paths.home() / 'work_dirs' / ('demo-quick' if quick else 'demo')
    work_dir = Path(work_dir or default).expanduser().absolute()
    os.environ.update(
        MMRM_PHOTOGRAPHS=str(work_dir / 'photographs'), MMRM_BACKBONE='random', MMRM_PARENT=str(os.getpid())
    )
    with claimed(work_dir, quick):
        started = time.monotonic()
        console.print(f'The demo works in [bold]{work_dir}[/]')
        remake_photographs(work_dir / 'photographs', QUICK if quick else COUNTS, console)
        logging.disable(logging.INFO)  # mmengine names every variable that a config reads
        stages = plan(work_dir, quick)
        logging.disable(logging.NOTSET)
        remove_stale(stages)
        waiting = [stage for stage in stages if not stage.finished()]
        small = SmallImages(work_dir, quick)
        # Only beside a training: a call that shows the table again must not wait for a network that is not there.
        wanted = download and not quick and bool(waiting) and not small.known()
        with small_images.fetched(work_dir, wanted) as fetched:
            if wanted and not small_images.is_there():
                console.print(f'Fetching CIFAR-10 (139 MB) into {small_images.default_folder()}')
            train(waiting, jobs_at_once or min(cores(), 4), console)
            with console.status('Waiting for CIFAR-10'):
                missing = fetched()
        with console.status('Classifying small images'):
            on_small, missing = small.measure(missing)
        results = {**{stage.name: stage.result() for stage in stages}, **on_small}
        show(work_dir, results, missing, quick, console)
        console.print(
            f'{len(waiting)} of {len(stages)} stages ran now, in {clock(time.monotonic() - started)}; '
            f'{len(stages) - len(waiting)} were done before.'
        )
        console.print(f'Picture: {work_dir / "picture.png"}\nTable:   {work_dir / "table.md"}')
        try_report(work_dir, plain_lines(console))
    return results


def plain_lines(console: Console) -> Callable[[str], None]:
    """Prints lines as they are."""
    return lambda line: console.print(line, markup=False, highlight=False)


def train(stages: List[Stage], number: int, console: Console) -> None:
    """Run stages, ``number`` at once.

    Raises:
        UserError: If not all of them are finished then.
    """

    def finished(stage: Stage) -> str:
        result = stage.result()
        lines = [f'at {result["value"]:.1f} ({stage.metric})', *([method_line(result)] if 'method' in result else [])]
        return '. '.join(lines)

    states = jobs.run_all(stages, number, True, log=plain_lines(console), finished=finished, every=20)
    if set(states.values()) - {'finished'}:
        raise UserError('the demo is not finished; the lines above say why. The same command continues.')


class SmallImages:
    """The shipped classifiers on small images (``small_images.py``), measured once and kept in the work dir."""

    def __init__(self, work_dir: Path, quick: bool):
        self.work_dir = work_dir
        self.files = {method: shipped_weights(method) for method in COLUMNS}
        self.images = QUICK_IMAGES if quick else small_images.IMAGES
        made_of = [*map(hash_of, self.files.values()), __version__, versions(), self.images, small_images.SIDES]
        self.stamp = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]

    def known(self) -> Dict[str, dict]:
        """The results if they were measured before."""
        return small_images.results(self.work_dir, self.files, self.stamp, missing='not asked for')

    def measure(self, missing: str) -> Tuple[Dict[str, dict], str]:
        """The results, measured if need be; without them, why they are missing."""
        try:
            return small_images.results(self.work_dir, self.files, self.stamp, missing, self.images), missing
        except UserError as error:  # broken data must not cost the other results
            return {}, one_line(error)


@contextlib.contextmanager
def claimed(work_dir: Path, quick: bool = False) -> Iterator[None]:
    """Make ``work_dir`` this demo's own for as long as it runs.

    Raises:
        UserFileError: If it holds something else, a full demo where a quick one is asked for or the reverse, cannot be
            written, or another demo works in it.
    """
    marker, held = work_dir / 'demo.json', contextlib.ExitStack()
    try:
        known = json.loads(marker.read_text())
        known = known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        known = {}
    if work_dir.is_dir() and any(path.name != LOCK for path in work_dir.iterdir()) and 'mmrm' not in known:
        raise UserFileError(
            f"--work-dir {work_dir} holds files that are not the demo's. They are left as they are; "
            'choose another folder.'
        )
    if known.get('quick', quick) != quick:
        kinds = ('full', 'quick')
        raise UserFileError(
            f'--work-dir {work_dir} holds a {kinds[not quick]} demo, which a {kinds[quick]} one would replace. It is '
            'left as it is; choose another folder.'
        )
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(work_dir / LOCK))
    except LockedError as error:
        raise UserFileError(
            f'another demo is running in {work_dir}: {error.holder}. Wait for it, or choose another --work-dir.'
        ) from None
    except OSError as error:
        raise UserFileError(f'--work-dir {work_dir} cannot be written: {error.strerror}.') from error
    with held:
        if not marker.exists():
            write_text(marker, json.dumps(dict(mmrm=__version__, quick=quick)))
        yield


def remake_photographs(root: Path, counts: Dict[str, int], console: Console) -> None:
    """Write the photographs, or replace those of an older version."""
    try:
        make_photographs(root, **counts)
    except UserFileError:
        if not (root / 'photographs.json').is_file():
            raise
        shutil.rmtree(root)
        make_photographs(root, **counts)
    console.print(f'Photographs of blood cells (BCCD): {counts["train"]} to train on, {counts["val"]} held out')


# ---------------------------------------------------------------------------------------------------------- results
def show(work_dir: Path, results: Dict[str, dict], missing: str, quick: bool, console: Console) -> None:
    """Write the table and the results, draw the picture if they are new, and print the table."""
    table, noise = make_table(results), measured_noise()
    small = any(name.startswith('small/') for name in results)
    lines = [
        method_line(results['pretrain/rm']),
        *verdict(results, noise),
        small_verdict(results, small_noise(small_images.SHOWN)) if small else small_images.left_out(missing),
    ]
    texts = {
        work_dir / 'table.md': table_as_markdown(table, lines, quick),
        work_dir / 'results.json': json.dumps(results, indent=2) + '\n',
    }
    picture = work_dir / 'picture.png'
    if not picture.exists() or any(not file.is_file() or file.read_text() != text for file, text in texts.items()):
        with console.status('Drawing the picture'):
            from projects.demo.picture import draw

            draw(work_dir, results, noise, picture)
    for file, text in texts.items():
        write_text(file, text, overwrite=True)  # last: what they hold is drawn
    shown = Table(*table[0], title='Held-out images, in percent, by where the frozen backbone comes from')
    for row in table[1:]:
        shown.add_row(*row)
    console.print(shown)
    console.print('\n'.join(lines), markup=False)
    if quick:
        console.print('A quick run shows that every step works; its numbers mean nothing.')


def make_table(results: Dict[str, dict]) -> List[List[str]]:
    """The table as text: a header, a row of results for each network, and their times."""

    def cells(row: str, key: str, form: str) -> List[str]:
        found = [results.get(f'{row}/{column}', {}).get(key) for column in COLUMNS]
        return ['' if value is None else form.format(value) for value in found]

    known = [row for row in ROWS if any(cells(row, 'value', '{}'))]
    rows = [['', *COLUMNS.values()]]
    rows += [[ROWS[row], *cells(row, 'value', '{:.1f}')] for row in known]
    times = [[f'{ROWS[row].split(":")[0]}: time', *cells(row, 'seconds', '{:.0f} s')] for row in known]
    return rows + [row for row in times if any(row[1:])]


def table_as_markdown(rows: List[List[str]], remarks: List[str], quick: bool = False) -> str:
    """The table for a page, and the remarks below it."""
    lines = ['| ' + ' | '.join(row) + ' |' for row in rows]
    lines.insert(1, '|---' + '|---:' * (len(rows[0]) - 1) + '|')
    lines += [
        '',
        'Held-out images, in percent, by where the frozen backbone comes from; the single cells are learnt from '
        'scratch; CIFAR-10 is classified by the pretrained networks themselves.',
        '',
        *(f'- {line}' for line in remarks),
    ]
    if quick:
        lines += ['', 'A quick run: one epoch each, the numbers mean nothing.']
    return '\n'.join(lines) + '\n'


def method_line(result: dict) -> str:
    """RecursiveMix at work, in a sentence."""
    steps = result['method']
    share = sum(step['lam'] for step in steps) / len(steps)
    first, last = steps[0]['consistency'], steps[-1]['consistency']
    return (
        f'RM on single cells, from scratch: the image before fills {100 * share:.0f} % of each image on average; '
        f'the consistency loss goes from {first:.3f} to {last:.3f}.'
    )


def hash_of(file: Path) -> str:
    """The SHA-256 of a file of the project.

    Raises:
        UserFileError: If it is not there.
    """
    if not file.is_file():
        raise UserFileError(f'{file} is missing. It is a part of the checkout: check it out again.')
    return hashlib.sha256(file.read_bytes()).hexdigest()


def versions() -> Dict[str, str]:
    """The versions that a result depends on."""
    import mmcv
    import mmdet
    import mmengine
    import mmpretrain
    import mmseg
    import torch

    return {module.__name__: module.__version__ for module in (mmcv, mmdet, mmengine, mmpretrain, mmseg, torch)}
