"""The command ``mmrm``: ``mmrm COMMAND ...`` runs ``main`` of ``mmrm/cli/<command>.py``.

Nothing but the standard library is imported before a command is known, and each command parses its arguments before it
imports torch: lists, helps and mistyped names do not wait.
"""

import difflib
import importlib
import os
import sys
from typing import Optional, Sequence

# In the order of the work.
COMMANDS = dict(
    init='Write a config for a folder of images of your own.',
    check='Check a config before a long run: the model builds, its weights load, its data is there.',
    train='Train a classification, detection or segmentation config.',
    test='Test a checkpoint with its config.',
    compare='Train with several mixing methods and seeds, and compare them in one table.',
    predict='Predict the classes of images, and show where they are seen.',
    export='Write weights for other programs: a backbone, a classifier, ONNX, a folder for a model hub.',
    report='Write a page about runs: curves, tables, pictures.',
    tables="The paper's tables, with the results of runs.",
)
# What `pip install` needs for a package, where a command finds it missing.
INSTALL = {
    **dict.fromkeys(('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'yaml', 'cv2', 'PIL'), 'mmrm[openmmlab]'),
    **dict.fromkeys(('jinja2', 'matplotlib', 'rich', 'safetensors', 'scipy', 'torchvision'), 'mmrm[openmmlab]'),
    **dict.fromkeys(('onnx', 'onnxruntime', 'onnxscript'), 'mmrm[onnx]'),
    **dict.fromkeys(('pytorch_grad_cam', 'tensorboard'), 'mmrm[analysis]'),
    'timm': 'timm',
}


def listing() -> str:
    """What ``mmrm`` alone prints."""
    lines = [f'  {name:8} {text}' for name, text in COMMANDS.items()]
    return '\n'.join(['usage: mmrm COMMAND ...        (mmrm COMMAND --help lists its options)', '', *lines])


def fail(message: str) -> None:
    print(f'error: {message}', file=sys.stderr, flush=True)
    sys.exit(2)


def hide_gpus(argv: Sequence[str]) -> None:
    """``--device cpu`` or ``MMRM_DEVICE=cpu``: counts only before torch looks for a GPU."""
    asked = dict(zip(argv, argv[1:])).get('--device', os.environ.get('MMRM_DEVICE'))
    if asked == 'cpu' or '--device=cpu' in argv:
        os.environ['CUDA_VISIBLE_DEVICES'] = ''


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run a command; ``argv`` defaults to the command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ('-h', '--help', 'help'):
        try:
            print(listing(), flush=True)
        except BrokenPipeError:  # mmrm | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    name = argv[0]
    if name in ('-V', '--version'):
        from ..version import __version__

        print(f'mmrm {__version__}')
        return
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=3, cutoff=0.5)
        hint = f'did you mean {" or ".join(near)}?' if near else f'the commands are {", ".join(COMMANDS)}.'
        fail(f'mmrm has no command {name!r}; {hint} (mmrm alone lists them)')
    hide_gpus(argv)
    # Of OpenCV, for every data set: Pillow's limit, as in mmrm.datasets.images. Read when cv2 is imported.
    os.environ.setdefault('OPENCV_IO_MAX_IMAGE_PIXELS', '178956970')
    try:
        importlib.import_module(f'mmrm.cli.{name}').main(argv[1:])
    except ModuleNotFoundError as error:
        package = INSTALL.get((error.name or '').partition('.')[0])
        if package is None:  # of the user's config or of mmrm itself
            raise
        fail(f'mmrm {name} needs {error.name}, which is not installed: pip install {package}')
