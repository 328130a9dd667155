"""Look at a folder of images and write a config that trains a network on it with RM.

The recipe is chosen here, not published: RM as in the paper (alpha 0.5, omega 0.5), and for the rest what usually works
when a network that knows ImageNet is trained on other photographs.
"""

import argparse
import difflib
import hashlib
import os
import pprint
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..utils.errors import UserError, UserFileError, UserValueError, cli, one_line
from ..utils.files import atomic_write, write_text
from ..utils.paths import find, show_path
from .check import check, inspect_images, odd_images
from .options import Parser, positive

PART_NAMES = dict(  # of folders, in small letters
    train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test', 'testing')
)
NOT_CLASSES = ('__MACOSX',)  # besides those that begin with a dot
OFFLINE = (
    'Without the network: fetch the file on another machine and give it with --weights FILE, start from a run of yours '
    'with --weights FOLDER, or from scratch, which needs far more images, with --weights none.'
)


class Network(NamedTuple):
    """Args:
    backbone (str): Its config, as text.
    channels (int): Of its last feature map.
    adamw (bool): Whether it is trained with AdamW, as transformers are, instead of SGD.
    torchvision (str): torchvision's name of its weights, '' without any.
    timm (str): timm's name of it, '' without any.
    mean, std (tuple[float]): Of the pixels that its weights were trained on, 0 to 255, RGB.
    """

    backbone: str
    channels: int
    adamw: bool = False
    torchvision: str = ''
    timm: str = ''
    mean: Tuple[float, ...] = (123.675, 116.28, 103.53)
    std: Tuple[float, ...] = (58.395, 57.12, 57.375)


NETWORKS = {
    **{
        f'resnet{depth}': Network(
            f"dict(type='ResNet', depth={depth})", channels, torchvision=f'resnet{depth}', timm=f'resnet{depth}'
        )
        for depth, channels in ((18, 512), (34, 512), (50, 2048), (101, 2048))
    },
    'pvtv2-b1': Network(
        "dict(\n        type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[2, 2, 2, 2], "
        'drop_path_rate=0.1,\n        out_indices=(3, ))',
        512,
        adamw=True,
        timm='pvt_v2_b1',
    ),
}


# --------------------------------------------------------------------------------------------------------- the command
def fraction(text: str) -> float:
    """An argument above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0 and below 1')
    return value


def build_parser() -> Parser:
    parser = Parser(prog='mmrm init', description=__doc__.partition('\n')[0], allow_abbrev=False)
    parser.add_argument('folder', help='a folder per class in it, or train, val and perhaps test with these')
    parser.add_argument('--out', metavar='FILE.py', help="config to write (default: the folder's name, here)")
    parser.add_argument(
        '--network',
        help=f'one of {", ".join(NETWORKS)}, or timm/NAME (default: resnet50, or resnet18 below 2,000 training images)',
    )
    parser.add_argument(
        '--weights',
        metavar='torchvision|timm|FILE|RUN|none',
        help="where training starts; torchvision's and timm's are fetched once (default: torchvision, else timm)",
    )
    parser.add_argument('--size', type=positive, help="side of the network's input (default: 224, or 128)")
    parser.add_argument('--epochs', type=positive, help='length of the training (default: by the number of images)')
    parser.add_argument('--batch', type=positive, help='images per process (default: 32, fewer for small folders)')
    parser.add_argument(
        '--val', type=fraction, default=0.2, help='fraction of each class for validation without val (default: 0.2)'
    )
    parser.add_argument('--quick', action='store_true', help='read headers and ends of the images, do not decode them')
    parser.add_argument('--jobs', type=positive, metavar='N', help='threads that decode (default: one per core)')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(argv)
    config = config_path(args.out, Path(args.folder))
    folder = read_folder(find(args.folder))
    findings = inspect_images(folder.files(), decode=not args.quick, jobs=args.jobs)
    broken = [finding for finding in findings if finding.problem]
    folder = without_broken(folder, {finding.path for finding in broken})
    if 'val' not in folder.parts:
        folder = split_off(folder, args.val)
        folder.notes.append(
            f'there is no val folder: {folder.count("val"):,} images, {args.val:.0%} of each class, are put aside, the '
            'same ones every time'
        )
    print(f'folder      {folder.root}')
    print('\n'.join(describe(folder, findings)))
    for finding in broken:
        print(f'broken      {finding.path} {finding.problem}')
    if broken:
        print(f'note        {len(broken)} broken image(s), left out of the lists')
    size, images = args.size or choose_size(findings), folder.count('train')
    name, network = choose_network(args.network, images, size)
    start = choose_weights(args.weights, name, network, config)
    recipe = choose_recipe(images, size, network.adamw, not start.checkpoint, args.batch, args.epochs)
    title = (
        f'{folder.root.name}: {len(folder.classes)} classes, {images:,} training and {folder.count("val"):,} '
        f'validation images. Made by: {shlex.join(["mmrm", "init", *argv])}'
    )
    written = write(config_text(folder, network, start, recipe, config, title), folder, start, config)
    problems = check(config).problems
    if problems:
        for path in written:
            path.unlink()
        raise UserError(f'no config was written: {"; ".join(problems)}')
    print(
        f'config      {show_path(config)}: {name} {start.words}, {recipe.size} pixels, batch {recipe.batch}, '
        f'{recipe.epochs} epochs, lr {recipe.lr:g}'
    )
    if len(written) > 1:
        print(f'with it     {", ".join(path.name for path in written[:-1])}')
    print(f'next        mmrm check --data {show_path(config)}, then mmrm train {show_path(config)}')


def config_path(out: Optional[str], folder: Path) -> Path:
    """The config to write: ``out``, else the name of the folder as far as it makes one."""
    default = re.sub(r'\W+', '_', folder.resolve().name).strip('_') or 'images'
    path = Path(out or f'{default}.py').expanduser().absolute()
    if path.suffix != '.py':
        raise UserValueError(f'--out {out}: the name of a config ends in .py')
    if not path.parent.is_dir():
        raise UserFileError(f'--out {out}: the folder {path.parent} does not exist.')
    check_free([path])
    return path


# ---------------------------------------------------------------------------------------------------------- the folder
class ImageFolder(NamedTuple):
    """Args:
    root (Path): The folder.
    classes (tuple[str]): In the order of their labels, which is that of their names.
    parts (dict): 'train', perhaps 'val' and 'test': the files of each class, relative to ``root``.
    prefixes (dict): The folder of each part, relative to ``root``.
    notes (list[str]): What else was found.
    plain (bool): Whether a data set that lists the folders itself finds exactly these classes and files.
    """

    root: Path
    classes: Tuple[str, ...]
    parts: Dict[str, Dict[str, List[str]]]
    prefixes: Dict[str, str]
    notes: List[str]
    plain: bool = True

    def count(self, part: str) -> int:
        return sum(map(len, self.parts[part].values()))

    def files(self) -> List[str]:
        """The paths of all images."""
        return [str(self.root / name) for part in self.parts.values() for names in part.values() for name in names]


def read_folder(root: Path) -> ImageFolder:
    """Find the classes and their files.

    Args:
        root (Path): A folder with one folder per class, or with ``train`` and perhaps ``val`` and ``test`` like it.

    Raises:
        UserFileError: If it is neither.
    """
    if not root.is_dir():
        raise UserFileError(f'{root} {"is a file" if root.exists() else "does not exist"}; give a folder of images.')
    root, notes = root.resolve(), []
    names = _subfolders(root)
    prefixes = {part: name for part, known in PART_NAMES.items() for name in names if name.lower() in known}
    if 'train' not in prefixes:
        prefixes = dict(train='')
    others = [name for name in names if name not in prefixes.values()]
    if prefixes['train'] and others:
        notes.append(f'next to {prefixes["train"]} there is {_abbreviate(others)}, which is not used')
    parts, plain = {}, True
    for part, prefix in list(prefixes.items()):
        parts[part], only_classes = _class_files(root, prefix, notes)
        plain &= only_classes
        if part != 'train' and not parts[part]:
            notes.append(f'{prefix} has no class folders with images and is not used')
            del parts[part], prefixes[part]
    classes = tuple(sorted(parts['train']))
    folder = ImageFolder(root, classes, parts, prefixes, notes, plain)
    _check_folder(folder)
    for part in parts:
        missing = [name for name in classes if name not in parts[part]]
        if missing:
            notes.append(f'{prefixes[part]} has no images of {_abbreviate(missing)}')
            folder = folder._replace(plain=False)
    return folder


def _subfolders(folder: Path) -> List[str]:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [name for name in names if not name.startswith('.') and name not in NOT_CLASSES]


def _class_files(root: Path, prefix: str, notes: List[str]) -> Tuple[Dict[str, List[str]], bool]:
    """The images of each class folder, and whether there is no folder that is not a class."""
    from ..datasets.images import EXTENSIONS

    folder, found = root / prefix, {}
    names = _subfolders(folder)
    for name in names:
        images, others = [], []
        for place, below, files in os.walk(folder / name):
            below[:] = sorted(each for each in below if not each.startswith('.'))
            for file in sorted(file for file in files if not file.startswith('.')):
                kind = images if file.lower().endswith(EXTENSIONS) else others
                kind.append((Path(place) / file).relative_to(root).as_posix())
        if others:
            endings = sorted({Path(each).suffix or Path(each).name for each in others})
            notes.append(f'{Path(prefix) / name}: {len(others)} other files ({_abbreviate(endings)}) are not used')
        if images:
            found[name] = images
        else:
            notes.append(f'{Path(prefix) / name} has no images and is not a class')
    loose = sum(entry.is_file() and entry.name.lower().endswith(EXTENSIONS) for entry in os.scandir(folder))
    if loose and found:
        notes.append(f'{loose} images in {folder} itself, without a class, are not used')
    return found, len(found) == len(names) and not any((folder / name).is_dir() for name in NOT_CLASSES)


def _check_folder(folder: ImageFolder) -> None:
    from ..datasets.images import EXTENSIONS

    train = folder.root / folder.prefixes['train']
    if not folder.classes:
        raise UserFileError(
            f'{train} has no class folders with images ({", ".join(EXTENSIONS)}): put the images of each class into a '
            'folder of its own.'
        )
    if len(folder.classes) == 1:
        raise UserFileError(f'{train} has one class folder with images, {folder.classes[0]}; two or more are needed.')
    for part, classes in folder.parts.items():
        unknown = sorted(set(classes) - set(folder.classes))
        if unknown:
            near = difflib.get_close_matches(unknown[0], folder.classes, n=1)
            hint = f' (is {unknown[0]} meant to be {near[0]}?)' if near else ''
            place = folder.root / folder.prefixes[part]
            raise UserFileError(f'{place} has classes that {train} lacks: {_abbreviate(unknown)}{hint}.')
    for name in (name for part in folder.parts.values() for names in part.values() for name in names):
        if name != name.strip() or '\n' in name:
            raise UserFileError(f'rename {name!r}: a list of files cannot hold a line break, or a blank at an end.')


def without_broken(folder: ImageFolder, broken: set) -> ImageFolder:
    """The folder without the files that cannot be decoded.

    Raises:
        UserFileError: If a class has nothing left to train on.
    """
    if not broken:
        return folder
    parts = {
        part: {name: [file for file in files if str(folder.root / file) not in broken] for name, files in found.items()}
        for part, found in folder.parts.items()
    }
    lost = [name for name, files in parts['train'].items() if not files]
    if lost:
        raise UserFileError(f'every training image of {_abbreviate(lost)} is broken.')
    return folder._replace(parts=parts, plain=False)


def split_off(folder: ImageFolder, share: float) -> ImageFolder:
    """Put a share of each class aside for validation, the same files every time, wherever the folder is.

    The order is that of a hash of each file's name: images that are added or removed later do not move the others.
    """
    train: Dict[str, List[str]] = {}
    val: Dict[str, List[str]] = {}
    for name, files in folder.parts['train'].items():
        if len(files) == 1:
            folder.notes.append(f'{name} has a single image, which is used for training only')
        ordered = sorted(files, key=lambda file: hashlib.sha256(file.encode()).hexdigest())
        number = min(max(1, round(share * len(files))), len(files) - 1)
        val[name], train[name] = sorted(ordered[:number]), sorted(ordered[number:])
    return folder._replace(parts=dict(folder.parts, train=train, val=val), plain=False)


def _abbreviate(names: Sequence[str], number: int = 5) -> str:
    return ', '.join(names[:number]) + (f', ... {len(names) - number} more' if len(names) > number else '')


def describe(folder: ImageFolder, findings: Sequence) -> List[str]:
    """What was found, a line each."""
    lines = [f'classes     {len(folder.classes):,}']
    for part, classes in folder.parts.items():
        counts = {name: len(classes.get(name, ())) for name in folder.classes}
        shown = _abbreviate([f'{name} {count:,}' for name, count in counts.items()], 8)
        lines.append(f'{part:5}       {sum(counts.values()):,} images: {shown}')
        low, high = min(counts.values()), max(counts.values())
        if part == 'train' and high > 10 * max(low, 1):
            lines.append(f'note        the classes are uneven: from {low:,} to {high:,} images')
    sizes = sorted((finding.size for finding in findings if finding.size), key=lambda size: size[0] * size[1])
    if sizes:
        low, middle, high = (f'{width} x {height}' for width, height in (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
        lines.append(f'sizes       from {low} to {high}, half of them below {middle}')
    return lines + [f'note        {note}' for note in (*folder.notes, *odd_images(findings))]


# ---------------------------------------------------------------------------------------------------------- the recipe
def choose_network(name: Optional[str], images: int, size: int) -> Tuple[str, Network]:
    """The network of a name: one of ``NETWORKS`` or ``timm/NAME``; None chooses by the number of images.

    Raises:
        UserValueError: If there is none, or if timm's has no feature map.
    """
    name = name or ('resnet18' if images < 2000 else 'resnet50')
    if name.startswith('timm/'):
        return name, _timm_network(name.removeprefix('timm/'), size)
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, n=1)
        hint = f' Did you mean {near[0]}?' if near else ''
        raise UserValueError(f'--network {name}: one of {", ".join(NETWORKS)}, or timm/NAME, is allowed.{hint}')
    return name, NETWORKS[name]


def _import_timm(option: str):
    try:
        import timm
    except ImportError:
        raise UserError(f'{option} needs timm, which is not installed: pip install timm') from None
    return timm


def _timm_network(name: str, size: int) -> Network:
    import torch

    timm = _import_timm(f'--network timm/{name}')
    base = name.partition('.')[0]
    if not timm.is_model(base):
        near = difflib.get_close_matches(base, timm.list_models(), n=3)
        hint = f' Did you mean {", ".join(f"timm/{each}" for each in near)}?' if near else ''
        raise UserValueError(f'--network timm/{name}: timm {timm.__version__} has no model {base}.{hint}')
    model = timm.create_model(name, pretrained=False)
    model.reset_classifier(0, '')
    try:
        with torch.no_grad():
            features = model.eval()(torch.zeros(1, 3, size, size))
    except Exception as error:  # whatever a network raises for a size that it does not take
        message = f'--network timm/{name} does not take images of {size} pixels: {one_line(error)}'
        raise UserValueError(message) from error
    # Channels last, as Swin's, is (1, 7, 7, 768).
    if features.ndim != 4 or features.shape[2] != features.shape[3] or features.shape[1] <= features.shape[2]:
        raise UserValueError(
            f'--network timm/{name} returns features of {tuple(features.shape)}, not a map with channels first; RM '
            'needs one.'
        )
    return Network(
        f"dict(type='TIMMBackbone', model_name={name!r})",
        features.shape[1],
        adamw=any(isinstance(module, torch.nn.LayerNorm) for module in model.modules()),
        timm=name,
        mean=tuple(round(255 * value, 3) for value in model.pretrained_cfg['mean']),
        std=tuple(round(255 * value, 3) for value in model.pretrained_cfg['std']),
    )


def choose_size(findings: Sequence) -> int:
    """The side of the network's input: 224, or 128 for small images, which would only be blurred by more."""
    sides = [min(finding.size) for finding in findings if finding.size]
    return 128 if sides and statistics.median(sides) < 128 else 224


class Recipe(NamedTuple):
    """Args:
    size (int): Side of the input in pixels.
    batch (int): Images per process.
    epochs (int): Length.
    warmup (int): Epochs of warm-up.
    lr (float): Learning rate for a batch of that size.
    """

    size: int
    batch: int
    epochs: int
    warmup: int
    lr: float


def choose_recipe(
    images: int, size: int, adamw: bool, scratch: bool, batch: Optional[int] = None, epochs: Optional[int] = None
) -> Recipe:
    """Length and learning rate for so many training images, and batch and epochs unless they are given.

    About 6,000 iterations from pretrained weights, 30,000 from scratch, within 20 to 100 and 100 to 300 epochs.
    """
    usual = 32
    while usual > 8 and images < 16 * usual:
        usual //= 2
    low, high, iterations = (100, 300, 30000) if scratch else (20, 100, 6000)
    epochs = epochs or min(max(round(iterations / -(-images // usual)), low), high)
    batch = batch or usual
    base = {(False, False): 0.01 / 64, (False, True): 0.2 / 512, (True, False): 1e-4 / 64, (True, True): 5e-4 / 512}
    return Recipe(size, batch, epochs, min(5, epochs // 2), float(f'{base[adamw, scratch] * batch:.3g}'))


# --------------------------------------------------------------------------------------------------------- the weights
class Start(NamedTuple):
    """Where training starts.

    Args:
        checkpoint (str): For ``StrictPretrained``, a path or an address; '' for from scratch.
        words (str): The same for the user.
        tensors (dict, optional): What has to be written to ``checkpoint``.
    """

    checkpoint: str
    words: str
    tensors: Optional[dict] = None


def choose_weights(source: Optional[str], name: str, network: Network, config: Path) -> Start:
    """Get the weights that training starts from, so that missing ones are an error now.

    Args:
        source (str, optional): 'torchvision', 'timm', 'none', a file or a run's folder; None takes torchvision's, else
            timm's.
        name (str): Of the network.
        network (Network): What it is.
        config (Path): The config; weights of timm are written next to it.
    """
    from ..weights.runs import find_checkpoint

    source = source or ('torchvision' if network.torchvision else 'timm')
    if source == 'none':
        return Start('', 'from scratch')
    if source == 'torchvision':
        if not network.torchvision:
            raise UserValueError(f'--weights torchvision: none for {name}; timm, FILE, RUN or none is allowed.')
        address = f'torchvision://{network.torchvision}'
        try:
            find_checkpoint(address)
        except UserError as error:
            raise UserFileError(f'{error} {OFFLINE}') from error
        return Start(address, "from torchvision's weights")
    converted = str(config.with_name(f'{config.stem}_timm.pth'))
    if source == 'timm':
        return Start(converted, "from timm's weights", _timm_tensors(name, network))
    file = find_checkpoint(source).resolve()
    if name.startswith('timm/'):  # timm's own names lack those of the backbone around it
        return Start(converted, f'from {show_path(file)}', _timm_tensors(name, network, file))
    return Start(str(find(source).resolve()), f'from {show_path(find(source))}')


def _timm_tensors(name: str, network: Network, file: Optional[Path] = None) -> dict:
    """timm's weights, or those of a file, under the names of the backbone in the config."""
    from ..weights.provenance import read_weights

    timm = _import_timm('--weights timm')
    tensors = read_weights(file).tensors if file else {}
    own = {key: value for key, value in tensors.items() if key.startswith('backbone.')}
    if own:
        return own
    try:
        model = timm.create_model(network.timm, pretrained=file is None)
    except Exception as error:  # a hub raises many kinds
        raise UserFileError(
            f"timm's weights of {network.timm} could not be fetched: {one_line(error)}. {OFFLINE}"
        ) from error
    classifier = model.pretrained_cfg['classifier'] or ()
    classifier = [classifier] if isinstance(classifier, str) else classifier
    if file is None:
        model.reset_classifier(0, '')
        tensors = model.state_dict()
    prefix = 'backbone.timm_model.' if name.startswith('timm/') else ''
    skipped = tuple(f'{each}.' for each in classifier)
    return {prefix + key: value for key, value in tensors.items() if not key.startswith(skipped)}


# ------------------------------------------------------------------------------------------------------------ the text
TEMPLATE = """\
# {title}
#   mmrm check --data {file}    does the model build, do the weights fit, is any image broken?
#   mmrm train {file}           and after that: mmrm test {file} work_dirs/{stem}
_base_ = ['mmpretrain::_base_/default_runtime.py']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)

data_root = {root}
classes = {classes}

# RecursiveMix is the preprocessor's batch augment; its consistency loss is the head's. omega=0 leaves that out.
model = dict(
    type='ImageClassifier',
    {start}
    data_preprocessor=dict(
        type='RMDataPreprocessor',
        num_classes={number},
        mean={mean},
        std={std},
        to_rgb=True,
        batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5))),
    backbone={backbone},
    neck=None,
    head=dict(
        type='RMConsistencyHead',
        num_classes={number},
        in_channels={channels},
        omega=0.5,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RMRandomResizedCrop', scale={size}),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale={edge}, edge='short', backend='pillow'),
    dict(type='CenterCrop', crop_size={size}),
    dict(type='PackInputs'),
]
# A broken image is an error that names it; with skip_broken=True, for training, the next one takes its place.
dataset = dict(type='RMImageFolder', data_root=data_root, metainfo=dict(classes=classes))
loader = dict(batch_size={batch}, num_workers=4, persistent_workers=True, collate_fn=dict(type='default_collate'))
train_dataloader = dict(
    loader,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(dataset, {train}, skip_broken=False, pipeline=train_pipeline))
val_dataloader = dict(
    loader,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(dataset, {val}, pipeline=test_pipeline))
test_dataloader = {test}
val_evaluator = dict(type='Accuracy', topk={topk})
test_evaluator = val_evaluator

train_cfg = dict(by_epoch=True, max_epochs={epochs}, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(optimizer={optimizer})
param_scheduler = dict(type='RMCosineLR', warmup={warmup})  # over all epochs
auto_scale_lr = dict(base_batch_size={batch})  # --auto-scale-lr: for another batch, or several GPUs

# The best epoch and the last two are kept.
default_hooks = dict(
    logger=dict(interval=20),
    checkpoint=dict(max_keep_ckpts=2, save_best='accuracy/top1', rule='greater'))
custom_hooks = [dict(type='CheckClassesHook'), dict(type='ResetHistoryHook'), dict(type='RandomStateHook')]
log_processor = dict(mean_pattern=r'.*(loss|time|data_time|grad_norm|rm_).*')
randomness = dict(seed=0, diff_rank_seed=True)
"""


def in_config(path: str, config: Path) -> str:
    """A path as a config writes it: relative to its own folder where it is below that, else absolute."""
    folder = config.resolve().parent
    if '://' not in path and folder in Path(path).resolve().parents:
        return repr(f'{{{{ fileDirname }}}}/{Path(path).resolve().relative_to(folder).as_posix()}')
    return repr(path)


def list_file(config: Path, part: str) -> Path:
    """Where the list of a part is written."""
    return config.with_name(f'{config.stem}_{part}.txt')


def config_text(folder: ImageFolder, network: Network, start: Start, recipe: Recipe, config: Path, title: str) -> str:
    """The config of a folder."""

    def source(part: str) -> str:
        if folder.plain:
            return f'data_prefix={folder.prefixes[part]!r}'
        return f'ann_file={in_config(str(list_file(config, part)), config)}'

    init = 'init_cfg=None,  # from scratch'
    if start.checkpoint:
        init = f"init_cfg=dict(type='StrictPretrained', checkpoint={in_config(start.checkpoint, config)}),"
    decay = 'weight_decay=0.05' if network.adamw else 'momentum=0.9, weight_decay=1e-4'
    test = 'val_dataloader'
    if 'test' in folder.parts:
        test = f'dict(\n    val_dataloader, dataset=dict(dataset, {source("test")}, pipeline=test_pipeline))'
    return TEMPLATE.format(
        title=title,
        file=config.name,
        stem=config.stem,
        root=in_config(str(folder.root), config),
        classes=pprint.pformat(list(folder.classes), width=110, compact=True),
        start=init,
        number=len(folder.classes),
        mean=list(network.mean),
        std=list(network.std),
        backbone=network.backbone,
        channels=network.channels,
        edge=round(recipe.size * 256 / 224),
        train=source('train'),
        val=source('val'),
        test=test,
        topk=(1, 5) if len(folder.classes) > 5 else (1,),
        optimizer=f'dict(type={"AdamW" if network.adamw else "SGD"!r}, lr={recipe.lr:g}, {decay})',
        **recipe._asdict(),
    )


def check_free(files: Sequence[Path]) -> None:
    """Raise if one of the files exists: nothing is ever overwritten."""
    taken = next((path for path in files if path.exists()), None)
    if taken:
        raise UserFileError(
            f'{show_path(taken)} exists and is not overwritten; remove it, or give another --out FILE.py.'
        )


def write(text: str, folder: ImageFolder, start: Start, config: Path) -> List[Path]:
    """Write the lists, the weights and, last, the config; returns the files."""
    import torch

    lists = {}
    for part, classes in folder.parts.items():
        labelled = [(file, label) for label, name in enumerate(folder.classes) for file in classes.get(name, ())]
        lists[list_file(config, part)] = ''.join(f'{file} {label}\n' for file, label in labelled)
    texts = {**({} if folder.plain else lists), config: text}
    weights = [Path(start.checkpoint)] if start.tensors is not None else []
    check_free([*weights, *texts])
    for path in weights:
        with atomic_write(path) as part:
            torch.save({key: value.contiguous() for key, value in start.tensors.items()}, part)
    for path, content in texts.items():
        write_text(path, content)
    return [*weights, *texts]
