"""The demo: RecursiveMix trains on photographs, and backbones of three pretrainings find blood cells in others.

Every number comes from ``tools/train.py``: processes of one thread each, as many side by side as there are cores. Each
of them is a :class:`Stage` with a folder in the work dir; what it found is kept there, so that a second call goes on
where the first one ended.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple, Union

from mmengine.config import Config
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mmrm.report.runs import Logged, merge_sessions
from mmrm.utils import paths
from mmrm.utils.errors import UserError, UserFileError, UserValueError, one_line
from mmrm.utils.files import LockedError, locked, write_text
from mmrm.version import __version__
from projects.demo import small_images
from projects.demo.photographs import COUNTS, FILE, make_photographs
from projects.demo.verdict import measured_noise, small_noise, small_verdict, verdict
from projects.transfer.protocol import shipped_weights
from tools.runs.processes import Start, clock, cores, environment, on_cpu, run_side_by_side

QUICK = dict(train=16, val=4)  # photographs
QUICK_IMAGES = 20  # of CIFAR-10
LOCK = '.demo.lock'
CONFIGS = Path(__file__).resolve().parent / 'configs'


def find_config(name: str) -> Path:
    """A config of the demo."""
    return CONFIGS / f'{name}.py'


def read_config(name: str, **variables: str) -> Config:
    """Read a config of the demo, with environment variables for it, quietly."""
    before = dict(os.environ)
    os.environ.update(variables, MMRM_BACKBONE='random')
    logging.disable(logging.INFO)
    try:
        return Config.fromfile(find_config(name))
    finally:
        logging.disable(logging.NOTSET)
        for variable in ('MMRM_BACKBONE', *variables):
            os.environ.pop(variable)
        os.environ.update(before)


def weights_file(method: str) -> Path:
    """The shipped backbone of a pretraining on CIFAR-10, a classifier in float16."""
    return shipped_weights(method)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One process of the demo.

    Args:
        name: Its folder in the work dir, ``<network>/<column of the table>``.
        config: Name of its config in ``configs/``.
        metric: What the evaluator calls its result.
        scale: Brings the result to percent.
        cost: About how long it takes, relative to the others.
        weights: The pretraining that its backbone comes from.
    """

    name: str
    config: str
    metric: str
    scale: float = 1
    cost: int = 4
    weights: Optional[str] = None


def _downstream(network: str, metric: str, scale: float) -> List[Stage]:
    return [
        Stage(f'{network}/{name}', f'{network}_cells', metric, scale, weights=name)
        for name in ('rm', 'baseline', 'cutmix')
    ]


# In the order in which they start.
STAGES = [
    Stage('pretrain/rm', 'rm_cells', 'accuracy/top1', cost=3),
    *_downstream('atss', 'coco/bbox_mAP', 100),
    *_downstream('pspnet', 'mIoU', 1),
]
ROWS = {
    'pretrain': 'single cells: top-1',
    'atss': 'ATSS: box AP',
    'pspnet': 'PSPNet: mIoU',
    'small': f'CIFAR-10 at {small_images.SHOWN} x {small_images.SHOWN}: top-1',
}
COLUMNS = {'baseline': 'baseline', 'cutmix': 'CutMix', 'rm': 'RM'}
# The files of the package, besides configs, that decide a result.
CODE = {
    'all': ('projects/demo/photographs', 'mmrm/engine/hooks/channels_last', 'mmrm/engine/hooks/random_state'),
    'pretrain': (
        'mmrm/core',
        'mmrm/models/batch_augments',
        'mmrm/models/heads',
        'mmrm/models/data_preprocessor',
        'mmrm/engine/schedulers',
    ),
    'downstream': ('mmrm/weights/strict',),
    'small': ('tools/analysis/classifiers', 'tools/analysis/scale_sensitivity', 'projects/demo/small_images'),
}


# --------------------------------------------------------------------------------------------------------- the demo
def run_demo(
    work_dir: Union[str, Path, None] = None,
    jobs: Optional[int] = None,
    quick: bool = False,
    console: Optional[Console] = None,
    download: bool = True,
) -> dict:
    """Run what is not done yet, then write and print the table, draw the picture and write the report.

    Args:
        work_dir: Holds all that the demo writes but CIFAR-10. Defaults to ``work_dirs/demo`` (``.../demo-quick``).
        jobs: How many processes run at once. Defaults to the number of cores, at most 4.
        quick: A few photographs and one epoch each: every step runs, but nothing is learnt.
        console: Where to print. Defaults to the terminal.
        download: Whether to fetch CIFAR-10, into the data folder, if it is not there; not with ``quick``.

    Returns:
        dict: The results by stage name, as in ``results.json``.
    """
    console = console or Console()
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise UserValueError(f'jobs={jobs!r} must be a whole number of 1 or more, or None for the number of cores.')
    jobs = jobs or min(cores(), 4)
    default = paths.home() / 'work_dirs' / ('demo-quick' if quick else 'demo')
    work_dir = Path(work_dir or default).expanduser().absolute()
    with claimed(work_dir, quick):
        started = time.monotonic()
        console.print(f'The demo works in [bold]{work_dir}[/]', soft_wrap=True)
        counts = QUICK if quick else COUNTS
        plan = Plan(work_dir, counts, quick)
        remake_photographs(work_dir / 'photographs', counts, console)
        small = SmallImages(plan)
        # Only beside a training: a call that shows the table again must not wait for a network that is not there.
        wanted = download and not quick and not small.known() and not all(map(plan.done, STAGES))
        with small_images.fetched(work_dir, wanted) as fetched:
            if wanted and not small_images.is_there():
                console.print(f'Fetching CIFAR-10 (139 MB) into {small_images.default_folder()}', soft_wrap=True)
            ran = run_stages(plan, jobs, console)
            with console.status('Waiting for CIFAR-10'):
                missing = fetched()
        with console.status('Classifying small images'):
            on_small, missing = small.measure(missing)
        results = {**{stage.name: plan.read(stage) for stage in STAGES}, **on_small}
        table, noise = make_table(results), measured_noise()
        said = [
            method_line(results['pretrain/rm']),
            *verdict(results, noise),
            small_verdict(results, small_noise(small_images.SHOWN)) if on_small else small_images.left_out(missing),
        ]
        # The table's sentences tell the noise, which the picture shows as well.
        texts = {
            work_dir / 'table.md': table_as_markdown(table, said, quick),
            work_dir / 'results.json': json.dumps(results, indent=2) + '\n',
        }
        picture = work_dir / 'picture.png'
        if not picture.exists() or any(not kept.is_file() or kept.read_text() != text for kept, text in texts.items()):
            with console.status('Drawing the picture'):
                from projects.demo.picture import draw

                draw(work_dir, results, noise, picture)
        for kept, text in texts.items():
            write_text(kept, text, overwrite=True)  # last: what they hold is drawn
        console.print(table_for_console(table))
        console.print('\n'.join(said), highlight=False, markup=False)
        if quick:
            console.print('A quick run shows that every step works; its numbers mean nothing.')
        console.print(
            f'{len(ran)} of {len(STAGES)} stages ran now, in {clock(time.monotonic() - started)}; '
            f'{len(STAGES) - len(ran)} were done before.'
        )
        console.print(f'Picture: {picture}\nTable:   {work_dir / "table.md"}', soft_wrap=True, highlight=False)
        from mmrm.report.page import try_report

        try_report(work_dir, lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False))
    return results


class SmallImages:
    """What the shipped classifiers say of small images (``small_images.py``), kept in the work dir."""

    def __init__(self, plan: 'Plan'):
        self.work_dir = plan.work_dir
        self.files = {method: weights_file(method) for method in COLUMNS}
        self.images = QUICK_IMAGES if plan.quick else small_images.IMAGES
        hashes = {method: hash_of(file) for method, file in self.files.items()}
        self.stamp = stamp_of([hashes, versions(), code_of(*CODE['small']), self.images, small_images.SIDES])

    def known(self) -> Dict[str, dict]:
        """The results if they were measured before."""
        return small_images.results(self.work_dir, self.files, self.stamp, missing='not asked for')

    def measure(self, missing: str) -> Tuple[Dict[str, dict], str]:
        """The results, measured if need be; without them, why they are missing."""
        try:
            return small_images.results(self.work_dir, self.files, self.stamp, missing, self.images), missing
        except UserError as error:  # broken data; it must not take the rest with it
            return {}, one_line(error)


@contextlib.contextmanager
def claimed(work_dir: Path, quick: bool = False) -> Iterator[None]:
    """Make ``work_dir`` this demo's own for as long as it runs.

    Raises:
        UserFileError: If it holds something else, a full demo where a quick one is asked for or the reverse, cannot be
            written, or another demo works in it.
    """
    marker, held = work_dir / 'demo.json', contextlib.ExitStack()
    if work_dir.exists() and not work_dir.is_dir():
        raise UserFileError(f'--work-dir {work_dir} is a file; a folder is needed.')
    known = _marked(marker)
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


def _marked(marker: Path) -> dict:
    """What the demo wrote into its folder's marker; nothing if the file is not there or not the demo's."""
    try:
        known = json.loads(marker.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


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


# ----------------------------------------------------------------------------------------------------------- stages
class Plan:
    """What the stages are made of, where they are, and what is known of them.

    A stage's ``stage.json`` holds its stamp (of all that its result depends on) and, when it is done, its result.
    """

    def __init__(self, work_dir: Path, counts: Dict[str, int], quick: bool = False):
        self.work_dir, self.quick = work_dir, quick
        self.epochs: Dict[str, int] = {}
        self.batch: Dict[str, int] = {}
        self.stamps: Dict[str, str] = {}
        configs = {name: read_config(name, MMRM_PHOTOGRAPHS='photographs') for name in {s.config for s in STAGES}}
        for stage in STAGES:
            config = configs[stage.config]
            self.epochs[stage.name] = 1 if quick else config.train_cfg.max_epochs
            self.batch[stage.name] = config.train_dataloader.batch_size
            made_of = [
                stage.name,
                hash_of(FILE),
                counts,
                quick,
                config.to_dict(),
                code_of(*CODE['all'], *CODE['downstream' if stage.weights else 'pretrain']),
                versions(),
                stage.weights and hash_of(weights_file(stage.weights)),
            ]
            self.stamps[stage.name] = stamp_of(made_of)

    def folder(self, stage: Stage) -> Path:
        return self.work_dir / stage.name

    def read(self, stage: Stage) -> dict:
        """What is known of a stage: nothing if it was made of something else."""
        try:
            known = json.loads((self.folder(stage) / 'stage.json').read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) and known.get('stamp') == self.stamps[stage.name] else {}

    def write(self, stage: Stage, **known) -> None:
        known = dict(stamp=self.stamps[stage.name], **known)
        write_text(self.folder(stage) / 'stage.json', json.dumps(known) + '\n', overwrite=True)

    def done(self, stage: Stage) -> bool:
        return 'value' in self.read(stage)

    def environment(self, stage: Stage) -> dict:
        """The variables that the configs read; the processes run in the work dir."""
        backbone = str(weights_file(stage.weights)) if stage.weights else 'random'
        return dict(MMRM_PHOTOGRAPHS='photographs', MMRM_BACKBONE=backbone)

    def command(self, stage: Stage) -> List[str]:
        """What a stage runs in the work dir."""
        tool, config = str(paths.shipped() / 'tools' / 'train.py'), str(find_config(stage.config))
        command = [sys.executable, tool, config, '--device', 'cpu', '--work-dir', stage.name, '--resume', 'auto']
        if self.quick:
            command += [
                '--cfg-options',
                'train_cfg.max_epochs=1',
                'train_cfg.val_interval=1',
                'default_hooks.checkpoint.interval=1',
                'default_hooks.logger.interval=1',
            ]
        return command

    def iterations(self, stage: Stage) -> int:
        """How many there are in all epochs."""
        data = self.work_dir / 'photographs'
        images = (
            (data / 'cells/train').glob('*/*') if stage.name == 'pretrain/rm' else (data / 'ade/images/train').iterdir()
        )
        return self.epochs[stage.name] * max(sum(1 for _ in images) // self.batch[stage.name], 1)

    def logged(self, stage: Stage) -> Logged:
        """What mmengine logged so far."""
        return merge_sessions(self.folder(stage))

    def value(self, stage: Stage) -> Optional[float]:
        """The result of the last epoch in percent; None if there is none."""
        found = self.logged(stage).validations.get(self.epochs[stage.name], {})
        return found[stage.metric] * stage.scale if stage.metric in found else None


class Process:
    """A stage that runs; its output goes to ``log.txt``."""

    def __init__(self, plan: Plan, stage: Stage):
        self.plan, self.stage = plan, stage
        folder = plan.folder(stage)
        self.resumed = bool(plan.read(stage)) and (folder / 'last_checkpoint').exists()
        if folder.exists() and not plan.read(stage):
            shutil.rmtree(folder)  # of an older version or another config; the work dir is the demo's own
        folder.mkdir(parents=True, exist_ok=True)
        plan.write(stage)
        self.log = folder / 'log.txt'
        self.log.write_text('')
        self.started = time.monotonic()

    def run(self, start: Start = subprocess.Popen) -> None:
        """Run the command to its end.

        Raises:
            UserError: If it failed.
        """
        # One thread each makes a run the same on every number of cores.
        env = environment(**on_cpu(threads=1), **self.plan.environment(self.stage))
        command = self.plan.command(self.stage)
        with open(self.log, 'ab') as log:
            process = start(command, cwd=self.plan.work_dir, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        code = process.wait()
        if code:
            last = ''.join(self.log.read_text(errors='replace').splitlines(keepends=True)[-12:])
            raise UserError(f'{self.stage.name} ended with exit code {code}. The end of {self.log}:\n{last}')

    def progress(self) -> Tuple[float, str]:
        """How much is done, from 0 to 1, and what to say about it."""
        iterations = self.plan.logged(self.stage).iterations
        if not iterations:
            return 0, 'starting'
        last = max(iterations)
        now = iterations[last]
        said = f'epoch {now["epoch"]}/{self.plan.epochs[self.stage.name]}, loss {now["loss"]:.2f}'
        if 'rm_lambda' in now:
            said += f', lambda {now["rm_lambda"]:.2f}, consistency {now["loss_consistency"]:.3f}'
        return min(last / self.plan.iterations(self.stage), 1), said


def finish(plan: Plan, process: Process) -> bool:
    """Write down what a stage found; False if it must run again."""
    stage = process.stage
    value = plan.value(stage)
    if value is None and process.resumed:
        # It was killed after its last checkpoint and before its last validation, which a resumed run does not repeat.
        shutil.rmtree(plan.folder(stage))
        return False
    if value is None:
        raise UserError(f'{stage.name} gave no {stage.metric}; see {process.log}')
    method = [
        dict(iteration=number, lam=each['rm_lambda'], consistency=each['loss_consistency'])
        for number, each in plan.logged(stage).iterations.items()
        if 'rm_lambda' in each
    ]
    plan.write(
        stage,
        value=value,
        seconds=round(time.monotonic() - process.started, 1),
        resumed=process.resumed,
        **(dict(method=method) if method else {}),
    )
    return True


def run_stages(plan: Plan, jobs: int, console: Console) -> List[str]:
    """Run the stages that are not done, ``jobs`` at once; returns their names."""
    waiting = [stage for stage in STAGES if not plan.done(stage)]
    running: Dict[str, Process] = {}
    ended: List[Process] = []

    def work(stage: Stage, slot: dict, start: Start) -> bool:
        while True:
            process = running[stage.name] = Process(plan, stage)
            process.run(start)
            if finish(plan, process):
                break
        ended.append(running.pop(stage.name))
        return True

    def show() -> None:
        over = [ended.pop(0) for _ in range(len(ended))]
        display.update([*running.values(), *over])
        for process in over:
            display.done(process)

    def leave(number, frame):
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with Display(console, plan, [stage.name for stage in waiting]) as display:
            run_side_by_side(waiting, [{}] * jobs, work, tick=show, every=0.5)
    finally:
        signal.signal(signal.SIGTERM, before)
    return [stage.name for stage in waiting]


class Display:
    """Bars on a terminal; elsewhere a line now and then."""

    def __init__(self, console: Console, plan: Plan, names: List[str], every: float = 20):
        self.console, self.plan, self.every = console, plan, every
        self.cost = {stage.name: stage.cost for stage in STAGES if stage.name in names}
        self.finished: Dict[str, int] = {}
        self.bars = Progress(
            TextColumn('{task.description:<18}'),
            BarColumn(12),
            TextColumn('{task.percentage:>3.0f} %'),
            TimeElapsedColumn(),
            TextColumn('left'),
            TimeRemainingColumn(),
            TextColumn('{task.fields[said]}'),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=120,
        )
        self.all = self.bars.add_task('all', total=sum(self.cost.values()), said='')
        self.tasks: dict = {}
        self.told = time.monotonic()

    def __enter__(self) -> 'Display':
        self.bars.start()
        return self

    def __exit__(self, *_) -> None:
        for task in self.tasks.values():
            self.bars.remove_task(task)
        self.bars.remove_task(self.all)
        self.bars.stop()

    def update(self, running: List[Process]) -> None:
        """Show how far the running stages are."""
        lines, part = [], 0.0
        for process in running:
            name = process.stage.name
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=1, said='')
                self.say(f'{name}: {"resumed" if process.resumed else "started"}', terminal=False)
            done, said = process.progress()
            part += done * self.cost[name]
            self.bars.update(self.tasks[name], completed=done, said=said)
            lines.append(f'{name} {100 * done:.0f} % ({said})')
        part += sum(self.finished.values())
        self.bars.update(self.all, completed=part, said=f'{len(self.finished)} of {len(self.cost)} stages done')
        if time.monotonic() - self.told > self.every:
            self.say(f'{100 * part / sum(self.cost.values()):.0f} %: ' + '; '.join(lines), terminal=False)

    def done(self, process: Process) -> None:
        """Show what a stage found."""
        stage = process.stage
        known = self.plan.read(stage)
        self.finished[stage.name] = stage.cost
        if stage.name in self.tasks:
            self.bars.remove_task(self.tasks.pop(stage.name))
        self.say(f'{stage.name}: {stage.metric.split("/")[-1]} {known["value"]:.1f} after {clock(known["seconds"])}')

    def say(self, line: str, terminal: bool = True) -> None:
        """Print a line; with ``terminal=False`` only where there are no bars."""
        if terminal or not self.console.is_terminal:
            self.told = time.monotonic()
            self.console.print(line, soft_wrap=True, highlight=False)


# ---------------------------------------------------------------------------------------------------------- results
def make_table(results: Dict[str, dict]) -> List[List[str]]:
    """The table as text: a header, a row of results for each network, and their times."""

    def cell(name: str) -> str:
        known = results.get(name, {})
        return f'{known["value"]:.1f}' if 'value' in known else ''

    def seconds(name: str) -> str:
        known = results.get(name, {})
        return f'{known["seconds"]:.0f} s' + (' *' if known.get('resumed') else '') if 'seconds' in known else ''

    rows = [['', *COLUMNS.values()]]
    known = [key for key in ROWS if any(f'{key}/{column}' in results for column in COLUMNS)]
    for key in known:
        rows.append([ROWS[key], *(cell(f'{key}/{column}') for column in COLUMNS)])
    for key in known:
        times = [seconds(f'{key}/{column}') for column in COLUMNS]
        if any(times):
            rows.append([f'{ROWS[key].split(":")[0]}: time', *times])
    return rows


def table_for_console(rows: List[List[str]]) -> Table:
    """The table for a terminal."""
    table = Table(*rows[0], title='Held-out images, in percent, by where the frozen backbone comes from')
    for row, after in zip(rows[1:], [*rows[2:], ['']]):
        table.add_row(*row, end_section=after[0].endswith('time') and not row[0].endswith('time'))
    return table


def table_as_markdown(rows: List[List[str]], said: List[str], quick: bool = False) -> str:
    """The table for a page, and what is said about it."""
    lines = ['| ' + ' | '.join(row) + ' |' for row in rows]
    lines.insert(1, '|---' + '|---:' * (len(rows[0]) - 1) + '|')
    lines += [
        '',
        'Held-out images, in percent, by where the frozen backbone comes from; the single cells are learnt from '
        'scratch; CIFAR-10 is classified by the pretrained networks themselves. A star marks a time that leaves '
        'out what ran before an interruption.',
        '',
        *(f'- {line}' for line in said),
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


# ---------------------------------------------------------------------------------------------------------- helpers
def hash_of(file: Path) -> str:
    """The SHA-256 of a file of the package.

    Raises:
        UserFileError: If it is not there.
    """
    if not file.is_file():
        raise UserFileError(
            f'{file} is missing. It is a part of mmrm and of its checkout: install or check it out again.'
        )
    return hashlib.sha256(file.read_bytes()).hexdigest()


def code_of(*names: str) -> List[str]:
    """The source of modules of the package."""
    return [(paths.PACKAGE.parent / f'{name}.py').read_text() for name in names]


def stamp_of(made_of: list) -> str:
    """A short name of all that a result is made of."""
    return hashlib.sha256(json.dumps(made_of, default=str).encode()).hexdigest()[:16]


def versions() -> Dict[str, str]:
    """The versions that a result depends on."""
    import mmcv
    import mmdet
    import mmengine
    import mmpretrain
    import mmseg
    import torch

    return {module.__name__: module.__version__ for module in (mmcv, mmdet, mmengine, mmpretrain, mmseg, torch)}
