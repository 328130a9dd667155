"""The shipped classifiers on whole test images of CIFAR-10, shrunk: nothing is trained and nothing is pasted.

This is where RM differs most, and it takes seconds. CIFAR-10 may not be shipped, so it is fetched while the demo
trains; without it this part is left out.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, Iterator, Optional

from mmrm.datasets import RMCIFAR10
from mmrm.utils import paths
from mmrm.utils.files import write_text
from mmrm.utils.processes import cores
from projects.cifar10.run import CONFIG
from tools.analysis import classifiers, scale_sensitivity
from tools.get_cifar10 import default_folder
from tools.runs.processes import environment

SIDES = (12, 16, 24, 32)  # pixels; the classifiers were trained at 32
SHOWN = 16  # in the table: half the side
IMAGES = 2000  # as in the transfer experiment's control
PATIENCE = 60  # seconds that the fetching may take once all else is done
FILE = 'small_images.json'
LOG = 'get_cifar10.txt'


def is_there() -> bool:
    """Whether CIFAR-10 is where the configs look for it."""
    return paths.find(default_folder() / RMCIFAR10.base_folder).is_dir()


@contextlib.contextmanager
def fetched(work_dir: Path, wanted: bool = True) -> Iterator[Callable[[], str]]:
    """Fetch CIFAR-10 beside what the block does, unless it is there; it ends with the block.

    Args:
        work_dir: Gets what the fetching says, ``get_cifar10.txt``.
        wanted: False to leave it.

    Yields:
        callable: Waits for it; returns why CIFAR-10 is not there, '' if it is.
    """
    process = None
    log = work_dir / LOG
    if wanted and not is_there():
        tool = str(paths.shipped() / 'tools' / 'get_cifar10.py')
        with open(log, 'wb') as out:
            process = subprocess.Popen(
                [sys.executable, tool], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment()
            )

    def wait() -> str:
        if process is not None:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                return f'it was still being fetched after {PATIENCE} seconds of waiting'
        if is_there():
            return ''
        lines = log.read_text(errors='replace').split('\n') if process is not None else []
        return next((line.strip() for line in reversed(lines) if line.strip()), 'it is not there')

    try:
        yield wait
    finally:
        if process is not None and process.poll() is None:
            process.terminate()
            process.wait()


def measure(weights: Dict[str, Path], images: int = IMAGES) -> Dict[str, Dict[int, float]]:
    """Top-1 of classifiers on the same test images, by pretraining and side in pixels.

    Args:
        weights: Pretraining -> its classifier.
        images: How many test images, drawn once.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(cores())  # nothing else runs
    try:
        models = [
            classifiers.load_classifier(method, f'configs/{method}/{CONFIG}.py', file)
            for method, file in weights.items()
        ]
        return scale_sensitivity.accuracy_by_side(models, SIDES, max(SIDES), images)
    finally:
        torch.set_num_threads(before)


def results(
    work_dir: Path, weights: Dict[str, Path], stamp: str, missing: str = '', images: int = IMAGES
) -> Dict[str, dict]:
    """``small/<pretraining>`` -> ``value``, the accuracy at :data:`SHOWN` pixels, and ``sides``; kept in the work dir.

    Args:
        work_dir: The demo's.
        weights: As for :func:`measure`.
        stamp: Of all that the result depends on; a result with another one is measured again.
        missing: Why CIFAR-10 is not there.
        images: As for :func:`measure`.

    Returns:
        dict: Empty where the images are missing and nothing was measured before.

    Raises:
        UserError: If the images cannot be read.
    """
    known = _read(work_dir / FILE, stamp)
    if known is None and not missing:
        known = measure(weights, images)
        text = json.dumps(dict(stamp=stamp, images=images, top1=known)) + '\n'
        write_text(work_dir / FILE, text, overwrite=True)
    if known is None:
        return {}
    return {
        f'small/{method}': dict(value=sides[SHOWN], sides={str(side): value for side, value in sides.items()})
        for method, sides in known.items()
    }


def _read(file: Path, stamp: str) -> Optional[Dict[str, Dict[int, float]]]:
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(known, dict) or known.get('stamp') != stamp:
        return None
    return {method: {int(side): value for side, value in sides.items()} for method, sides in known['top1'].items()}


def left_out(reason: str) -> str:
    """What to say where this part is missing."""
    said = f'Small images: left out without CIFAR-10 ({reason}).'
    if is_there():  # broken; the reason says what to do
        return said
    command = f'{sys.executable} {paths.shipped() / "tools" / "get_cifar10.py"}'
    return f'{said} `{command}` brings it (139 MB); then run the demo again, the other stages are not repeated.'
