"""Change files at random and read them: each gives what was in it or a UserError, and nothing is executed.

    python benchmarks/fuzz_readers.py                            # a minute
    python benchmarks/fuzz_readers.py --minutes 60 --seed 1      # what SECURITY.md is based on
    python benchmarks/fuzz_readers.py --only pickle yaml

Whole files are changed byte by byte; in ``pickle`` the program inside a checkpoint is, with a right checksum around it.
A file with a checksum must give the original or a UserError. In others a changed byte may be a changed value; there
only a UserError may end the reading. A reading of more than LIMIT seconds, and any file that a planted call leaves
behind, count as failures too. The file that was read last is kept in the folder that is printed, also after a crash.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import random
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, Callable, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # isort: skip
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope
from mmengine.runner.checkpoint import CheckpointLoader
from PIL import Image
from safetensors.torch import save

from mmrm import compat
from mmrm.datasets.images import inspect_image
from mmrm.report.runs import read_run
from mmrm.utils.checkpoints import tensor_hash
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserError
from mmrm.utils.paths import shipped
from mmrm.utils.trust import read_foreign_config
from mmrm.weights.export import export_classifier
from mmrm.weights.provenance import read_weights
from mmrm.weights.runs import latest_checkpoint

LIMIT = 20  # seconds


class Subject(NamedTuple):
    """A kind of file.

    Args:
        path (str): Where it is put below a folder.
        content (bytes): What is in it before it is changed.
        read (callable): Reads it.
        exact (bool): Whether it has a checksum.
        wrap (callable): Makes the file of what was changed.
    """

    path: str
    content: bytes
    read: Callable[[Path], Any]
    exact: bool = False
    wrap: Callable[[bytes], bytes] = bytes


def saved(**options) -> bytes:
    state = {f'layer{n}.weight': torch.arange(64.0).reshape(8, 8) + n for n in range(4)}
    meta = dict(epoch=3, cfg='model = dict(type="A")', dataset_meta=dict(classes=('a', 'b')), score=np.float64(0.5))
    stream = io.BytesIO()
    torch.save(dict(state_dict=state, meta=meta), stream, **options)
    return stream.getvalue()


def rezip(pickled: bytes) -> bytes:
    """A checkpoint with another program in it, under right checksums."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved())) as source, zipfile.ZipFile(stream, 'w') as target:
        for name in source.namelist():
            target.writestr(name, pickled if name.endswith('data.pkl') else source.read(name))
    return stream.getvalue()


def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (24, 32, 3), np.uint8)).save(stream, kind)
    return stream.getvalue()


def read_tensors(path: Path) -> str:
    weights = read_weights(path)
    digest = tensor_hash(weights.tensors)
    # Where the note itself was changed, there is no hash in it.
    return digest if path.suffix == '.pth' or 'sha256' in weights.meta else ''


def subjects() -> dict:
    checkpoint, config = saved(), (shipped() / 'configs/rm/resnet18-w16_1xb64_cifar10-250.py')
    with zipfile.ZipFile(io.BytesIO(checkpoint)) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith('data.pkl')))
    plain = read_config(config)
    records = [
        dict(lr=0.1, loss=1.0, epoch=n, step=n) if n % 2 else {'accuracy/top1': 50.0, 'step': n} for n in range(8)
    ]
    logs = '\n'.join(map(json.dumps, records)).encode()
    with tempfile.TemporaryDirectory() as folder:
        zoo = next((Path(mmrm.__file__).parent / 'weights/zoo').glob('*.safetensors'))
        export_classifier(zoo, Path(folder) / 'a.safetensors')
        exported = (Path(folder) / 'a.safetensors').read_bytes()
    found = dict(
        pth=Subject('a.pth', checkpoint, read_tensors, exact=True),
        mmengine=Subject('a.pth', checkpoint, lambda path: CheckpointLoader.load_checkpoint(str(path))),
        old_pth=Subject('a.pth', saved(_use_new_zipfile_serialization=False), read_tensors),
        pickle=Subject('a.pth', pickled, read_tensors, wrap=rezip),
        exported=Subject('a.safetensors', exported, read_tensors, exact=True),
        safetensors=Subject('a.safetensors', save(dict(weight=torch.arange(4.0)), dict(meta='{}')), read_tensors),
        yaml=Subject('a.yaml', b'a: &a {lr: 1.0e-3, text: "x"}\nb: *a\nmodel: {type: B, c: [1, 2.5]}\n', read_config),
        json=Subject('a.json', b'{"model": {"type": "A", "x": [1, 2.5, null]}, "y": "text"}', read_config),
        settings=Subject('config.py', plain.pretty_text.encode(), read_foreign_config),
        log=Subject('run/20260101_000000/vis_data/scalars.json', logs, lambda path: read_run(path.parents[2])),
        note=Subject('run/last_checkpoint', b'/runs/epoch_3.pth', lambda path: latest_checkpoint(path.parent, str)),
    )
    for kind in ('png', 'jpeg', 'gif', 'tiff', 'webp', 'bmp', 'ppm'):
        found[kind] = Subject(f'image.{kind}', picture(kind), inspect_image)
    return found


def planted(marker: Path) -> list:
    """Parts of files that make trouble for readers."""
    name = str(marker).encode()
    return [
        b'cos\nmkdir\n(V' + name + b'\ntR.',
        b'\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c' + bytes([len(name)]) + name + b'\x85R.',
        b'!!python/object/apply:os.mkdir [' + name + b']',
        b'__import__("os").mkdir("' + name + b'")',
        b"dict(type='os.mkdir', path='" + name + b"')",
        b'[' * 5000,
        b'(' * 5000,
        b'{"a":' * 3000,
        b'\x1b[31m\x07',
        b'\xff\xd8\xff',
        b'1e999',
        b'NaN',
        b'{{_base_}}',
        bytes(64),
        b'\xff' * 8,
    ]


def change(content: bytes, parts: list, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 1, 4, 64, 1024)))
        kind = rng.randrange(6)
        if kind == 0 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[start:end]
        elif kind == 2:
            data[start:start] = data[start:end]
        elif kind == 3:
            data[start:start] = rng.choice(parts)
        elif kind == 4:
            data[start:end] = rng.randbytes(end - start)
        elif rng.random() < 0.2:
            del data[start:]
    return bytes(data)


def too_slow(*args) -> None:
    raise TimeoutError(f'more than {LIMIT} seconds')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--minutes', type=float, default=1)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--only', nargs='+', metavar='KIND', help='kinds of files (default: all)')
    args = parser.parse_args()
    compat.police()
    init_default_scope('mmpretrain')
    MMLogger.get_current_instance().setLevel('ERROR')
    faulthandler.enable()
    signal.signal(signal.SIGALRM, too_slow)
    rng, folder = random.Random(args.seed), Path(tempfile.mkdtemp(prefix='fuzz-'))
    print(f'seed {args.seed}, in {folder}', flush=True)
    known = {name: each for name, each in subjects().items() if name in (args.only or subjects())}
    marker, counts, failures = folder / 'marker', Counter(), Counter()
    originals = {}
    for name, each in known.items():
        (folder / name / each.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / each.path).write_bytes(each.wrap(each.content))
        originals[name] = each.read(folder / name / each.path)
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        name = rng.choice(list(known))
        each, path = known[name], folder / name / known[name].path
        path.write_bytes(each.wrap(change(each.content, planted(marker), rng)))
        signal.alarm(LIMIT)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                read = each.read(path)
            outcome = 'read'
            if each.exact and read not in (originals[name], ''):
                raise AssertionError('another content was read')
        except UserError:
            outcome = 'refused'
        except Exception:
            outcome = 'failed'
            failures[name, traceback.format_exc(limit=-3)] += 1
            (folder / f'failed-{name}-{len(failures)}{path.suffix}').write_bytes(path.read_bytes())
        signal.alarm(0)
        counts[name, outcome] += 1
        if marker.exists():
            failures[name, f'{path} was executed'] += 1
            break
    for name in known:
        print(f'{name:12}', *(f'{outcome} {counts[name, outcome]:7}' for outcome in ('read', 'refused', 'failed')))
    for (name, text), number in failures.most_common():
        print(f'\n{name}, {number} times:\n{text[:2000]}')
    return bool(failures)


if __name__ == '__main__':
    sys.exit(main())
