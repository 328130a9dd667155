"""Do detectors and segmentors profit from RM's backbones? The paper's question, sized for two cores.

The backbones are those of :mod:`mmrm.experiments.cifar10`. Each is fine-tuned, frozen and not, on four tasks: scenes
composed of CIFAR-10 images (detection, segmentation), photographs of blood cells (BCCD, detection) and of streets
(CamVid, segmentation). A pretraining seed is one independent result; its fine-tuning has the same seed.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Union

from ..utils.errors import UserFileError, UserValueError
from ..utils.paths import find, find_config, home
from ..utils.runs import merge_sessions, read_run
from ..version import __version__
from ..weights.export import export_backbone
from ..weights.provenance import read_weights, tensor_hash
from . import cifar10, jobs, results
from .scenes import make_scenes

KEY = ('task', 'mode', 'method', 'seed')
RESULTS = Path(__file__).with_name('transfer.jsonl')  # those of docs/transfer.md


class Task(NamedTuple):
    """What is measured downstream.

    Args:
        config: Its file in ``configs/transfer``.
        metric: What the evaluator calls its result.
        scale: Brings the metrics to percent.
        title: For tables.
        needs: What the data folder must hold.
        hint: How to get it.
    """

    config: str
    metric: str
    scale: float
    title: str
    needs: str
    hint: str


_SCENES = 'python tools/get_cifar10.py brings CIFAR-10, of which the scenes are made'
TASKS = {
    'atss-scenes': Task('atss_scenes', 'coco/bbox_mAP', 100, 'ATSS, composed scenes: box AP', 'cifar10', _SCENES),
    'pspnet-scenes': Task('pspnet_scenes', 'mIoU', 1, 'PSPNet, composed scenes: mIoU', 'cifar10', _SCENES),
    'atss-bccd': Task(
        'atss_bccd', 'coco/bbox_mAP', 100, 'ATSS, blood cells: box AP', 'bccd/ImageSets/Main', 'see docs/transfer.md'
    ),
    'pspnet-camvid': Task(
        'pspnet_camvid', 'mIoU', 1, 'PSPNet, streets: mIoU', 'camvid/trainannot', 'see docs/transfer.md'
    ),
}
MODES = {'frozen': {'model.backbone.frozen_stages': 4}, 'tuned': {}}
METHODS = ('baseline', 'cutmix', 'rm', 'mixup')
# What differs from the CIFAR-10 experiment, whose configs these are: half as long, and the same on every processor.
SIDES = (12, 16, 20, 24, 28, 32)  # of the whole images that the classifiers are shown, in pixels
PRETRAINING = {'train_cfg.max_epochs': 100, 'train_cfg.val_interval': 50, **cifar10.FLOAT32}


@dataclass
class Transfer(jobs.Job):
    """One fine-tuning.

    Args:
        task (str): One of :data:`TASKS`.
        mode (str): One of :data:`MODES`.
        method (str): How its backbone was pretrained, one of :data:`METHODS`.
        backbone (str): :func:`~mmrm.weights.provenance.tensor_hash` of the backbone.
        pretrained (float, optional): Top-1 of the pretraining on CIFAR-10's test images, in percent; None if its log is
            gone.
        alone (dict[str, float]): The same for 2000 of these images shrunk to a side in pixels, nothing pasted.
        **kwargs: As for :class:`mmrm.experiments.jobs.Job`.
    """

    task: str = ''
    mode: str = ''
    method: str = ''
    backbone: str = ''
    pretrained: Optional[float] = None
    alone: Dict[str, float] = field(default_factory=dict)

    def validations(self) -> Dict[int, float]:
        """The task's metric by epoch, from the logs of the run."""
        task, logged = TASKS[self.task], merge_sessions(self.work_dir).validations
        return {step: float(found[task.metric]) for step, found in logged.items() if task.metric in found}


def default_root() -> Path:
    """``work_dirs/transfer`` of the project."""
    return home() / 'work_dirs' / 'transfer'


def pretrainings(
    methods: Sequence[str], seeds: Optional[Sequence[int]], root: Path, device: str
) -> List[cifar10.Trial]:
    """The runs that the backbones come from, none of them started; all methods of a seed before the next seed."""
    methods = [jobs.one_of('method', method, METHODS) for method in dict.fromkeys(methods)]
    return cifar10.plan(methods, seeds, root / 'pretraining', PRETRAINING, device)


def check_data(tasks: Sequence[str], data: Union[str, Path] = 'data') -> None:
    """Raise if something is missing that a task needs, before anything is trained.

    Raises:
        UserFileError: It names what is missing and how to get it.
    """
    missing = {}
    for name in tasks:
        task = TASKS[jobs.one_of('task', name, list(TASKS))]
        path = find(Path(data) / task.needs)
        if not path.is_dir():
            missing[task.needs.partition('/')[0]] = f'{path} ({task.hint})'
    if missing:
        raise UserFileError(f'data is missing: {"; ".join(missing.values())}. --tasks leaves a task out.')
    if any(TASKS[name].needs == 'cifar10' for name in tasks):
        make_scenes(find(Path(data)) / 'scenes', find(Path(data)) / 'cifar10')


def backbone_of(trial: cifar10.Trial, root: Path) -> Path:
    """The backbone of a finished pretraining, exported once."""
    file = root / 'backbones' / f'{trial.method}-seed{trial.seed}.pth'
    if not file.is_file():
        if not trial.finished():
            raise UserFileError(f'the pretraining {trial.name} in {trial.work_dir} is not finished.')
        file.parent.mkdir(parents=True, exist_ok=True)
        export_backbone(trial.checkpoints()[trial.epochs], file)
    return file


def alone_file(trial: cifar10.Trial, root: Path) -> Path:
    """Where a pretraining's accuracy on whole images of :data:`SIDES` is kept."""
    return root / 'backbones' / f'{trial.method}-seed{trial.seed}.json'


def plan(
    trials: Sequence[cifar10.Trial],
    tasks: Sequence[str],
    modes: Sequence[str],
    root: Path,
    options: dict,
    device: str = 'cpu',
) -> List[Transfer]:
    """The fine-tunings of finished pretrainings, none of them started.

    Raises:
        UserError: If a name is unknown or a folder holds a run with other settings.
    """
    runs = []
    for trial in trials:
        file = backbone_of(trial, root)
        backbone, top1 = tensor_hash(read_weights(file).tensors), trial.validations().get(trial.epochs)
        known = alone_file(trial, root)
        alone = json.loads(known.read_text()) if known.is_file() else {}
        for task in dict.fromkeys(tasks):
            for mode in dict.fromkeys(modes):
                runs.append(
                    _run(trial, jobs.one_of('task', task, list(TASKS)), mode, file, backbone, root, options, device)
                )
                runs[-1].pretrained, runs[-1].alone = top1, alone
                jobs.check_same(runs[-1])
    return runs


def _run(
    trial: cifar10.Trial, task: str, mode: str, file: Path, backbone: str, root: Path, options: dict, device: str
) -> Transfer:
    own = MODES[jobs.one_of('mode', mode, list(MODES))]
    if set(own) & set(options):
        raise UserValueError(f'--cfg-options cannot set {", ".join(own)}: the mode {mode} sets it')
    start = {'model.init_cfg.type': 'StrictPretrained', 'model.init_cfg.checkpoint': str(file)}
    config = find_config(f'configs/transfer/{TASKS[task].config}.py')
    cfg = jobs.merged_config(config, {**own, **options, **start})
    cfg.model.init_cfg.checkpoint = backbone  # what it is, not where it lies
    epochs = int(cfg.train_cfg.max_epochs)
    return Transfer(
        f'{task} {mode} {trial.method} seed {trial.seed}',
        config,
        {**own, **options, **start},
        trial.seed,
        root / task / mode / trial.method / f'seed{trial.seed}',
        epochs,
        ['--device', device],
        fingerprint=jobs.fingerprint(cfg, trial.seed, options),
        task=task,
        mode=mode,
        method=trial.method,
        backbone=backbone,
    )


# -------------------------------------------------------------------------------------------------------------- results
def result_of(run: Transfer) -> dict:
    """What a finished run found: all metrics of its last validation in percent, and its time."""
    found = read_run(run.work_dir)
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
        backbone=run.backbone,
        pretrained=run.pretrained,
        alone=run.alone,
        hours=round(found.training.get('hours', 0.0), 3),
        mmrm=__version__,
        processor=cifar10.processor(),
    )


def _check(result: dict) -> dict:
    jobs.one_of('task', result['task'], list(TASKS))
    jobs.one_of('mode', result['mode'], list(MODES))
    jobs.one_of('method', result['method'], METHODS)
    result['seed'], result['value'] = int(result['seed']), float(result['value'])
    result['metrics'] = {str(name): float(value) for name, value in result['metrics'].items()}
    result['fingerprint'] = str(result['fingerprint'])
    return result


def read_results(path: Union[str, Path]) -> List[dict]:
    """The results in a file, one a line; none if there is no file."""
    return results.read(path, _check, KEY)


def add_result(path: Union[str, Path], result: dict) -> None:
    """Put a result into a file; see :func:`mmrm.experiments.results.add`."""
    results.add(path, result, _check, KEY)


def unknown(runs: Sequence[Transfer], path: Union[str, Path]) -> List[Transfer]:
    """The runs that have no result in a file yet.

    Raises:
        UserFileError: If the file has a result of one of them under another protocol.
    """
    known = {results.name_of(result, KEY): result for result in read_results(path)}
    waiting = []
    for run in runs:
        result = known.get((run.task, run.mode, run.method, run.seed))
        if result:
            results.check_fingerprint(path, result, run.fingerprint, KEY)
        else:
            waiting.append(run)
    return waiting
