"""Do detectors and segmentors profit from RM's backbones? The paper's question, sized for two cores.

The backbones are those of :mod:`projects.cifar10.run`. Each is fine-tuned, frozen and not, on four tasks: scenes
composed of CIFAR-10 images (detection, segmentation), photographs of blood cells (BCCD, detection) and of streets
(CamVid, segmentation). A pretraining seed is one independent result; its fine-tuning has the same seed.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mmrm.cli import jobs
from mmrm.report.runs import read_run
from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.utils.paths import PACKAGE, find
from mmrm.utils.settings import fingerprint
from mmrm.version import __version__
from mmrm.weights.export import export_backbone
from mmrm.weights.provenance import read_weights, tensor_hash
from projects.cifar10 import run as cifar10
from projects.transfer import camvid, scenes
from tools.runs import results
from tools.runs.options import one_of

WORK_DIR = 'work_dirs/transfer'  # of the project
KEY = ('task', 'mode', 'method', 'seed')
RESULTS = Path(__file__).with_name('transfer.jsonl')  # those of README.md
CONFIGS = Path(__file__).resolve().parent / 'configs'


class Task(NamedTuple):
    """What is measured downstream.

    Args:
        config: Its file in ``configs/``.
        metric: What the evaluator calls its result.
        scale: Brings the metrics to percent.
        title: For tables.
        needs: Folders that must be in the data folder.
        hint: How to get it.
        tuned: Settings for a backbone that is tuned, chosen on held-out training data.
    """

    config: str
    metric: str
    scale: float
    title: str
    needs: Tuple[str, ...]
    hint: str
    tuned: dict = {}


# A tenth of the heads' rate: the whole of it would undo the pretraining.
_SLOW_BACKBONE = {'optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult': 0.1}
_SCENES = 'python tools/get_cifar10.py downloads CIFAR-10 for the scenes'
_BCCD = 'the folder BCCD of https://github.com/Shenggan/BCCD_Dataset'
_CAMVID = f'git clone {camvid.ADDRESS} {{data}}/{camvid.SOURCE.parts[0]} downloads its files'
TASKS = {
    'atss-scenes': Task('atss_scenes', 'coco/bbox_mAP', 100, 'ATSS, composed scenes: box AP', ('cifar10',), _SCENES),
    'pspnet-scenes': Task(
        'pspnet_scenes', 'mIoU', 1, 'PSPNet, composed scenes: mIoU', ('cifar10',), _SCENES, _SLOW_BACKBONE
    ),
    'atss-bccd': Task(
        'atss_bccd',
        'coco/bbox_mAP',
        100,
        'ATSS, blood cells: box AP',
        ('bccd/ImageSets/Main', 'bccd/Annotations', 'bccd/JPEGImages'),
        _BCCD,
    ),
    'pspnet-camvid': Task(
        'pspnet_camvid', 'mIoU', 1, 'PSPNet, streets: mIoU', tuple(f'camvid/{part}' for part in camvid.PARTS), _CAMVID
    ),
}
MODES = {'frozen': {'model.backbone.frozen_stages': 4}, 'tuned': {}}
METHODS = ('baseline', 'cutmix', 'rm', 'mixup')
SIDES = (12, 16, 20, 24, 28, 32)  # of the whole images that the classifiers are shown, in pixels
# What differs from the CIFAR-10 experiment, whose configs these are: half as long, and the same on every processor.
PRETRAINING = {'train_cfg.max_epochs': 100, 'train_cfg.val_interval': 50, **cifar10.FLOAT32}


@dataclass
class Transfer(jobs.Job):
    """One fine-tuning.

    Args:
        task (str): One of :data:`TASKS`.
        mode (str): One of :data:`MODES`.
        pretraining (Trial): The run that its backbone comes from.
        backbone (Path): The file of its backbone.
        **kwargs: As for :class:`mmrm.cli.jobs.Job`.
    """

    task: str = ''
    mode: str = ''
    pretraining: Optional[cifar10.Trial] = None
    backbone: Path = Path()

    @property
    def method(self) -> str:
        """How its backbone was pretrained, one of :data:`METHODS`."""
        assert self.pretraining is not None
        return self.pretraining.method

    def protocol(self) -> dict:
        """Its settings and, where they are not the usual ones, those of its pretraining, as they stand in a result."""
        assert self.pretraining is not None
        own = {key: value for key, value in self.options.items() if not key.startswith('model.init_cfg')}
        before = {key: value for key, value in self.pretraining.settings.items() if PRETRAINING.get(key) != value}
        return dict(settings=own, **(dict(pretraining=before) if before else {}))

    def describe(self) -> dict:
        """As for any job, but not where its backbone lies: the fingerprint stands for that."""
        known = {**super().describe(), 'settings': self.protocol()['settings']}
        del known['options']
        return json.loads(json.dumps(known, default=str))


def pretrainings(
    methods: Sequence[str], seeds: Optional[Sequence[int]], root: Path, device: str, options: Optional[dict] = None
) -> List[cifar10.Trial]:
    """The runs that the backbones come from, none of them started; all methods of a seed before the next seed.

    ``options`` are settings that replace those of :data:`PRETRAINING` or are added to them: another experiment.
    """
    return cifar10.plan(methods, seeds, root / 'pretraining', {**PRETRAINING, **(options or {})}, device)


def check_data(tasks: Sequence[str], data: Union[str, Path] = 'data') -> None:
    """Raise if something is missing that a task needs, before anything is trained. Nothing is written.

    Raises:
        UserFileError: It names what is missing and how to get it.
    """
    root, missing = find(Path(data)), {}
    for name in tasks:
        task = TASKS[name]
        if name == 'pspnet-camvid' and camvid.to_be_made(root):
            continue  # it is made later, by prepare_data
        lacking = [root / folder for folder in task.needs if not (root / folder).is_dir()]
        if lacking:
            missing[task.needs[0].partition('/')[0]] = f'{lacking[0]} ({task.hint.format(data=data)})'
    if missing:
        raise UserFileError(f'data is missing: {"; ".join(missing.values())}. --tasks leaves a task out.')


def prepare_data(tasks: Sequence[str], data: Union[str, Path] = 'data') -> None:
    """Write what the tasks read and is made of other data: composed scenes, small CamVid. What is there stays."""
    root = find(Path(data))
    if any(_shows_cifar10(name) for name in tasks):
        scenes.make_scenes(root / 'scenes', root / 'cifar10')
    if 'pspnet-camvid' in tasks and camvid.to_be_made(root):
        camvid.make_camvid(root / 'camvid', root / camvid.SOURCE)


def _shows_cifar10(task: str) -> bool:
    """Whether a task is on composed scenes."""
    return 'cifar10' in TASKS[task].needs


def check_apart(trials: Sequence[cifar10.Trial], tasks: Sequence[str]) -> None:
    """Raise if a pretraining has images that the scenes of a task show as well."""
    first = min(part[0] for split, part in scenes.PARTS.values() if split == 'train')
    shown = [task for task in tasks if _shows_cifar10(task)]
    for trial in trials if shown else ():
        start, end = trial.options[cifar10.PART]
        if end > first:
            raise UserValueError(
                f'seed {trial.seed}: its pretraining has images {start} to {end - 1} of each class, and the composed '
                f'scenes of {shown[0]} show those from {first} on. Allowed with that task: seeds 0 to '
                f'{first // (end - start) - 1}; the tasks on photographs take any.'
            )


def shipped_weights(method: str) -> Path:
    """The classifier that comes with the package: of seed 0, rounded to float16; there is none of Mixup."""
    return PACKAGE / 'weights' / 'zoo' / f'resnet18-w16_cifar10-250_{method}.safetensors'


def is_shipped(trial: cifar10.Trial) -> bool:
    """Whether the classifier of a pretraining comes with the package."""
    return trial.seed == 0 and shipped_weights(trial.method).is_file()


def backbone_file(trial: cifar10.Trial, shipped: bool = False) -> Path:
    """Where the backbone of a pretraining is kept, by its settings; ``shipped`` for the one of the package."""
    root = trial.work_dir.parents[2]
    return root / 'backbones' / f'{trial.method}-seed{trial.seed}-{"shipped" if shipped else trial.fingerprint}.pth'


def alone_file(trial: cifar10.Trial) -> Path:
    """Where a pretraining's accuracy on whole images of :data:`SIDES` is kept."""
    return backbone_file(trial).with_suffix('.json')


def backbone_of(trial: cifar10.Trial, shipped: bool = False) -> Path:
    """The backbone of a finished pretraining, or the one that comes with the package, exported once."""
    file = backbone_file(trial, shipped)
    if not file.is_file():
        if not shipped and not trial.finished():
            raise UserFileError(f'the pretraining {trial.name} in {trial.work_dir} is not finished.')
        if not shipped and trial.epochs not in trial.checkpoints():
            raise UserFileError(
                f'the pretraining {trial.name} is finished, but its last checkpoint is gone: '
                f'{trial.work_dir}/epoch_{trial.epochs}.pth. Remove that folder to pretrain again.'
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        export_backbone(shipped_weights(trial.method) if shipped else trial.checkpoints()[trial.epochs], file)
    return file


def plan(
    trials: Sequence[cifar10.Trial],
    tasks: Sequence[str],
    modes: Sequence[str],
    root: Path,
    options: dict,
    device: str = 'cpu',
    shipped: bool = False,
) -> List[Transfer]:
    """The fine-tunings of pretrainings, none of them started.

    Args:
        trials: The pretrainings; :func:`backbone_of` must have exported them before a fine-tuning starts.
        tasks: Some of :data:`TASKS`.
        modes: Some of :data:`MODES`.
        root: Folder of the runs.
        options: Settings for all of them, ``{'a.b': value}``.
        device: 'cpu' or 'cuda'.
        shipped: Whether to take the backbones from the package where it has them (:func:`is_shipped`).

    Raises:
        UserError: If a folder holds a run with other settings.
    """
    check_apart(trials, tasks)
    runs = []
    for trial in trials:
        for task in dict.fromkeys(tasks):
            for mode in dict.fromkeys(modes):
                backbone = backbone_file(trial, shipped and is_shipped(trial))
                runs.append(_run(trial, backbone, task, mode, root, options, device))
                jobs.check_same(runs[-1])
    return runs


def _run(
    trial: cifar10.Trial, backbone: Path, task: str, mode: str, root: Path, options: dict, device: str
) -> Transfer:
    own = {**MODES[mode], **(TASKS[task].tuned if mode == 'tuned' else {})}
    if set(own) & set(options):
        raise UserValueError(f'--cfg-options cannot set {", ".join(own)}: the mode {mode} sets it')
    if 'train_cfg.max_epochs' in options and not any(key.startswith('param_scheduler') for key in options):
        own['param_scheduler.1.T_max'] = options['train_cfg.max_epochs']  # the cosine ends with the run
    start = {'model.init_cfg.type': 'StrictPretrained', 'model.init_cfg.checkpoint': str(backbone)}
    config = CONFIGS / f'{TASKS[task].config}.py'
    cfg = jobs.merged_config(config, {**own, **options, **start})
    # What it is, not where it lies, nor how its last bits were rounded.
    cfg.model.init_cfg.checkpoint = trial.fingerprint
    return Transfer(
        f'{task} {mode} {trial.method} seed {trial.seed}',
        config,
        {**own, **options, **start},
        trial.seed,
        root / task / mode / trial.method / f'seed{trial.seed}',
        int(cfg.train_cfg.max_epochs),
        ['--device', device],
        fingerprint=fingerprint(cfg, trial.seed),
        metric=TASKS[task].metric,
        task=task,
        mode=mode,
        pretraining=trial,
        backbone=backbone,
    )


def may_begin(run: jobs.Job) -> bool:
    """Whether what a run waits for is there: for a fine-tuning, its backbone."""
    return not isinstance(run, Transfer) or run.backbone.is_file()


# -------------------------------------------------------------------------------------------------------------- results
def result_of(run: Transfer) -> dict:
    """What a finished run found: all metrics of its last validation in percent, its time, and facts of its backbone.

    These are its hash, whether it was the shipped one and, where this pretraining was run here, its top-1 on CIFAR-10's
    test images, and that on 2000 of them shrunk to a side in pixels, with nothing pasted.
    """
    found, trial = read_run(run.work_dir), run.pretraining
    assert trial is not None
    shipped = run.backbone == backbone_file(trial, shipped=True)
    alone = run.backbone.with_suffix('.json')
    scale = TASKS[run.task].scale
    last = found.validations[max(found.validations)]
    metrics = {
        name.rpartition('/')[2]: round(value * scale, 3)
        for name, value in last.items()
        if isinstance(value, (int, float))
        and math.isfinite(value)
        and 'time' not in name
        and name not in ('step', 'epoch')
    }
    return dict(
        task=run.task,
        mode=run.mode,
        method=run.method,
        seed=run.seed,
        value=round(run.validations()[run.epochs] * scale, 3),
        metrics=metrics,
        fingerprint=run.fingerprint,
        backbone=tensor_hash(read_weights(run.backbone).tensors),
        **(dict(shipped=True) if shipped else {}),
        pretrained=None if shipped else trial.validations().get(trial.epochs),
        alone=json.loads(alone.read_text()) if alone.is_file() else {},
        hours=round(found.training.get('hours', 0.0), 3),
        **run.protocol(),
        mmrm=__version__,
        processor=cifar10.processor(),
    )


def _check(result: dict) -> dict:
    one_of('task', result['task'], list(TASKS))
    one_of('mode', result['mode'], list(MODES))
    one_of('method', result['method'], METHODS)
    result['seed'], result['value'] = int(result['seed']), float(result['value'])
    result['metrics'] = {str(name): float(value) for name, value in result['metrics'].items()}
    result['fingerprint'] = str(result['fingerprint'])
    return result


def _settings(protocol: dict, field: str) -> str:
    """The settings of a result or of a run, to be compared and told; ``field`` is 'settings' or 'pretraining'."""
    return json.dumps(protocol.get(field, {}), sort_keys=True)


def _check_one_protocol(path: Union[str, Path], found: Sequence[dict]) -> None:
    """Raise unless all results have the same pretraining and those of a task and mode the same settings.

    Else they cannot be in one table.
    """
    first: Dict[tuple, dict] = {}
    for result in found:
        for field, name in (('pretraining', ()), ('settings', (result['task'], result['mode']))):
            other = first.setdefault((field, *name), result)
            if _settings(other, field) != _settings(result, field):
                raise UserFileError(
                    f'{path}: results of different settings do not go into one file. {results.describe(other, KEY)} '
                    f'has {field} {_settings(other, field)}, {results.describe(result, KEY)} has '
                    f'{_settings(result, field)}. Give the same settings, or each experiment a file of its own '
                    '(--results).'
                )


def read_results(path: Union[str, Path]) -> List[dict]:
    """The results in a file, one per line; none if there is no file.

    Raises:
        UserFileError: If a line is no result, or results differ in their pretraining or those of a task and mode in
            their settings.
    """
    found = results.read(path, _check, KEY)
    _check_one_protocol(path, found)
    return found


def add_result(path: Union[str, Path], result: dict) -> None:
    """Put a result into a file; see :func:`tools.runs.results.add`."""
    results.add(path, result, _check, KEY)


def unknown(runs: Sequence[Transfer], path: Union[str, Path]) -> List[Transfer]:
    """The runs that have no result in a file yet.

    Raises:
        UserFileError: If the file has a result of one of them, or of another seed or method of its task, under another
            protocol.
    """
    found, known = read_results(path), results.known(path, runs, _check, KEY)
    waiting = [run for run in runs if run.name not in known]
    planned = [{**{field: getattr(run, field) for field in KEY}, **run.protocol()} for run in waiting]
    _check_one_protocol(path, [*found, *planned])
    return waiting
