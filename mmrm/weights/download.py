"""Weights at an address: downloaded once, all of the file or none, into torch's own cache."""

import hashlib
import re
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from mmengine.dist import barrier, is_main_process
from torch.hub import tqdm  # a plain counter where that package is not installed

from ..utils.errors import UserFileError, one_line
from ..utils.files import atomic_write
from ..utils.processes import local_rank

TIMEOUT = 60  # seconds without a byte that end a download


def download(address: str, hint: str = '') -> Path:
    """The local copy of ``torchvision://<model>`` or ``http(s)://...``, in torch's own cache (``TORCH_HOME``).

    Args:
        address (str): The address.
        hint (str): What to add to the message when it cannot be downloaded. Defaults to ''.
    """
    scheme, rest = address.split('://', 1)
    if scheme == 'torchvision':
        from mmengine.runner.checkpoint import get_torchvision_models

        url = get_torchvision_models().get(rest)
        if url is None:
            raise UserFileError(f'{address}: torchvision has no weights {rest!r}; for example resnet50, resnet101.')
    elif scheme in ('http', 'https'):
        url = address
    else:
        raise UserFileError(f'{address}: {scheme}:// is not supported; a path, torchvision:// and http(s):// are.')
    name = Path(urlparse(url).path).name
    stamp = re.search(r'-(?=[0-9]*[a-f])([a-f0-9]{8,})\.', name)  # a hash; digits alone are a date
    if not stamp:  # two addresses may end in the same name
        name = f'{hashlib.sha256(url.encode()).hexdigest()[:8]}_{name}'
    file = Path(torch.hub.get_dir()) / 'checkpoints' / name
    # One process of a machine downloads, the others wait for it.
    if not file.is_file() and local_rank() == 0:
        try:
            fetch(url, file, stamp[1] if stamp else '')
        except UserFileError as error:
            raise UserFileError(
                f'{url} could not be downloaded to {file} ({error}). Put it there by hand, or use another file.{hint}'
            ) from error
    barrier()
    return file


def fetch(url: str, file: Path, sha256: str = '') -> None:
    """Download a file, all of it or none.

    ``torch.hub`` keeps what it has when a connection ends too early: Python's HTTP client raises nothing then.

    Args:
        url (str): http(s)://...
        file (Path): Where to put it; its folder is created.
        sha256 (str): What its SHA-256 must begin with. Defaults to ''.

    Raises:
        UserFileError: If it does not arrive, or not all of it, or another file.
    """
    with atomic_write(file, overwrite=True) as part:  # two runs may fetch the same one
        digest, size = hashlib.sha256(), 0
        try:
            with urlopen(Request(url, headers={'User-Agent': 'mmrm'}), timeout=TIMEOUT) as answer:
                expected = answer.headers.get('Content-Length')
                total = None if expected is None else int(expected)
                progress = tqdm(total=total, disable=not is_main_process(), unit='B', unit_scale=True)
                with progress, open(part, 'wb') as target:
                    for block in iter(lambda: answer.read(1 << 20), b''):
                        target.write(block)
                        digest.update(block)
                        size += len(block)
                        progress.update(len(block))
        except (OSError, HTTPException) as error:
            raise UserFileError(one_line(error)) from error
        if total is not None and size != total:
            raise UserFileError(f'the connection ended after {size} of {total} bytes')
        if not digest.hexdigest().startswith(sha256):
            raise UserFileError(f'its SHA-256 should begin with {sha256}, not with {digest.hexdigest()[: len(sha256)]}')
