"""mmengine's logs: one ``<time>/vis_data/scalars.json`` a session of a run, one record a line."""

import json
from pathlib import Path
from typing import Iterator, List, Optional, Union


def log_of(session: Path) -> Optional[Path]:
    """The log of a session's folder: its ``scalars.json``, or the copy that is named after the session."""
    logs = (session / 'vis_data' / name for name in ('scalars.json', f'{session.name}.json'))
    return next((log for log in logs if log.is_file() and log.stat().st_size), None)


def sessions(folder: Union[str, Path]) -> List[Path]:
    """The folders of a run's sessions that hold a log, in the order of time."""
    folder = Path(folder)
    return sorted(path for path in folder.iterdir() if log_of(path)) if folder.is_dir() else []


def session_records(session: Path) -> Iterator[dict]:
    """The records of one session, in order."""
    log = log_of(session)
    for line in log.read_text(errors='replace').splitlines() if log else ():
        try:
            record = json.loads(line)
        except ValueError:  # the line that a killed process was writing
            continue
        if isinstance(record, dict) and isinstance(record.get('step'), int):
            yield record
