"""From a folder of images to a config that trains: what is in the folder, a recipe for it, the text.

The recipe is chosen here, not published: RM as in the paper (alpha 0.5, omega 0.5), and for the rest what usually works
when a network that knows ImageNet is trained on other photographs.
"""

import difflib
import hashlib
import os
import re
import statistics
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..datasets.images import EXTENSIONS, Finding
from ..utils.errors import UserError, UserFileError, UserValueError, one_line
from ..utils.files import atomic_write, write_text
from ..utils.paths import find, show_path
from ..weights.strict import find_checkpoint

PART_NAMES = dict(
    train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test', 'testing')
)  # of folders, in small letters
NO_CLASSES = ('__MACOSX',)  # besides those that begin with a dot
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


# ---------------------------------------------------------------------------------------------------------- the folder
class ImageFolder(NamedTuple):
    """Args:
    root (Path): The folder.
    classes (tuple[str]): In the order of their labels, which is that of their names.
    parts (dict): 'train', perhaps 'val' and 'test': the files of each class, relative to ``root``.
    prefixes (dict): The folder of each part, relative to ``root``.
    notes (list[str]): What was found besides.
    plain (bool): Whether a data set that lists the folders itself finds these classes and files, no others.
    """

    root: Path
    classes: Tuple[str, ...]
    parts: Dict[str, Dict[str, List[str]]]
    prefixes: Dict[str, str]
    notes: List[str]
    plain: bool = True

    def count(self, part: str) -> int:
        return sum(map(len, self.parts.get(part, {}).values()))

    def files(self) -> List[str]:
        """All of them, as they are to be opened."""
        return [str(self.root / name) for part in self.parts.values() for names in part.values() for name in names]


def look_at(root: Path) -> ImageFolder:
    """Find the classes and their files.

    Args:
        root (Path): A folder with one folder a class, or with ``train`` and perhaps ``val`` and ``test`` that are such.

    Raises:
        UserFileError: If it is neither.
    """
    if not root.is_dir():
        raise UserFileError(f'{root} is {"a file" if root.exists() else "not there"}; give a folder of images.')
    root, notes = root.resolve(), []
    names = _subfolders(root)
    places = {part: next((name for name in names if name.lower() in known), None) for part, known in PART_NAMES.items()}
    if places['train'] is None:
        places = dict(train='')
    else:
        others = [name for name in names if name not in places.values()]
        if others:
            notes.append(f'beside {places["train"]} there is {_some(others)}, which is not used')
    prefixes = {part: name for part, name in places.items() if name is not None}
    parts: Dict[str, Dict[str, List[str]]] = {}
    plain = True
    for part, prefix in prefixes.items():
        parts[part], as_it_is = _classes_of(root, prefix, notes)
        plain &= as_it_is
    for part in ('val', 'test'):
        if part in parts and not parts[part]:
            notes.append(f'{prefixes[part]} has no class folders with images and is not used')
            del parts[part], prefixes[part]
    classes = tuple(sorted(parts['train']))
    _check_classes(root, prefixes, parts, classes)
    for part in ('val', 'test'):
        missing = [name for name in classes if part in parts and name not in parts[part]]
        if missing:
            notes.append(f'{prefixes[part]} has no images of {_some(missing)}')
            plain = False
    return ImageFolder(root, classes, parts, prefixes, notes, plain)


def _subfolders(folder: Path) -> List[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith('.') and entry.name not in NO_CLASSES
    )


def _classes_of(root: Path, prefix: str, notes: List[str]) -> Tuple[Dict[str, List[str]], bool]:
    """The images of each class folder, and whether there is nothing in between."""
    folder, found, plain = root / prefix, {}, True
    for name in _subfolders(folder):
        images, others = [], []
        for place, below, files in os.walk(folder / name):
            below[:] = sorted(each for each in below if not each.startswith('.'))
            for file in sorted(files):
                if not file.startswith('.'):
                    kind = images if file.lower().endswith(EXTENSIONS) else others
                    kind.append((Path(place) / file).relative_to(root).as_posix())
        if others:
            endings = sorted({Path(each).suffix or Path(each).name for each in others})
            notes.append(f'{Path(prefix) / name}: {len(others)} other files ({_some(endings)}) are not used')
        if images:
            found[name] = images
        else:
            notes.append(f'{Path(prefix) / name} has no images and is no class')
            plain = False
    loose = sum(entry.is_file() and entry.name.lower().endswith(EXTENSIONS) for entry in os.scandir(folder))
    if loose and found:
        notes.append(f'{loose} images lie in {folder} itself, in no class, and are not used')
    return found, plain and not any((folder / name).is_dir() for name in NO_CLASSES)


def _check_classes(root: Path, prefixes: dict, parts: dict, classes: Sequence[str]) -> None:
    folder = root / prefixes['train']
    if not classes:
        raise UserFileError(
            f'{folder} has no class folders with images ({", ".join(EXTENSIONS)}): put the images of each class into a '
            'folder of its own.'
        )
    if len(classes) == 1:
        raise UserFileError(f'{folder} has one class folder with images, {classes[0]}; two or more are needed.')
    for part in ('val', 'test'):
        unknown = sorted(set(parts.get(part, {})) - set(classes))
        if unknown:
            near = difflib.get_close_matches(unknown[0], classes, n=1)
            hint = f' (is {unknown[0]} meant to be {near[0]}?)' if near else ''
            raise UserFileError(f'{root / prefixes[part]} has classes that {folder} lacks: {_some(unknown)}{hint}.')
    odd = [name for part in parts.values() for names in part.values() for name in names if name != name.strip()]
    odd += [name for part in parts.values() for names in part.values() for name in names if '\n' in name]
    if odd:
        raise UserFileError(f'rename {odd[0]!r}: a list of files cannot hold a line break, or a blank at an end.')


def without_broken(folder: ImageFolder, findings: Sequence[Finding]) -> ImageFolder:
    """The folder without the files that cannot be decoded.

    Raises:
        UserFileError: If a class has nothing left to train on.
    """
    broken = {finding.path for finding in findings if finding.problem}
    if not broken:
        return folder
    parts = {
        part: {
            name: [file for file in files if str(folder.root / file) not in broken] for name, files in classes.items()
        }
        for part, classes in folder.parts.items()
    }
    lost = [name for name, files in parts['train'].items() if not files]
    if lost:
        raise UserFileError(f'every training image of {_some(lost)} is broken.')
    return folder._replace(parts=parts, plain=False)


def split_off(folder: ImageFolder, share: float) -> ImageFolder:
    """Put a share of each class aside for validation, the same files every time, wherever the folder is.

    The order is that of a hash of each file's name: images that are added or removed later leave the others where
    they are.
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


def _some(names: Sequence[str], number: int = 5) -> str:
    return ', '.join(map(str, names[:number])) + (f', ... {len(names) - number} more' if len(names) > number else '')


def describe(folder: ImageFolder, findings: Sequence[Finding]) -> List[str]:
    """What was found, a line each."""
    lines = [f'classes     {len(folder.classes):,}']
    for part, classes in folder.parts.items():
        counts = {name: len(classes.get(name, ())) for name in folder.classes}
        shown = _some([f'{name} {count:,}' for name, count in counts.items()], 8)
        lines.append(f'{part:5}       {sum(counts.values()):,} images: {shown}')
        low, high = min(counts.values()), max(counts.values())
        if part == 'train' and high > 10 * max(low, 1):
            lines.append(f'note        the classes are uneven: from {low:,} to {high:,} images')
    sizes = [finding.size for finding in findings if finding.size]
    if sizes:
        ordered = sorted(sizes, key=lambda size: size[0] * size[1])
        shown = [f'{width} x {height}' for width, height in (ordered[0], ordered[len(ordered) // 2], ordered[-1])]
        lines.append(f'sizes       from {shown[0]} to {shown[2]}, half of them below {shown[1]}')
    return lines + [f'note        {note}' for note in folder.notes]


# ---------------------------------------------------------------------------------------------------------- the recipe
class Network(NamedTuple):
    """Args:
    backbone (str): Its config, as text.
    channels (int): Of its last map.
    adamw (bool): Whether it is trained with AdamW, as transformers are, instead of SGD.
    torchvision (str): What torchvision calls its weights, '' if it has none.
    timm (str): What timm calls it, '' if it has none.
    mean, std (tuple[float]): Of the pixels that its weights know, 0 to 255, RGB.
    """

    backbone: str
    channels: int
    adamw: bool = False
    torchvision: str = ''
    timm: str = ''
    mean: Tuple[float, ...] = IMAGENET[0]
    std: Tuple[float, ...] = IMAGENET[1]


NETWORKS = {
    **{
        f'resnet{depth}': Network(
            f"dict(type='ResNet', depth={depth})", channels, False, f'resnet{depth}', f'resnet{depth}'
        )
        for depth, channels in ((18, 512), (34, 512), (50, 2048), (101, 2048))
    },
    'pvtv2-b1': Network(
        "dict(\n        type='mmdet.PyramidVisionTransformerV2', embed_dims=64, num_layers=[2, 2, 2, 2], "
        'drop_path_rate=0.1,\n        out_indices=(3, ))',
        512,
        True,
        '',
        'pvt_v2_b1',
    ),
}


def choose_network(asked: Optional[str], images: int, size: int) -> Tuple[str, Network]:
    """The network of a name: one of ``NETWORKS`` or ``timm/NAME``; None chooses by the number of images.

    Raises:
        UserValueError: If there is none, or if timm's has no map of features.
    """
    name = asked or ('resnet18' if images < 2000 else 'resnet50')
    if name.startswith('timm/'):
        return name, _timm_network(name[len('timm/') :], size)
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, n=1)
        hint = f' Did you mean {near[0]}?' if near else ''
        raise UserValueError(f'--network {name}: one of {", ".join(NETWORKS)}, or timm/NAME, is allowed.{hint}')
    return name, NETWORKS[name]


def _timm_network(name: str, size: int) -> Network:
    try:
        import timm
    except ImportError:
        raise UserError(f'--network timm/{name} needs timm, which is not installed: pip install timm') from None
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
    except Exception as error:  # whatever a network says of a size that it does not take
        raise UserValueError(
            f'--network timm/{name} does not take images of {size} pixels: {one_line(error)}'
        ) from error
    # Channels last, as Swin's, is (1, 7, 7, 768).
    if features.ndim != 4 or features.shape[2] != features.shape[3] or features.shape[1] <= features.shape[2]:
        raise UserValueError(
            f'--network timm/{name} ends in {tuple(features.shape)}, not in a map of channels first; RM needs one.'
        )
    settings = model.pretrained_cfg
    return Network(
        f"dict(type='TIMMBackbone', model_name={name!r})",
        features.shape[1],
        any(isinstance(module, torch.nn.LayerNorm) for module in model.modules()),
        '',
        name,
        tuple(round(255 * value, 3) for value in settings['mean']),
        tuple(round(255 * value, 3) for value in settings['std']),
    )


def choose_size(findings: Sequence[Finding]) -> int:
    """The side of the network's input: 224, or 128 for small images, whose map would else be all blur."""
    sides = [min(finding.size) for finding in findings if finding.size]
    return 128 if sides and statistics.median(sides) < 128 else 224


class Recipe(NamedTuple):
    """Args:
    size (int): Side of the input in pixels.
    batch (int): Images a process.
    epochs (int): How long.
    warmup (int): Epochs of warm-up.
    lr (float): Learning rate for a batch of that size.
    """

    size: int
    batch: int
    epochs: int
    warmup: int
    lr: float


def choose_recipe(images: int, size: int, adamw: bool, scratch: bool) -> Recipe:
    """Batch, length and learning rate for so many training images.

    About 6,000 iterations from pretrained weights, 30,000 from scratch, within 20 to 100 and 100 to 300 epochs.
    """
    batch = 32
    while batch > 8 and images < 16 * batch:
        batch //= 2
    steps = -(-images // batch)
    low, high, wanted = (100, 300, 30000) if scratch else (20, 100, 6000)
    epochs = min(max(round(wanted / steps), low), high)
    base = {(False, False): 0.01 / 64, (False, True): 0.2 / 512, (True, False): 1e-4 / 64, (True, True): 5e-4 / 512}
    return Recipe(size, batch, epochs, 5, float(f'{base[adamw, scratch] * batch:.3g}'))


# --------------------------------------------------------------------------------------------------------- the weights
class Start(NamedTuple):
    """Where training starts.

    Args:
        checkpoint (str): For ``StrictPretrained``; '' for nowhere.
        words (str): The same for people.
        tensors (dict, optional): What is to be written to ``checkpoint`` first.
    """

    checkpoint: str
    words: str
    tensors: Optional[dict] = None


OTHERWISE = (
    'Without the network: fetch the file on another machine and give it with --weights FILE, start from a run of yours '
    'with --weights FOLDER, or from scratch, which needs far more images, with --weights none.'
)


def choose_weights(asked: Optional[str], name: str, network: Network, config: Path) -> Start:
    """Get the weights that training starts from, so that what is missing is missed now.

    Args:
        asked (str, optional): 'torchvision', 'timm', 'none', a file or a run's folder; None takes torchvision's, else
            timm's.
        name (str): Of the network.
        network (Network): What it is.
        config (Path): The config; weights of timm are written beside it.
    """
    asked = asked or ('torchvision' if network.torchvision else 'timm')
    if asked == 'none':
        return Start('', 'from scratch')
    if asked == 'torchvision':
        if not network.torchvision:
            raise UserValueError(f'--weights torchvision: none for {name}; timm, FILE, RUN or none is allowed.')
        address = f'torchvision://{network.torchvision}'
        try:
            find_checkpoint(address)
        except UserError as error:
            raise UserFileError(f'{error} {OTHERWISE}') from error
        return Start(address, "from torchvision's weights")
    if asked == 'timm':
        return Start(f'{config.stem}_timm.pth', "from timm's weights", _timm_tensors(name, network))
    file = find_checkpoint(asked).resolve()
    if name.startswith('timm/'):  # under timm's own names it needs those of the backbone around it
        return Start(f'{config.stem}_timm.pth', f'from {show_path(file)}', _timm_tensors(name, network, file))
    return Start(str(find(asked).resolve()), f'from {show_path(find(asked))}')


def _timm_tensors(name: str, network: Network, file: Optional[Path] = None) -> Optional[dict]:
    """timm's weights, or those of a file, under the names of the backbone in the config."""
    if file is not None:
        from ..weights.provenance import read_weights

        tensors = read_weights(file).tensors
        if any(key.startswith('backbone.') for key in tensors):
            return {key: value for key, value in tensors.items() if key.startswith('backbone.')}
        classifier = _timm_classifier(network.timm)
        return {
            f'backbone.timm_model.{key}': value
            for key, value in tensors.items()
            if not any(key.startswith(f'{each}.') for each in classifier)
        }
    try:
        import timm
    except ImportError:
        raise UserError('--weights timm needs timm, which is not installed: pip install timm') from None
    try:
        model = timm.create_model(network.timm, pretrained=True)
    except Exception as error:  # a hub raises many kinds
        raise UserFileError(
            f"timm's weights of {network.timm} could not be fetched: {one_line(error)}. {OTHERWISE}"
        ) from error
    model.reset_classifier(0, '')
    begin = 'backbone.timm_model.' if name.startswith('timm/') else ''
    return {begin + key: value for key, value in model.state_dict().items()}


def _timm_classifier(name: str) -> List[str]:
    import timm

    names = timm.create_model(name, pretrained=False).pretrained_cfg['classifier']
    return [names] if isinstance(names, str) else list(names or ())


# ------------------------------------------------------------------------------------------------------------ the text
TEMPLATE = """\
# {title}
#   mmrm check --data {file}    does the model build, do the weights arrive, is every image whole?
#   mmrm train {file}           and after that: mmrm test {file} work_dirs/{stem}
_base_ = ['mmpretrain::_base_/default_runtime.py']
custom_imports = dict(imports=['mmrm'], allow_failed_imports=False)

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


def from_config(path: Path, config: Path) -> str:
    """A path as a config writes it: from its own folder where it is below that, else whole."""
    path, folder = path.resolve(), config.resolve().parent
    if folder in path.parents:
        return repr(f'{{{{ fileDirname }}}}/{path.relative_to(folder).as_posix()}')
    return repr(str(path))


def list_file(config: Path, part: str) -> Path:
    """Where the list of a part goes."""
    return config.with_name(f'{config.stem}_{part}.txt')


def config_text(folder: ImageFolder, network: Network, start: Start, recipe: Recipe, config: Path, title: str) -> str:
    """The config of a folder."""

    def source(part: str) -> str:
        if folder.plain:
            return f'data_prefix={folder.prefixes[part]!r}'
        return f'ann_file={from_config(list_file(config, part), config)}'

    if start.tensors is not None:
        checkpoint = from_config(config.with_name(start.checkpoint), config)
    else:
        checkpoint = (
            repr(start.checkpoint) if '://' in start.checkpoint else from_config(Path(start.checkpoint), config)
        )
    init = f"init_cfg=dict(type='StrictPretrained', checkpoint={checkpoint})," if start.checkpoint else 'init_cfg=None,'
    decay = 'weight_decay=0.05' if network.adamw else 'momentum=0.9, weight_decay=1e-4'
    number = len(folder.classes)
    test = 'val_dataloader'
    if 'test' in folder.parts:
        test = f'dict(\n    val_dataloader, dataset=dict(dataset, {source("test")}, pipeline=test_pipeline))'
    return TEMPLATE.format(
        title=title,
        file=config.name,
        stem=config.stem,
        root=from_config(folder.root, config),
        classes=_wrapped(folder.classes),
        start=init if start.checkpoint else f'{init}  # from scratch',
        number=number,
        mean=list(network.mean),
        std=list(network.std),
        backbone=network.backbone,
        channels=network.channels,
        size=recipe.size,
        edge=round(recipe.size * 256 / 224),
        batch=recipe.batch,
        train=source('train'),
        val=source('val'),
        test=test,
        topk=(1, 5) if number > 5 else (1,),
        epochs=recipe.epochs,
        warmup=recipe.warmup,
        optimizer=f'dict(type={"AdamW" if network.adamw else "SGD"!r}, lr={recipe.lr:g}, {decay})',
    )


def _wrapped(names: Sequence[str], width: int = 110) -> str:
    """A list of names over as many lines as it needs."""
    lines = ['']
    for name in names:
        if len(lines[-1]) + len(repr(name)) > width:
            lines.append('')
        lines[-1] += f'{name!r}, '
    if len(lines) == 1:
        return f'[{lines[0].rstrip(", ")}]'
    return '[\n' + ''.join(f'    {line.rstrip()}\n' for line in lines) + ']'


def files_of(folder: ImageFolder, start: Start, config: Path) -> List[Path]:
    """What :func:`write` writes."""
    lists = [] if folder.plain else [list_file(config, part) for part in folder.parts]
    return [config, *lists, *([config.with_name(start.checkpoint)] if start.tensors is not None else [])]


def check_free(files: Sequence[Path]) -> None:
    """Raise if one of the files is there: nothing is ever written over."""
    taken = [path for path in files if path.exists()]
    if taken:
        raise UserFileError(
            f'{show_path(taken[0])} exists and is left as it is; remove it, or give another --out FILE.py.'
        )


def write(text: str, folder: ImageFolder, start: Start, config: Path) -> None:
    """Write the lists, the weights and, last, the config."""
    check_free(files_of(folder, start, config))
    labels = {name: label for label, name in enumerate(folder.classes)}
    if not folder.plain:
        for part, classes in folder.parts.items():
            lines = [f'{file} {labels[name]}\n' for name in folder.classes for file in classes.get(name, ())]
            write_text(list_file(config, part), ''.join(lines))
    if start.tensors is not None:
        with atomic_write(config.with_name(start.checkpoint)) as part:
            torch.save({key: value.contiguous() for key, value in start.tensors.items()}, part)
    write_text(config, text)


def default_name(folder: Path) -> str:
    """A config's name for a folder: its own, as far as it makes one."""
    return re.sub(r'\W+', '_', folder.resolve().name).strip('_') or 'images'
