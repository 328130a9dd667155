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
from .runs import RunLog, is_number

FORMAT = 1


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
    content = dict(format=FORMAT, machine=_machine(), runs=records)
    return write_text(path, json.dumps(content, default=str) + '\n', overwrite)


def _machine() -> Dict[str, str]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'
    return dict(mmrm=__version__, torch=torch.__version__, python=platform.python_version(), gpu=gpu)


def read_results(path: Union[str, Path]) -> Dict[str, List[RunLog]]:
    """The runs of a file, by the config that they are of.

    Raises:
        UserFileError: If it is not of this format.
    """
    path = Path(path).expanduser()
    found: Dict[str, List[RunLog]] = {}
    try:
        content = json.loads(path.read_text())
        if content['format'] != FORMAT:
            raise ValueError(f'format {content["format"]!r} instead of {FORMAT}')
        for record in content['runs']:
            config, seed = record['config'], int(record['seed'])
            validations = {int(step): dict(metrics) for step, metrics in record['validations'].items()}
            # As one long iteration: RunLog sums up their times.
            training = dict(memory=record.get('memory'), time=3600 * record.get('hours', 0))
            run = RunLog(
                path / Path(config).parent.name / f'seed{seed}',
                validations,
                max(validations),
                int(record['length']),
                record['unit'],
                dict(record['settings']),
                {1: training},
                record.get('data'),
            )
            found.setdefault(config, []).append(run)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserFileError(f'{path} is not a file of results (results/README.md): {error!r}') from None
    return found
