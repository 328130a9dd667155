"""What checkpoints reached: one row each, from the logs of their runs."""

import csv
import io
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from ..report.runs import RunLog, find_runs, read_run
from ..utils import paths
from ..utils.errors import UserError, UserFileError, one_line
from ..utils.files import atomic_write, check_out
from ..utils.processes import warn
from ..utils.saved import find_saved, parse_name
from .build import Run, count_parameters, open_run
from .inputs import describe_input
from .provenance import file_hash

COLUMNS = (
    'model',
    'top1',
    'top1_err',
    'top5',
    'param_count',
    'img_size',
    'step',
    'state',
    'seed',
    'checkpoint',
    'sha256',
    'command',
)
TOP1, TOP5 = 'accuracy/top1', 'accuracy/top5'


class Measured(NamedTuple):
    """What a run measured of one of its checkpoints.

    Args:
        top1, top5 (float, optional): Accuracy in percent.
        step (int): After how many epochs (or iterations).
        unit (str): 'epochs' or 'iterations'.
        log (RunLog): The whole run.
    """

    top1: Optional[float]
    top5: Optional[float]
    step: int
    unit: str
    log: RunLog


def measured(checkpoint: Path) -> Optional[Measured]:
    """What the run of a checkpoint measured of it; None if there is no log beside it, or no validation of its step."""
    saved = parse_name(checkpoint)
    try:
        log = read_run(checkpoint.parent)
    except UserError:
        return None
    metrics = log.validations.get(saved.step) if saved and saved.unit == log.saved_unit else None
    if saved is None or metrics is None:
        return None
    return Measured(metrics.get(TOP1), metrics.get(TOP5), saved.step, log.unit, log)


def model_name(checkpoint: Path) -> str:
    """``rm/resnet50_8xb64_in1k`` for a run in ``work_dirs/rm/``, else the name of its config, or of its folder."""
    folder = checkpoint.parent
    run = folder.parent if folder.name.startswith('seed') else folder
    if (paths.shipped() / 'configs' / run.parent.name / f'{run.name}.py').is_file():
        return f'{run.parent.name}/{run.name}'
    beside = sorted(folder.glob('*.py'))
    return beside[0].stem if len(beside) == 1 and beside[0].stem != 'config' else run.name


def result_row(run: Run) -> Dict[str, Any]:
    """The row of a checkpoint."""
    found = measured(run.checkpoint)
    known = describe_input(run.cfg)
    name = model_name(run.checkpoint)
    shipped = paths.shipped() / 'configs' / f'{name}.py'
    beside = sorted(run.checkpoint.parent.glob('*.py'))
    config = f'{name}.py' if shipped.is_file() else paths.show_path(beside[0]) if len(beside) == 1 else 'CONFIG'
    checkpoint = paths.show_path(run.checkpoint)
    return dict(
        model=name,
        top1=_digits(found and found.top1),
        top1_err=_digits(None if found is None or found.top1 is None else 100 - found.top1),
        top5=_digits(found and found.top5),
        param_count=f'{count_parameters(run.model) / 1e6:.2f}',
        img_size='x'.join(map(str, dict.fromkeys(known.size))) if known.size else '',
        step=found.step if found else '',
        state=found.log.state if found else '',
        seed='' if found is None or found.log.seed is None else found.log.seed,
        checkpoint=checkpoint,
        sha256=file_hash(run.checkpoint),
        command=f'mmrm test {config} {checkpoint}',
    )


def _digits(value) -> str:
    return '' if value is None else f'{value:.2f}'


def checkpoints_of(folder: Path) -> List[Path]:
    """The checkpoints of a run that it validated: its best, and those that it kept."""
    log = read_run(folder)
    saved = [each for each in find_saved(folder) if each.unit == log.saved_unit and each.step in log.validations]
    return [each.path for each in sorted(saved, key=lambda each: (each.metric is None, each.step))]


def collect(roots: Sequence[Union[str, Path]]) -> List[Dict[str, Any]]:
    """One row per validated checkpoint of the classifiers below folders, the best first.

    What cannot be read is told on stderr and left out.
    """
    rows = []
    for root in roots:
        root = paths.find(root)
        if not root.is_dir():
            raise UserFileError(f'{root} is not a folder of runs.')
        folders = find_runs(root)
        if not folders:
            raise UserFileError(f'{root} holds no run: no log of mmengine below it.')
        for folder in folders:
            for path in checkpoints_of(folder):
                try:
                    rows.append(result_row(open_run(path)))
                except UserError as error:
                    warn(f'{path} is left out: {one_line(error)}')
    return sorted(rows, key=lambda row: (-float(row['top1'] or 0), row['model'], row['checkpoint']))


def write_results(rows: Sequence[Dict[str, Any]], out: Union[str, Path], overwrite: bool = False) -> Path:
    """Write rows as CSV."""
    out = check_out(out, overwrite, ('.csv',))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(out, overwrite) as part:
        part.write_bytes(text.getvalue().encode())
    return out
