"""Results of runs as one file that others can read: what ``mmrm tables --save`` writes and ``--results`` reads.

The format is documented in ``results/README.md``.
"""

import json
import platform
from pathlib import Path
from typing import Dict, List, Sequence, Union

from ..utils.errors import UserFileError
from ..utils.files import write_text
from ..utils.settings import result_settings
from ..version import __version__
from .configs import read_shipped, shipped_configs
from .runs import RunLog, is_number

FORMAT = 1
FIELDS = dict(config=str, seed=int, length=int, unit=str, validations=dict, settings=dict)  # of each run


def write_results(path: Union[str, Path], runs: Dict[str, Sequence[RunLog]], overwrite: bool = False) -> Path:
    """Write runs, by the config that they are of.

    Raises:
        UserFileError: If there is no run with a validation, or the file cannot be written.
    """
    records = []
    for config, found in runs.items():
        for run in (run for run in found if run.settings is not None and run.validations):
            metrics = {
                step: {key: value for key, value in sorted(each.items()) if '/' in key and is_number(value)}
                for step, each in sorted(run.validations.items())
            }
            costs = {key: round(value, 3) for key, value in run.training.items()}
            settings = result_settings(run.settings, length=True, weights=True)
            settings['auto_scale_lr'] = run.settings.get('auto_scale_lr')
            record = dict(config=config, seed=run.seed, length=run.length, unit=run.unit, **costs)
            records.append(dict(record, data=run.data, validations=metrics, settings=settings))
    if not records:
        raise UserFileError(f'no run to write to {path}: no row has a run with its config and a validation.')
    content = json.dumps(dict(format=FORMAT, machine=_machine(), runs=records), default=str)
    return write_text(path, content + '\n', overwrite)


def _machine() -> Dict[str, str]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'
    return dict(mmrm=__version__, torch=torch.__version__, python=platform.python_version(), gpu=gpu)


def read_results(path: Union[str, Path]) -> Dict[str, List[RunLog]]:
    """The runs of a file, by the config that they are of.

    Raises:
        UserFileError: If it is not of this format.
    """
    path, where = Path(path).expanduser(), ''
    found: Dict[str, List[RunLog]] = {}
    try:
        content = json.loads(path.read_text())
        _check(content, dict(format=int, runs=list))
        if content['format'] != FORMAT:
            raise ValueError(f'format {content["format"]!r} instead of {FORMAT}')
        for number, record in enumerate(content['runs'], 1):
            where = f'run {number}: '
            found.setdefault(_check(record, FIELDS)['config'], []).append(_read_run(path, record))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserFileError(f'{path} is not a file of results (results/README.md): {where}{error}') from None
    return found


def _check(values: dict, kinds: Dict[str, type]) -> dict:
    for key, kind in kinds.items():
        if type(values.get(key)) is not kind:
            raise ValueError(f'{key} must be of type {kind.__name__}, but is {values.get(key)!r:.40}')
    return values


def _read_run(path: Path, record: dict) -> RunLog:
    config, settings = record['config'], record['settings']
    if config not in shipped_configs():  # before it is read, which executes it
        raise ValueError(f'config {config!r} is not a shipped one')
    wanted = {'auto_scale_lr': {}, **result_settings(read_shipped(config) or {}, length=True, weights=True)}
    known = [key for key, value in settings.items() if value is not None and isinstance(wanted.get(key), (dict, list))]
    _check(settings, {key: type(wanted[key]) for key in known})
    validations = {int(step): dict(metrics) for step, metrics in record['validations'].items()}
    data = {part: dict(values) for part, values in (record.get('data') or {}).items()}
    # As one long iteration: RunLog sums up their times.
    training = {1: dict(memory=record.get('memory'), time=3600 * float(record.get('hours', 0)))}
    folder, last = path / Path(config).parent.name / f'seed{record["seed"]}', max(validations)
    return RunLog(folder, validations, last, record['length'], record['unit'], settings, training, data)
