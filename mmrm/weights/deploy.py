"""Networks for other runtimes: ONNX, and torch.export's programs. What is written was run and compared first.

Both files say what goes in: size, mean, standard deviation, order of channels, names of the classes.
"""

import json
import logging
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple, Union

import numpy as np
import torch
from PIL import Image
from torch import nn

from ..utils.errors import UserError, UserFileError, UserValueError, one_line
from ..utils.files import atomic_write, check_out, write_text
from . import predict_onnx
from .inputs import Reader, normalise
from .targets import relative_difference

SUFFIXES = {'onnx': ('.onnx',), 'torch.export': ('.pt2',)}
DYNAMIC = (None, 'batch', 'all')
TOLERANCE = 1e-3  # of the largest logit
NOTE = 'mmrm.json'  # in a file of torch.export
SCRIPT = Path(predict_onnx.__file__)
MISSING = 'exporting to ONNX needs onnx, onnxscript and onnxruntime ({}): pip install -r requirements/onnx.txt'


def check_format(kind: str, out: Union[str, Path], overwrite: bool, dynamic: Optional[str]) -> Path:
    """Check what is asked for, before any work: the packages, the file, the axes."""
    if kind not in SUFFIXES:
        raise UserValueError(f'format {kind!r} must be one of {", ".join(SUFFIXES)}.')
    if dynamic not in DYNAMIC:
        raise UserValueError(f"dynamic={dynamic!r} must be None, 'batch' or 'all'.")
    if kind == 'onnx':
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise UserError(MISSING.format(one_line(error))) from None
    return check_out(out, overwrite, SUFFIXES[kind])


def export_network(
    model: nn.Module,
    out: Union[str, Path],
    size: Tuple[int, int],
    note: Dict[str, Any],
    kind: str = 'onnx',
    dynamic: Optional[str] = None,
    overwrite: bool = False,
) -> float:
    """Write a classifier for another runtime, run the file there and compare its logits.

    Args:
        model: mmpretrain's classifier, as it is deployed.
        out: ``.onnx`` or ``.pt2``.
        size: Height and width of its images.
        note: Plain values to write into the file: in ONNX one property each, in torch.export ``mmrm.json``.
        kind: 'onnx' or 'torch.export'.
        dynamic: None for a batch of 1 of this size; 'batch' for any number of images; 'all' for any size as well,
            not for networks with attention.
        overwrite: Whether an existing file may be replaced.

    Returns:
        The largest difference of the logits, of the largest logit.

    Raises:
        UserFileError: If the network cannot be written so, or has other logits there. Nothing is written then.
    """
    out = check_format(kind, out, overwrite, dynamic)
    network = model.cpu().eval()
    tested, shapes = [_images(2 if dynamic else 1, size)], None
    if dynamic:
        shapes = {0: torch.export.Dim('batch', min=1)}
        tested.append(_images(3, size))
    if dynamic == 'all':
        check_any_size(network)
        shapes.update({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC})
        tested.append(_images(1, (size[0] + 32, size[1] + 64)))
    with atomic_write(out, overwrite) as part:
        try:
            with _quiet(), _integer_windows(), torch.no_grad():
                program = torch.export.export(network, (tested[0],), dynamic_shapes=(shapes,))
                if kind == 'onnx':
                    _save_onnx(program, tested[0], shapes, part, note)
                else:
                    with open(part, 'wb') as stream:
                        torch.export.save(program, stream, extra_files={NOTE: json.dumps(note)})
        except Exception as error:
            hint = ' Without --dynamic, or with --dynamic batch, it may be.' if dynamic == 'all' else ''
            raise UserFileError(f'the network cannot be written as {kind}: {one_line(error)[:300]}{hint}') from error
        with torch.no_grad():
            difference = max(relative_difference(run_file(part, kind, each), network(each)) for each in tested)
        if not difference < TOLERANCE:
            raise UserFileError(
                f'the logits in {kind} differ from those in torch by {difference:.1g} of the largest. '
                'Nothing was written.'
            )
    return difference


def check_script(out: Path, overwrite: bool) -> Path:
    """The script to write beside a network, checked as :func:`~mmrm.utils.files.check_out` does."""
    script = out.with_name(SCRIPT.name)
    same = script.is_file() and script.read_bytes() == SCRIPT.read_bytes()
    return script if same else check_out(script, overwrite)


def write_script(out: Path, note: Dict[str, Any], reader: Reader, preprocessor: nn.Module) -> Optional[Path]:
    """Write ``predict_onnx.py`` beside a network, if it reads images as the test pipeline does.

    Args:
        out: The network.
        note: What the network says of itself.
        reader: Reads files as the test pipeline does.
        preprocessor: The data preprocessor of the classifier.

    Returns:
        The script; None if it knows another step or size of the pipeline not.
    """
    with tempfile.TemporaryDirectory() as folder:
        for width, height in ((400, 300), (310, 410)):
            file = Path(folder) / f'{width}.png'
            Image.effect_noise((width, height), 64).convert('RGB').save(file)
            expected = normalise(reader(file), preprocessor).cpu().numpy()
            try:
                found = predict_onnx.read_image(file, note)
            except Exception:
                return None
            if list(found.shape[2:]) != note['size'] or found.shape != expected.shape:
                return None
            if np.abs(found - expected).max() > 1e-3:
                return None
    return write_text(out.with_name(SCRIPT.name), SCRIPT.read_text(encoding='utf-8'), overwrite=True)


def check_any_size(network: nn.Module) -> None:
    """Raise if a network has attention: its program is for one size, and the exporters take very long to say so."""
    found = {type(module).__name__ for module in network.modules()}
    attention = sorted(name for name in found if 'Attention' in name or name.endswith('MSA'))
    if attention:
        raise UserValueError(
            f'--dynamic all is for networks without attention, and this one has {attention[0]}: its program is for one '
            'size. --dynamic batch takes any number of images.'
        )


def _images(number: int, size: Tuple[int, int]) -> torch.Tensor:
    return torch.randn(number, 3, *size, generator=torch.Generator().manual_seed(0))


def _save_onnx(program, images: torch.Tensor, shapes: Optional[dict], part: Path, note: Dict[str, Any]) -> None:
    import onnx

    saved = torch.onnx.export(
        program,
        (images,),
        dynamo=True,
        verbose=False,
        input_names=['images'],
        output_names=['logits'],
        dynamic_shapes=(shapes,),
    )
    model = saved.model_proto
    properties = {key: value if isinstance(value, str) else json.dumps(value) for key, value in note.items()}
    onnx.helper.set_model_props(model, properties)
    onnx.checker.check_model(model)
    part.write_bytes(model.SerializeToString())


def run_file(file: Union[str, Path], kind: str, images: torch.Tensor) -> torch.Tensor:
    """What a file that was written here says of normalised images: in onnxruntime, or in torch."""
    if kind == 'onnx':
        import onnxruntime

        session = onnxruntime.InferenceSession(Path(file).read_bytes(), providers=['CPUExecutionProvider'])
        return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])
    with open(file, 'rb') as stream, torch.no_grad():
        return torch.export.load(stream).module()(images)


@contextmanager
def _integer_windows() -> Iterator[None]:
    """mmpretrain's Swin counts images in floating point, which fixes their number in a program; here in integers."""
    from mmpretrain.models.utils.attention import ShiftWindowMSA

    def window_reverse(windows: torch.Tensor, height: int, width: int, side: int) -> torch.Tensor:
        channels = windows.shape[-1]
        windows = windows.view(-1, height // side, width // side, side, side, channels)
        return windows.permute(0, 1, 3, 2, 4, 5).reshape(-1, height, width, channels)

    before = ShiftWindowMSA.__dict__['window_reverse']
    ShiftWindowMSA.window_reverse = staticmethod(window_reverse)
    try:
        yield
    finally:
        ShiftWindowMSA.window_reverse = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings and notes; what fails is raised."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(level)
