"""Look at a folder of images and write a config that trains a network on it, with RM or another mixing method.

With SGD from pretrained weights the schedule and the mixing are those of projects/finetune; from scratch, and for
transformers, the mixing has the paper's values, and the schedule is what usually works.
"""

import argparse
import difflib
import hashlib
import pprint
import re
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..utils.errors import UserError, UserFileError, UserValueError, abbreviate, cli, one_line, printable
from ..utils.files import atomic_write, check_out, write_text
from ..utils.paths import find, show_path
from ..utils.processes import clock, cores
from .check import check, inspect_images, odd_images
from .options import METHOD, METHODS, OMEGA, Parser, positive

# Of folders, in small letters.
PART_NAMES = dict(train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test', 'testing'))
# SGD from pretrained weights, from the pilots of projects/finetune: the learning rate of all methods for a batch of 32,
# and the settings of each. Where there is a probability, the last tenth of the epochs is not mixed.
RATE = 0.00866
TUNED: Dict[str, Dict[str, float]] = dict(
    none={}, mixup=dict(alpha=0.2), cutmix=dict(prob=0.5), rm=dict(prob=0.5, omega=0.5)
)
MEASURED = """
#   Top-1 of EfficientNet-Lite0 on 1,850 Oxford pets at 112 px, 45 epochs (docs/when_rm_helps.md):
#   none 78.7, Mixup 78.6, CutMix 77.4, RM 77.8, each at its own learning rate; RM at none's 78.5"""
OFFLINE = ' Without the network: --weights FILE, --weights RUN, or --weights none, which needs far more images.'
VIT = dict(pretrained=False, features_only=True, out_indices=[-1])  # arguments of timm for the map of a plain ViT


class Network(NamedTuple):
    """Args:
    backbone (str): Its config, as text.
    channels (int): Of its last feature map.
    adamw (bool): Whether it is trained with AdamW, as transformers are, instead of SGD.
    timm (str): timm's name of it.
    torchvision (bool): Whether torchvision has weights of it.
    mean, std (tuple[float]): Of the pixels that its weights were trained on, 0 to 255, RGB.
    """

    backbone: str
    channels: int
    timm: str
    adamw: bool = False
    torchvision: bool = False
    mean: Tuple[float, ...] = (123.675, 116.28, 103.53)
    std: Tuple[float, ...] = (58.395, 57.12, 57.375)


NETWORKS = {
    **{
        f'resnet{depth}': Network(f"dict(type='ResNet', depth={depth})", channels, f'resnet{depth}', torchvision=True)
        for depth, channels in ((18, 512), (34, 512), (50, 2048), (101, 2048))
    },
    'pvtv2-b1': Network(
        "dict(\n        type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[2, 2, 2, 2], "
        'drop_path_rate=0.1,\n        out_indices=(3, ))',
        512,
        'pvt_v2_b1',
        adamw=True,
    ),
}


# --------------------------------------------------------------------------------------------------------- the command
def fraction(text: str) -> float:
    """An argument above 0 and below 1."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0 and below 1')
    return value


def build_parser() -> Parser:
    parser = Parser(prog='mmrm init', description=__doc__.partition('\n')[0], allow_abbrev=False)
    parser.add_argument('folder', help='folder with one folder per class, or with train, val and optionally test')
    parser.add_argument('--classes', action='store_true', help='every folder is a class, even train, val and test')
    parser.add_argument('--method', choices=list(METHODS), default=METHOD, help=f'mixing method (default: {METHOD})')
    parser.add_argument('--out', metavar='FILE.py', help="config to write (default: the folder's name, here)")
    networks = f'{", ".join(NETWORKS)} or timm/NAME (default: resnet50; resnet18 below 2,000 images)'
    parser.add_argument('--network', metavar='NAME', help=networks)
    weights = 'torchvision, timm, FILE, RUN or none: where training starts (default: torchvision, else timm)'
    parser.add_argument('--weights', metavar='SOURCE', help=weights)
    parser.add_argument('--size', type=positive, help="side of the network's input (default: 224, or 128)")
    parser.add_argument('--epochs', type=positive, help='epochs (default: by the number of images)')
    parser.add_argument('--batch', type=positive, help='images per process (default: 32, fewer for small folders)')
    parser.add_argument('--val', type=fraction, default=0.2, help='fraction for validation without val (default: 0.2)')
    parser.add_argument('--quick', action='store_true', help='read only headers and ends of the images')
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(argv)
    config = config_path(args.out, Path(args.folder))
    folder = read_folder(find(args.folder), args.classes)
    findings = inspect_images(folder.files(), decode=not args.quick)
    broken = [finding for finding in findings if finding.problem]
    if broken:
        folder = without_broken(folder, {finding.path for finding in broken})
    if 'val' not in folder.parts:
        folder = split_off(folder, args.val)
    print(f'folder      {folder.root}')
    for finding in broken:
        print(printable(f'broken      {finding.path} {finding.problem}'))
    print(printable('\n'.join(describe(folder, findings))))
    size, images = args.size or choose_size(findings), folder.count('train')
    name, network = choose_network(args.network, images, size)
    checkpoint, tensors = choose_weights(args.weights, name, network, config)
    recipe = choose_recipe(images, network.adamw, not checkpoint, args.method, args.batch, args.epochs)
    recipe.update(size=size, method=args.method)
    title = (
        f'{folder.root.name}: {len(folder.classes)} classes, {images:,} training and {folder.count("val"):,} '
        f'validation images. Made by: {shlex.join(["mmrm", "init", *argv])}'
    )
    lists = {} if folder.as_it_is else list_texts(folder, config)
    text = config_text(folder, network, checkpoint, recipe, config, title)
    written = write({**lists, config: text}, checkpoint, tensors)
    problems = check(config).problems
    if problems:
        for path in written:
            path.unlink()
        raise UserError(f'no config was written: {"; ".join(problems)}')
    print(
        f'config      {show_path(config)}: {name} from {checkpoint or "scratch"}, {args.method}, {size} pixels, '
        f'batch {recipe["batch"]}, {recipe["epochs"]} epochs, lr {recipe["lr"]:g}'
    )
    if len(written) > 1:
        print(f'files       {", ".join(path.name for path in written[:-1])}')
    device, seconds = time_of(config, recipe, images)
    print(f'time        about {clock(seconds)} of training on {device}, if reading the images does not take longer')
    more = ' --device cpu' if device == 'cpu' else ''
    print(f'next        mmrm check --data {show_path(config)}\n            mmrm train {show_path(config)}{more}')


def time_of(config: Path, recipe: dict, images: int) -> Tuple[str, float]:
    """The device that would train, and the seconds of all iterations, by those of one: on the CPU of a few images."""
    import torch
    from mmengine.device import get_device
    from mmengine.optim import OptimWrapper
    from mmpretrain.structures import DataSample

    from ..weights.build import build_model, load_config

    device = get_device()
    number = min(4, recipe['batch']) if device == 'cpu' else recipe['batch']
    model = build_model(load_config(config)).to(device).train()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.0))
    times = []
    for _ in range(3):  # the fastest one counts: the first warms up, others may wait for busy cores
        start = time.monotonic()
        inputs = list(torch.randint(0, 256, (number, 3, recipe['size'], recipe['size']), dtype=torch.uint8))
        loss = model.train_step(dict(inputs=inputs, data_samples=[DataSample().set_gt_label(0)] * number), wrapper)
        float(loss['loss'].detach())  # waits for a GPU
        times.append(time.monotonic() - start)
    return device, min(times) / number * images * recipe['epochs']


def config_path(out: Optional[str], folder: Path) -> Path:
    """The config to write: ``out``, else the name of the folder as far as it makes one."""
    default = re.sub(r'\W+', '_', folder.resolve().name).strip('_') or 'images'
    path = Path(out or f'{default}.py').expanduser().absolute()
    check_free([path])
    return check_out(path, suffixes=('.py',))


# ---------------------------------------------------------------------------------------------------------- the folder
class ImageFolder(NamedTuple):
    """Args:
    root (Path): The folder.
    classes (tuple[str]): In the order of their labels, which is that of their names.
    parts (dict): 'train', perhaps 'val' and 'test': the files of each class, relative to ``root``.
    prefixes (dict): The folder of each part, relative to ``root``.
    notes (list[str]): What is not used or was changed.
    """

    root: Path
    classes: Tuple[str, ...]
    parts: Dict[str, Dict[str, List[str]]]
    prefixes: Dict[str, str]
    notes: List[str]

    @property
    def as_it_is(self) -> bool:
        """Whether a data set may list the folders itself: nothing in them is left out. Otherwise it needs lists."""
        return not self.notes

    def count(self, part: str) -> int:
        return sum(map(len, self.parts[part].values()))

    def files(self) -> List[str]:
        """The paths of all images."""
        return [str(self.root / name) for part in self.parts.values() for names in part.values() for name in names]


def read_folder(root: Path, only_classes: bool = False) -> ImageFolder:
    """Find the classes and their files.

    Args:
        root (Path): A folder with one folder per class, or with ``train`` and perhaps ``val`` and ``test`` like it.
        only_classes (bool): Whether folders of these names are classes, too. Defaults to False.

    Raises:
        UserFileError: If it is neither.
    """
    from mmpretrain.datasets.custom import find_folders

    from ..datasets.images import EXTENSIONS

    if not root.is_dir():
        raise UserFileError(f'{root} {"is a file" if root.exists() else "does not exist"}; give a folder of images.')
    root, notes = root.resolve(), []
    names = find_folders(str(root))[0]
    prefixes = {part: name for part, known in PART_NAMES.items() for name in names if name.lower() in known}
    if 'train' not in prefixes or only_classes:
        prefixes = dict(train='')
    others = [name for name in names if name not in prefixes.values() and not name.startswith('.')]
    hint = ''
    if prefixes['train'] and others:
        hint = f'{prefixes["train"]} holds the training images, {abbreviate(others)} is not used (or give --classes)'
        notes.append(hint)
    parts = {part: _class_files(root, prefix, notes) for part, prefix in prefixes.items()}
    train = root / prefixes['train']
    if len(parts['train']) < 2:
        raise UserFileError(
            f'{train} has {len(parts["train"])} class folders with images ({", ".join(EXTENSIONS)}); two or more are '
            f'needed, one per class. {hint}'
        )
    classes = tuple(parts['train'])
    for part in ('val', 'test'):
        found = parts.get(part, classes)
        unknown = [name for name in found if name not in classes]
        if unknown:
            raise UserFileError(f'{root / prefixes[part]} has classes that {train} lacks: {abbreviate(unknown)}.')
        missing = [name for name in classes if name not in found]
        if missing:
            notes.append(f'{prefixes[part]} has no images of {abbreviate(missing)}')
        if not found:
            del parts[part]
    return ImageFolder(root, classes, parts, prefixes, notes)


def _class_files(root: Path, prefix: str, notes: List[str]) -> Dict[str, List[str]]:
    """The images of each class folder, as :class:`~mmrm.datasets.images.RMImageFolder` lists them."""
    from mmpretrain.datasets.custom import find_folders, get_samples

    from ..datasets.images import EXTENSIONS

    names = find_folders(str(root / prefix))[0]
    files, _ = get_samples(str(root / prefix), {name: name for name in names}, lambda file: True)
    found: Dict[str, List[str]] = {}
    others = []
    for file, name in files:
        path = Path(prefix, file)
        # Hidden: a thumbnail, or what a tool keeps.
        if path.suffix.lower() in EXTENSIONS and not any(part.startswith('.') for part in path.parts):
            found.setdefault(name, []).append(path.as_posix())
        else:
            others.append(path.as_posix())
    if others:
        notes.append(f'{len(others)} other files are not used: {abbreviate(others)}')
    empty = [str(Path(prefix, name)) for name in names if name not in found]
    if empty:
        notes.append(f'folders without images are not classes: {abbreviate(empty)}')
    return found


def without_broken(folder: ImageFolder, broken: set) -> ImageFolder:
    """The folder without the files that cannot be decoded.

    Raises:
        UserFileError: If a class has nothing left to train on.
    """
    parts = {
        part: {name: [file for file in files if str(folder.root / file) not in broken] for name, files in found.items()}
        for part, found in folder.parts.items()
    }
    lost = [name for name, files in parts['train'].items() if not files]
    if lost:
        raise UserFileError(f'every training image of {abbreviate(lost)} is broken.')
    folder.notes.append(f'{len(broken)} broken image(s), left out of the lists')
    return folder._replace(parts=parts)


def split_off(folder: ImageFolder, share: float) -> ImageFolder:
    """Put a share of each class aside for validation, the same files every time, wherever the folder is.

    The order is that of a hash of each file's name: images that are added or removed later do not move the others.
    """
    parts: Dict[str, Dict[str, List[str]]] = dict(train={}, val={})
    for name, files in folder.parts['train'].items():
        ordered = sorted(files, key=lambda file: hashlib.sha256(file.encode()).hexdigest())
        number = min(max(1, round(share * len(files))), len(files) - 1)
        parts['val'][name], parts['train'][name] = sorted(ordered[:number]), sorted(ordered[number:])
    number = sum(map(len, parts['val'].values()))
    folder.notes.append(f'there is no val folder: {number:,} images, {share:.0%} of each class, are put aside')
    return folder._replace(parts={**folder.parts, **parts})


def describe(folder: ImageFolder, findings: Sequence) -> List[str]:
    """What was found, a line each."""
    lines = [f'classes     {len(folder.classes):,}']
    for part, classes in folder.parts.items():
        counts = {name: len(classes.get(name, ())) for name in folder.classes}
        shown = abbreviate([f'{name} {count:,}' for name, count in counts.items()], 8)
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
        raise UserValueError(f'--network {name}: one of {", ".join(NETWORKS)}, or timm/NAME, is allowed.')
    return name, NETWORKS[name]


def _timm_network(name: str, size: int) -> Network:
    import timm
    import torch

    base = name.partition('.')[0]
    if not timm.is_model(base):
        near = difflib.get_close_matches(base, timm.list_models(), n=3)
        hint = f' Did you mean {", ".join(f"timm/{each}" for each in near)}?' if near else ''
        raise UserValueError(f'--network timm/{name}: timm {timm.__version__} has no model {base}.{hint}')
    images, more = torch.zeros(1, 3, size, size), ''
    model = timm.create_model(name, pretrained=False)
    model.reset_classifier(0, '')
    try:
        with torch.no_grad():
            features = model.eval()(images)
            if features.ndim == 3:  # a plain ViT's tokens: its last map
                more = ', features_only=True, out_indices=[-1]'
                features = timm.create_model(name, **VIT).eval()(images)[-1]
    except Exception as error:  # whatever a network raises for a size that it does not take
        message = f'--network timm/{name} does not take images of {size} pixels: {one_line(error)}'
        raise UserValueError(message) from error
    # Channels last, as Swin's, is (1, 7, 7, 768).
    if features.ndim != 4 or features.shape[2] != features.shape[3] or features.shape[1] <= features.shape[2]:
        raise UserValueError(f'--network timm/{name} returns {tuple(features.shape)}, not a map with channels first.')
    return Network(
        f"dict(type='TIMMBackbone', model_name={name!r}{more})",
        features.shape[1],
        name,
        adamw=any(isinstance(module, torch.nn.LayerNorm) for module in model.modules()),
        mean=tuple(round(255 * value, 3) for value in model.pretrained_cfg['mean']),
        std=tuple(round(255 * value, 3) for value in model.pretrained_cfg['std']),
    )


def choose_size(findings: Sequence) -> int:
    """The side of the network's input: 224, or 128 for small images, which would only be blurred by more."""
    sides = [min(finding.size) for finding in findings if finding.size]
    return 128 if sides and statistics.median(sides) < 128 else 224


def choose_recipe(
    images: int, adamw: bool, scratch: bool, method: str, batch: Optional[int] = None, epochs: Optional[int] = None
) -> dict:
    """What the template needs: batch, epochs, warmup (epochs), lr (for that batch), tuned settings, whether studied.

    From pretrained weights it is the schedule of projects/finetune: 45 epochs for 370 to 1,850 images. More images have
    fewer epochs, at least 15, and fewer images more, at most 100. From scratch, which nobody measured, 100 to 300.
    """
    batch = batch or next((size for size in (32, 16) if images >= 11 * size), 8)
    wanted = max(min(45 * 1850 / images, 45), min(45 * 370 / images, 100), 15)
    if scratch:
        wanted = min(max(960_000 / images, 100), 300)
    epochs = epochs or round(wanted)
    studied = not (adamw or scratch)
    rates = (1e-4 / 64, 5e-4 / 512) if adamw else (RATE / 32, 0.2 / 512)
    found = dict(batch=batch, epochs=epochs, warmup=min(5 if scratch else 1, epochs // 2), studied=studied)
    return dict(found, lr=float(f'{rates[scratch] * batch:.3g}'), tuned=TUNED[method] if studied else {})


# --------------------------------------------------------------------------------------------------------- the weights
def choose_weights(source: Optional[str], name: str, network: Network, config: Path) -> Tuple[str, Optional[dict]]:
    """Get the weights that training starts from, so that missing ones are an error now.

    Args:
        source (str, optional): 'torchvision', 'timm', 'none', a file or a run's folder; None takes torchvision's, else
            timm's.
        name (str): Of the network.
        network (Network): What it is.
        config (Path): The config; weights of timm are written next to it.

    Returns:
        tuple[str, dict | None]: A path or an address for ``StrictPretrained``, '' for from scratch, and the tensors
            that have to be written there, if any.
    """
    from ..weights.provenance import read_weights
    from ..weights.runs import find_checkpoint

    source = source or ('torchvision' if network.torchvision else 'timm')
    if source == 'none':
        return '', None
    if source == 'torchvision':
        if not network.torchvision:
            raise UserValueError(f'--weights torchvision: none for {name}; timm, FILE, RUN or none is allowed.')
        find_checkpoint(f'torchvision://{name}', OFFLINE)
        return f'torchvision://{name}', None
    given = None if source == 'timm' else read_weights(find_checkpoint(source)).tensors
    # timm's own names lack those of the backbone around it.
    if given and (not name.startswith('timm/') or any(key.startswith('backbone.') for key in given)):
        return str(find(source).resolve()), None
    return str(config.with_name(f'{config.stem}_timm.pth')), _timm_tensors(name, network, given, source)


def _timm_tensors(name: str, network: Network, given: Optional[dict], source: str) -> dict:
    """timm's weights, or those that are given, under the names of the backbone in the config."""
    import timm

    from ..weights.layouts import rename_by_shape

    try:
        model = timm.create_model(network.timm, pretrained=given is None)
    except Exception as error:  # a hub raises many kinds
        raise UserFileError(f'weights {network.timm} of timm: {one_line(error)}.{OFFLINE}') from error
    whole = model.state_dict()
    model.reset_classifier(0, '')
    classifier = whole.keys() - model.state_dict().keys()
    tensors = rename_by_shape(given, whole, classifier, f'--weights {source}') if given else whole
    if given and given.keys() - tensors.keys():
        print(f'note        {source} names its tensors differently; all have the same shapes in the same order')
    if 'features_only' in network.backbone:
        wanted = timm.create_model(network.timm, **VIT).state_dict()  # of its layers, as `model`
        return {f'backbone.timm_model.{key}': tensors[key.removeprefix('model.')] for key in wanted}
    prefix = 'backbone.timm_model.' if name.startswith('timm/') else ''
    return {prefix + key: value for key, value in tensors.items() if key not in classifier}


# ------------------------------------------------------------------------------------------------------------ the text
def in_config(path: str, config: Path) -> str:
    """A path as a config writes it: relative to its own folder where it is below that, else absolute."""
    folder = config.resolve().parent
    if '://' not in path and folder in Path(path).resolve().parents:
        return repr(f'{{{{ fileDirname }}}}/{Path(path).resolve().relative_to(folder).as_posix()}')
    return repr(path)


def list_file(config: Path, part: str) -> Path:
    """Where the list of a part is written."""
    return config.with_name(f'{config.stem}_{part}.txt')


def list_texts(folder: ImageFolder, config: Path) -> Dict[Path, str]:
    """The list of each part, a file and its label on each line, by where it is written."""
    texts = {}
    for part, classes in folder.parts.items():
        labelled = [(file, label) for label, name in enumerate(folder.classes) for file in classes.get(name, ())]
        texts[list_file(config, part)] = ''.join(f'{file} {label}\n' for file, label in labelled)
    return texts


def config_text(folder: ImageFolder, network: Network, checkpoint: str, recipe: dict, config: Path, title: str) -> str:
    """The config of a folder."""

    def source(part: str) -> str:
        if folder.as_it_is:
            return f'data_prefix={folder.prefixes[part]!r}'
        return f'ann_file={in_config(str(list_file(config, part)), config)}'

    init = 'init_cfg=None,  # from scratch'
    if checkpoint:
        init = f"init_cfg=dict(type='StrictPretrained', checkpoint={in_config(checkpoint, config)}),"
    decay = 'weight_decay=0.05' if network.adamw else 'momentum=0.9, weight_decay=1e-4, nesterov=True'
    test = 'val_dataloader'
    if 'test' in folder.parts:
        test = f'dict(\n    val_dataloader, dataset=dict(dataset, {source("test")}, pipeline=test_pipeline))'
    augment, tuned, epochs = METHODS[recipe['method']], recipe['tuned'], recipe['epochs']
    mixing = ', '.join(f'{key}={tuned.get(key, value)!r}' for key, value in (augment or {}).items())
    probs, last = f', probs={tuned["prob"]}' if 'prob' in tuned else '', min(-(-epochs // 10), epochs - 1)
    own = 'none rm:prob={prob},omega={omega},last_epochs={}'.format(last, **TUNED['rm'])
    template = Path(__file__).with_name('config_template.txt').read_text()
    return template.format(
        methods=', '.join(each['type'] if each else 'None' for each in METHODS.values()),
        mixing=f'dict(augments=dict({mixing}){probs})' if augment else None,
        omega=tuned.get('omega', OMEGA) if recipe['method'] == 'rm' else 0,
        compared=own if recipe['studied'] else 'none mixup cutmix rm',
        measured=MEASURED if recipe['studied'] else '',
        hooks=f",\n    dict(type='MixScheduleHook', last_epochs={last})" if probs else '',
        workers=min(4, cores()),
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
        crop='(0.35, 1.0)' if checkpoint else '(0.08, 1.0)',
        edge=round(recipe['size'] * 256 / 224),
        train=source('train'),
        val=source('val'),
        test=test,
        topk=(1, 5) if len(folder.classes) > 5 else (1,),
        optimizer=f'dict(type={"AdamW" if network.adamw else "SGD"!r}, lr={recipe["lr"]:g}, {decay})',
        **recipe,
    )


def check_free(files: Sequence[Path]) -> None:
    """Raise if one of the files exists: nothing is ever overwritten."""
    taken = next((path for path in files if path.exists()), None)
    if taken:
        raise UserFileError(f'{show_path(taken)} exists and is not overwritten; give another --out FILE.py.')


def write(texts: Dict[Path, str], checkpoint: str, tensors: Optional[dict]) -> List[Path]:
    """Write the weights, the lists and, last, the config; returns the files."""
    import torch

    weights = [] if tensors is None else [Path(checkpoint)]
    check_free([*weights, *texts])
    for path in weights:
        with atomic_write(path) as part:
            torch.save({key: value.contiguous() for key, value in tensors.items()}, part)
    for path, content in texts.items():
        write_text(path, content)
    return [*weights, *texts]
