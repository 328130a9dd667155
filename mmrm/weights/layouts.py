"""What a file of weights holds: the layouts that are understood, and the network that its tensors make.

Pure functions on state dicts. Inside this package a network is always named as in mmpretrain, backbone and head apart
and without their prefixes (``layer1.0.conv1.weight``, ``fc.weight``, ``fc_roi.weight``).
"""

import re
from typing import Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..core import ROI_LAYER
from ..utils.checkpoints import COUNTER
from ..utils.errors import UserFileError, abbreviate

StateDict = Dict[str, torch.Tensor]

# What a bare (unprefixed) file calls its classifier, and the name here.
HEADS = {
    'fc.': 'fc.',
    f'{ROI_LAYER}.': f'{ROI_LAYER}.',
    'linear.': 'fc.',
    'linear_roi.': f'{ROI_LAYER}.',
    'head_roi.': f'{ROI_LAYER}.',
    'classifier.': 'fc.',
    f'head.{ROI_LAYER}.': f'{ROI_LAYER}.',
    'head.fc.': 'fc.',
    'head.': 'fc.',
}
# Added to names by wrappers: DDP's and torch.compile's before all of it, in any order, torch.compile's also inside.
WRAPPERS = re.compile(r'^(?:(?:module|_orig_mod)\.)+|(?<=\.)_orig_mod\.')


class Network(NamedTuple):
    """A state dict taken apart.

    Args:
        layout (str): What the file's names are, in words.
        backbone (dict): Tensors of the backbone in mmpretrain's names, no prefix.
        head (dict): ``fc.*`` and ``fc_roi.*``, and what else a classifier's head holds.
        others (list[str]): Keys that are neither (necks, detectors' heads, preprocessors), as in the file.
        bare (bool): Whether the backbone's names had no prefix in the file, so that its kind was guessed from them.
    """

    layout: str
    backbone: StateDict
    head: StateDict
    others: List[str]
    bare: bool = False


def split(state_dict: StateDict, prefix: Optional[str] = None) -> Network:
    """Take a state dict of any known layout apart.

    Known are mmengine's checkpoints (``backbone.``), bare backbones, torchvision's and timm's ResNets, timm's and the
    PVT authors' PVTv2, and the RecursiveMix authors' networks. Names of an unknown layout come back unchanged.

    Args:
        state_dict (dict): Named tensors.
        prefix (str, optional): What the backbone's names begin with, for a file with another one than ``backbone.``.
            The names after it may be of any layout but the first. Defaults to None: found out.
    """
    state_dict = {WRAPPERS.sub('', key): value for key, value in state_dict.items()}
    if not prefix and not any(key.startswith('backbone.') for key in state_dict):
        return _split_bare(state_dict)
    begin = WRAPPERS.sub('', (prefix or 'backbone').rstrip('.') + '.')
    backbone, head = strip_prefix(begin, state_dict), strip_prefix('head.', state_dict)
    others = [key for key in state_dict if not key.startswith((begin, 'head.'))]
    if prefix:
        inner = _split_bare(backbone)
        backbone, head = inner.backbone, head or inner.head
    return Network(f'checkpoint with the prefix {begin!r}', backbone, head, others)


def strip_prefix(prefix: str, tensors: StateDict) -> StateDict:
    """The tensors whose names begin with ``prefix``, without it."""
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def _split_bare(state_dict: StateDict) -> Network:
    """Take a backbone apart that may have a linear layer at its end, as torchvision's and the authors' do."""
    backbone, head = {}, {}
    for key, value in state_dict.items():
        name = next((name for name in HEADS if key.startswith(name)), None)
        if name is None:
            backbone[key] = value
        else:
            head[HEADS[name] + key[len(name) :]] = value
    layout, backbone = to_mmpretrain_names(backbone)
    return Network(layout, backbone, head, [], bare=True)


def to_mmpretrain_names(backbone: StateDict) -> Tuple[str, StateDict]:
    """Rename a bare backbone.

    Returns:
        tuple[str, dict]: The layout it had, in words, and the tensors under mmpretrain's (for PVT: mmdet's) names.
    """
    if any(key.startswith('conv2_x.') for key in backbone):
        return "RecursiveMix authors' CIFAR ResNet", rename(backbone, AUTHORS_RESNET)
    if any(key.startswith('features.dense_block_layer_') for key in backbone):
        return "RecursiveMix authors' CIFAR DenseNet", rename(backbone, AUTHORS_DENSENET)
    if 'patch_embed1.proj.weight' in backbone:
        return "PVT authors' names", _pvt_from_timm(rename(backbone, AUTHORS_PVT_TO_TIMM))
    if 'patch_embed.proj.weight' in backbone and 'stages.0.blocks.0.attn.kv.weight' in backbone:
        return "timm's PVT names", _pvt_from_timm(backbone)
    return "bare backbone or torchvision's names", backbone


Rules = Sequence[Tuple[str, str]]
NUMBER = re.compile(r'\{(\*2)?([+-]1|\+2)?\}')


def _fill(name: str, numbers: Sequence[str]) -> str:
    rest = iter(numbers)
    return NUMBER.sub(lambda field: str(int(next(rest)) * (2 if field[1] else 1) + int(field[2] or 0)), name)


def rename(tensors: StateDict, rules: Rules) -> StateDict:
    """Tensors under other names.

    Args:
        tensors (dict): Named tensors.
        rules (sequence of tuple[str, str]): What names begin with, and what they begin with afterwards. ``{}`` stands
            for a number; afterwards, ``{-1}`` is one less, ``{*2+1}`` one more than twice it. The first rule that fits
            is applied.
    """
    patterns = [(re.compile(re.escape(old).replace(r'\{\}', r'(\d+)')), new) for old, new in rules]

    def new_name(key: str) -> str:
        for pattern, new in patterns:
            match = pattern.match(key)
            if match:
                return _fill(new, match.groups()) + key[match.end() :]
        return key

    return {new_name(key): value for key, value in tensors.items()}


AUTHORS_RESNET = [
    ('conv1.0.', 'conv1.'),
    ('conv1.1.', 'bn1.'),
    ('conv{}_x.{}.shortcut.', 'layer{-1}.{}.downsample.'),
    *(
        # convolutions at 0, 3, 6, each followed by its BN, ReLU in between
        (f'conv{{}}_x.{{}}.residual_function.{3 * layer + place}.', f'layer{{-1}}.{{}}.{kind}{layer + 1}.')
        for layer in (0, 1, 2)
        for place, kind in enumerate(('conv', 'bn'))
    ),
]
AUTHORS_DENSENET = [
    ('conv1.', 'stem.0.'),
    *(
        (f'features.{block}.bottle_neck_layer_{{}}.bottle_neck.{index}.', f'stages.{{}}.block.{{}}.{name}.')
        for block in ('dense_block_layer_{}', 'dense_block{}')  # the last one has the second name
        for index, name in ((0, 'norm1'), (2, 'conv1'), (3, 'norm2'), (5, 'conv2'))
    ),
    ('features.transition_layer_{}.down_sample.0.', 'transitions.{}.norm.'),
    ('features.transition_layer_{}.down_sample.1.', 'transitions.{}.conv.'),
    ('features.bn.', 'transitions.3.0.'),
]
AUTHORS_PVT_TO_TIMM = [
    ('patch_embed{}.', 'stages.{-1}.downsample.'),
    ('block{}.{}.mlp.dwconv.dwconv.', 'stages.{-1}.blocks.{}.mlp.dwconv.'),
    ('block{}.', 'stages.{-1}.blocks.'),
    ('norm{}.', 'stages.{-1}.norm.'),
]
# timm's name, mmdet's name. timm has queries apart from keys and values, mmdet has them in one tensor.
PVT = [
    ('patch_embed.proj.', 'layers.0.0.projection.'),
    ('patch_embed.', 'layers.0.0.'),
    ('stages.{}.downsample.proj.', 'layers.{}.0.projection.'),
    ('stages.{}.downsample.', 'layers.{}.0.'),
    ('stages.{}.norm.', 'layers.{}.2.'),
    ('stages.{}.blocks.{}.attn.proj.', 'layers.{}.1.{}.attn.attn.out_proj.'),
    ('stages.{}.blocks.{}.mlp.fc1.', 'layers.{}.1.{}.ffn.layers.0.'),
    ('stages.{}.blocks.{}.mlp.dwconv.', 'layers.{}.1.{}.ffn.layers.1.'),
    ('stages.{}.blocks.{}.mlp.fc2.', 'layers.{}.1.{}.ffn.layers.4.'),
    ('stages.{}.blocks.{}.', 'layers.{}.1.{}.'),
]
IN_PROJ = '.attn.attn.in_proj_'
LINEAR_AS_CONV = ('.ffn.layers.0.weight', '.ffn.layers.4.weight')  # mmdet's are 1 x 1 convolutions


def _pvt_from_timm(tensors: StateDict) -> StateDict:
    tensors, found = rename(tensors, PVT), {}
    for key, value in tensors.items():
        if '.attn.kv.' in key:
            continue
        if '.attn.q.' in key:
            pair = tensors.get(key.replace('.attn.q.', '.attn.kv.'))
            if pair is not None:
                found[key.replace('.attn.q.', IN_PROJ)] = torch.cat([value, pair])
        else:
            found[key] = value[:, :, None, None] if key.endswith(LINEAR_AS_CONV) and value.ndim == 2 else value
    return found


def pvt_to_timm(backbone: StateDict) -> StateDict:
    """mmdet's PVTv2 under timm's names; :func:`split` is the way back."""
    found = {}
    for key, value in backbone.items():
        if IN_PROJ in key:
            width = len(value) // 3
            found[key.replace(IN_PROJ, '.attn.q.')] = value[:width]
            found[key.replace(IN_PROJ, '.attn.kv.')] = value[width:]
        else:
            found[key] = value[:, :, 0, 0] if key.endswith(LINEAR_AS_CONV) and value.ndim == 4 else value
    return rename(found, [(ours, theirs) for theirs, ours in PVT])


RESNET_DEPTHS = 18, 34, 50, 101, 152
PVT_DEPTHS = {(2, 2, 2, 2): 'B1', (3, 4, 6, 3): 'B2', (3, 4, 18, 3): 'B3', (3, 8, 27, 3): 'B4', (3, 6, 40, 3): 'B5'}


def identify(backbone: StateDict) -> Optional[dict]:
    """The config of the backbone that these tensors make, or None if it is not one that mmrm's configs use.

    Args:
        backbone (dict): Tensors under mmpretrain's names, no prefix.

    Returns:
        dict | None: ``dict(type='ResNet', depth=50)`` and the like, for mmpretrain's registry.
    """
    if 'bn_final.weight' in backbone:
        return _identify_pyramidnet(backbone)
    if 'layer1.0.conv1.weight' in backbone:
        return _identify_resnet(backbone)
    if 'stages.0.block.0.conv1.weight' in backbone and 'stem.0.weight' in backbone:
        return _identify_densenet(backbone)
    if 'layers.0.0.projection.weight' in backbone and 'layers.0.1.0.ffn.layers.4.weight' in backbone:
        width = _size(backbone, 'layers.0.0.projection.weight')[0]
        depths = [count_modules(backbone, f'layers.{stage}.1.') for stage in range(4)]
        return dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=width, num_layers=depths)
    if 'stages.0.0.depthwise_conv.weight' in backbone and 'norm3.weight' in backbone:
        return _identify_convnext(backbone)
    if 'stages.0.blocks.0.attn.w_msa.relative_position_bias_table' in backbone and 'norm3.weight' in backbone:
        return _identify_swin(backbone)
    return None


def _identify_convnext(backbone: StateDict) -> Optional[dict]:
    linear = len(_size(backbone, 'stages.0.0.pointwise_conv1.weight')) == 2
    if 'norm0.weight' in backbone or not linear or 'stages.0.0.gamma' not in backbone:
        return None  # several outputs; 1 x 1 convolutions; the second version
    channels = [_size(backbone, f'stages.{stage}.0.gamma')[0] for stage in range(4)]
    depths = [count_modules(backbone, f'stages.{stage}.') for stage in range(4)]
    return dict(type='ConvNeXt', arch=dict(depths=depths, channels=channels))


def _identify_swin(backbone: StateDict) -> Optional[dict]:
    if 'norm0.weight' in backbone or 'absolute_pos_embed' in backbone:  # mmdet's, with several outputs; another kind
        return None
    stages = count_modules(backbone, 'stages.')
    table = 'blocks.0.attn.w_msa.relative_position_bias_table'
    sides = [_size(backbone, f'stages.{stage}.{table}') for stage in range(stages)]
    window = (round(sides[0][0] ** 0.5) + 1) // 2
    return dict(
        type='SwinTransformer',
        arch=dict(
            embed_dims=_size(backbone, 'patch_embed.projection.weight')[0],
            depths=[count_modules(backbone, f'stages.{stage}.blocks.') for stage in range(stages)],
            num_heads=[side[-1] for side in sides],
        ),
        window_size=window,
    )


def _identify_resnet(backbone: StateDict) -> Optional[dict]:
    bottleneck = 'layer1.0.conv3.weight' in backbone
    blocks = sum(count_modules(backbone, f'layer{stage}.') for stage in (1, 2, 3, 4))
    depth = (3 if bottleneck else 2) * blocks + 2  # verified when it is built
    width = _size(backbone, 'layer1.0.conv1.weight')[0]
    if depth not in RESNET_DEPTHS or _size(backbone, 'layer1.0.conv2.weight')[:2] != (width, width):
        return None
    if bottleneck and _size(backbone, 'layer1.0.conv3.weight')[0] != 4 * width:
        return None
    stems = {'stem.0.conv.weight': '', 'stem.0.weight': 'mmseg.'}  # mmpretrain's names, mmseg's and mmdet's
    for key, scope in stems.items():
        if key in backbone:
            pooled = 'layer2.0.downsample.2.weight' in backbone  # pooling, convolution, BN instead of convolution, BN
            return dict(type=f'{scope}ResNetV1d' if pooled else f'{scope}ResNetV1c', depth=depth)
    stem = _size(backbone, 'conv1.weight')
    if stem[-1] not in (3, 7):
        return None
    config = dict(type='ResNet' if stem[-1] == 7 else 'ResNet_CIFAR', depth=depth)
    if (width, stem[0]) != (64, 64):
        config.update(stem_channels=stem[0], base_channels=width)
    return config


def _identify_pyramidnet(backbone: StateDict) -> Optional[dict]:
    blocks = sum(count_modules(backbone, f'layer{stage}.') for stage in (1, 2, 3))
    # The widths grow from the stem's 16 to this one by alpha in all.
    alpha = _size(backbone, 'bn_final.weight')[0] // 4 - 16
    known = 'layer1.0.bn4.weight' in backbone and alpha > 0 and blocks % 3 == 0
    return dict(type='PyramidNetCIFAR', depth=3 * blocks + 2, alpha=alpha) if known else None


def _identify_densenet(backbone: StateDict) -> Optional[dict]:
    growth = _size(backbone, 'stages.0.block.0.conv2.weight')[0]
    depths = [count_modules(backbone, f'stages.{stage}.block.') for stage in range(4)]
    kernel = _size(backbone, 'stem.0.weight')
    if not growth or not all(depths):
        return None
    return dict(
        type='DenseNetCIFAR' if kernel[-1] == 3 else 'DenseNet',
        arch=dict(growth_rate=growth, depths=depths, init_channels=kernel[0]),
    )


def _size(state_dict: StateDict, key: str) -> tuple:
    """The shape of a tensor, zeros where there is none."""
    return tuple(state_dict[key].shape) or (0,) if key in state_dict else (0,)


def count_modules(state_dict: StateDict, start: str) -> int:
    """Number of numbered modules below ``start``."""
    return len({key[len(start) :].split('.', 1)[0] for key in state_dict if key.startswith(start)})


def describe(backbone: StateDict) -> str:
    """What the tensors look like, for a message: the config 'ResNet(depth=50)', or 'no network known here (...)'."""
    config = identify(backbone)
    if config is not None:
        arguments = ', '.join(f'{key}={value!r}' for key, value in config.items() if key != 'type')
        return f'{config["type"]}({arguments})'
    if 'layer1.0.conv1.weight' in backbone:
        return 'a ResNet of an unknown depth or kind (ResNeXt, wide, ...)'
    return f'no network known here (tensors {abbreviate(backbone)})' if backbone else 'nothing'


def find_prefixes(backbone: StateDict) -> List[str]:
    """The prefixes that hide networks in these tensors: what ends in ``backbone.``, else what a known network has."""
    found = (re.match(r'(?:.*?\.)?backbone\.', key) for key in backbone)
    prefixes = sorted({match[0] for match in found if match})
    if not prefixes:
        begins = sorted({key.partition('.')[0] + '.' for key in backbone})
        prefixes = [begin for begin in begins if identify(split(strip_prefix(begin, backbone)).backbone)]
    return prefixes


def compare(wanted: StateDict, given: StateDict, network: str = 'the network') -> str:
    """Where names and shapes of two state dicts differ, in words; '' if nowhere. BN's counters may be absent.

    Args:
        wanted (dict): The tensors of a network.
        given (dict): Those of a file.
        network (str): What to call the network. Defaults to 'the network'.
    """
    missing = [key for key in wanted if key not in given and not key.endswith(COUNTER)]
    unexpected = [key for key in given if key not in wanted and not key.endswith(COUNTER)]
    shapes = [
        f'{key} is {tuple(given[key].shape)} instead of {tuple(wanted[key].shape)}'
        for key in wanted
        if key in given and wanted[key].shape != given[key].shape
    ]
    problems = (
        (missing, f'of {len(wanted)} tensors not in the file'),
        (unexpected, f'of {len(given)} tensors not in {network}'),
        (shapes, 'tensors of another shape'),
    )
    return '; '.join(f'{len(keys)} {problem}: {abbreviate(keys)}' for keys, problem in problems if keys)


def rename_by_shape(given: StateDict, wanted: StateDict, optional: Collection[str], source: str) -> StateDict:
    """Tensors under the names of ``wanted``: as they are, or where they have the same shapes in the same order.

    Args:
        given (dict): The tensors of a file.
        wanted (dict): Those of the network.
        optional (Collection[str]): Names of ``wanted`` that the file may lack.
        source (str): The file, for messages.
    """
    counters = {key: wanted[key] for key in wanted if key.endswith(COUNTER)}
    missing = [key for key in wanted if key not in given and key not in counters and key not in optional]
    if not missing:
        return {**counters, **given}
    names = [key for key in wanted if key not in counters]
    tensors = [tensor for key, tensor in given.items() if not key.endswith(COUNTER)]
    if [wanted[key].shape for key in names] != [tensor.shape for tensor in tensors]:
        raise UserFileError(f'{source}: {len(missing)} tensors of the network are not in it: {abbreviate(missing)}.')
    return {**counters, **dict(zip(names, tensors))}
