"""A file of results, one per line, that several processes add to and an interrupted experiment resumes from."""

import json
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple, Union

from mmrm.utils.errors import UserFileError
from mmrm.utils.files import locked, write_text

Key = Sequence[str]


def read(path: Union[str, Path], check: Callable[[dict], dict], key: Key) -> List[dict]:
    """The results in a file; none if there is no file.

    Args:
        path (str | Path): The file.
        check (callable): Turns what a line holds into a result, or raises because it is none.
        key (Sequence[str]): The fields that name a result; each has its own.

    Raises:
        UserFileError: If a line is not a result or repeats one.
    """
    path, results = Path(path), []
    if not path.is_file():
        return results
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            result = check(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserFileError(f'{path}, line {number} is not a result of the experiment: {error!r}') from error
        if name_of(result, key) in [name_of(other, key) for other in results]:
            raise UserFileError(f'{path}, line {number} repeats {describe(result, key)}')
        results.append(result)
    return results


def add(path: Union[str, Path], result: dict, check: Callable[[dict], dict], key: Key) -> None:
    """Put a result into a file, which appears whole or stays as it was. One that is there already is not put twice.

    Raises:
        UserFileError: If the file has a result of the same name under other settings.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f'.{path.name}.lock'), wait=True):  # another process may add one as well
        same = [other for other in read(path, check, key) if name_of(other, key) == name_of(result, key)]
        if same:
            check_fingerprint(path, same[0], result['fingerprint'], key)
            return
        before = path.read_text() if path.is_file() else ''
        ending = '' if before.endswith('\n') or not before else '\n'
        write_text(path, before + ending + json.dumps(result) + '\n', overwrite=True)


def known(path: Union[str, Path], runs: Sequence, check: Callable[[dict], dict], key: Key) -> Dict[str, dict]:
    """The results in a file that are of these runs, which have the fields of ``key``, by a run's name.

    Raises:
        UserFileError: If the file has a result of one of them under other settings.
    """
    results, found = {name_of(result, key): result for result in read(path, check, key)}, {}
    for run in runs:
        result = results.get(tuple(getattr(run, field) for field in key))
        if result:
            check_fingerprint(path, result, run.fingerprint, key)
            found[run.name] = result
    return found


def check_fingerprint(path: Union[str, Path], result: dict, fingerprint: str, key: Key) -> None:
    """Raise unless a result was made under the settings that ``fingerprint`` stands for."""
    if result['fingerprint'] != fingerprint:
        raise UserFileError(
            f'{path} holds a result of {describe(result, key)} under other settings. It is left as it is; give the '
            'same settings, or another --results.'
        )


def name_of(result: dict, key: Key) -> Tuple:
    return tuple(result[field] for field in key)


def describe(result: dict, key: Key) -> str:
    """Such as 'rm seed 3'."""
    return ' '.join(f'seed {result[field]}' if field == 'seed' else str(result[field]) for field in key)
