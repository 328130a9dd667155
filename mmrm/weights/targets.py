"""Classifiers under the names of torchvision, timm and transformers.

Each function below makes one cell of the table in docs/weights.md: it renames the tensors and tells how the other
library builds the network. :func:`check_target` builds both networks, loads strictly and compares their logits, so that
what is written says the same there.
"""

import importlib
import re
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import nn

from ..utils.config import type_name
from ..utils.errors import UserError, UserFileError, UserValueError, one_line
from .layouts import PVT_DEPTHS, Network, StateDict, abbreviate, compare, describe, pvt_to_timm

LIBRARIES = ('torchvision', 'timm', 'transformers')
TOLERANCE = 1e-3  # of the largest logit; renaming mistakes are of the order of 1


class Facts(NamedTuple):
    """What a renaming must know of a checkpoint.

    Args:
        network (Network): Its tensors.
        config (dict, optional): Its backbone, as :func:`~mmrm.weights.layouts.identify` found it; None if unknown.
        source (Path): Its file, for messages.
        backbone (dict): The ``backbone`` of the config that made it; empty if not known.
        norm_first (bool): Whether a ConvNeXt normalises its map before pooling, as RM makes it do.
        size (int, optional): Side of its images in pixels, where known.
    """

    network: Network
    config: Optional[dict]
    source: Path
    backbone: dict
    norm_first: bool
    size: Optional[int] = None

    @property
    def classes(self) -> int:
        return len(self.network.head['fc.bias'])


class Target(NamedTuple):
    """A classifier in another library.

    Args:
        state_dict (dict): Its tensors.
        build (callable): Makes the network there, untrained.
        how (str): What builds it, in words for messages and notes.
        size (int): Side of the images on which both are compared.
        hub (dict): What a ``config.json`` of timm needs: ``architecture`` and ``model_args``.
        tolerance (float): How far the logits may differ, of the largest one.
    """

    state_dict: StateDict
    build: Callable[[], nn.Module]
    how: str
    size: int = 64
    hub: Dict[str, Any] = {}
    tolerance: float = TOLERANCE


def make_target(layout: str, facts: Facts) -> Target:
    """The classifier of ``facts`` in a library.

    Raises:
        UserValueError: If there is no such cell, or the library's own network would compute something else.
    """
    kind = 'TIMMBackbone' if is_timm(facts) else (facts.config or {}).get('type')
    cell = CELLS.get((layout, kind))
    if cell is None:
        names = ', '.join(dict.fromkeys(NAMES[known] for wanted, known in CELLS if wanted == layout))
        raise UserValueError(
            f'{facts.source} is {describe(facts.network.backbone)}: the {layout} layout is not provided for it, '
            f'only for {names}.'
        )
    return cell(facts)


def is_timm(facts: Facts) -> bool:
    """Whether the backbone is mmpretrain's TIMMBackbone."""
    return any(key.startswith('timm_model.') for key in facts.network.backbone)


def check_target(layout: str, target: Target, facts: Facts) -> bool:
    """Load a target strictly into its library's own class and compare its logits with those of mmpretrain's network.

    Returns:
        bool: False if the library is not installed, and nothing was compared.

    Raises:
        UserFileError: If names, shapes or logits differ.
    """
    try:
        importlib.import_module(layout)
    except ImportError:
        if layout == 'transformers':  # its names change between versions
            raise UserError('the layout transformers needs that package: pip install transformers') from None
        return False
    theirs = target.build()
    missing, left, shapes = compare(theirs.state_dict(), target.state_dict)
    for problem, keys in (('lacks', missing), ('has, unlike it,', left), ('has in another shape', shapes)):
        if keys:
            raise UserFileError(
                f'{facts.source} does not fit {target.how}: it {problem} {len(keys)} tensors: {abbreviate(keys)}'
            )
    theirs.load_state_dict(target.state_dict, strict=False)  # the counters of BN may be absent
    images = torch.randn(1, 3, target.size, target.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = source_classifier(facts)(images)
        found = theirs.eval()(images)
    found = getattr(found, 'logits', found)
    apart = (found - expected).abs().max().item() / max(expected.abs().max().item(), 1e-6)
    if not apart < target.tolerance:
        raise UserFileError(
            f'{facts.source} says something else in {target.how}: its logits differ by {apart:.1g} of the largest. '
            'Nothing was written.'
        )
    return True


def source_classifier(facts: Facts) -> nn.Module:
    """mmpretrain's own network of these tensors, from images to logits."""
    from mmpretrain.registry import MODELS

    config = dict(facts.backbone) if is_timm(facts) else dict(facts.config or {})
    if not is_timm(facts) and facts.backbone and type_name(facts.backbone) == type_name(config):
        # What no tensor shows, such as strides: as it was trained.
        config = {**config, **facts.backbone, 'type': config['type']}
    if config['type'] == 'ConvNeXt':
        config['gap_before_final_norm'] = not facts.norm_first
    if '.' in str(config['type']):  # another toolbox's: its registry is filled by the import
        importlib.import_module(f'{config["type"].split(".")[0]}.models')
    config.pop('init_cfg', None)
    config.update(pretrained=False) if is_timm(facts) else None
    backbone = MODELS.build(config)
    backbone.load_state_dict(facts.network.backbone, strict=False)
    weight, bias = facts.network.head['fc.weight'], facts.network.head['fc.bias']
    backbone.eval()

    def classify(images: torch.Tensor) -> torch.Tensor:
        features = backbone(images)[-1]
        pooled = features.mean((2, 3)) if features.ndim == 4 else features
        return torch.nn.functional.linear(pooled, weight.float(), bias.float())

    return classify


def _with_head(state_dict: StateDict, facts: Facts, name: str) -> StateDict:
    head = facts.network.head
    return {**state_dict, f'{name}.weight': head['fc.weight'], f'{name}.bias': head['fc.bias']}


# --------------------------------------------------------------------------------------------------------------- ResNet
def _resnet(facts: Facts, library: str) -> Target:
    config = facts.config or {}
    if 'base_channels' in config:
        raise UserValueError(
            f"{facts.source} is {describe(facts.network.backbone)}: {library}'s ResNets have the width 64."
        )
    name = f'resnet{config["depth"]}'

    def build() -> nn.Module:
        if library == 'timm':
            import timm

            return timm.create_model(name, num_classes=facts.classes)
        import torchvision

        return getattr(torchvision.models, name)(num_classes=facts.classes)

    how = f"timm.create_model('{name}')" if library == 'timm' else f'torchvision.models.{name}'
    return Target(_with_head(dict(facts.network.backbone), facts, 'fc'), build, how, hub=dict(architecture=name))


def _resnet_transformers(facts: Facts) -> Target:
    backbone = facts.network.backbone
    bottleneck = 'layer1.0.conv3.weight' in backbone

    def rename(key: str) -> str:
        key = re.sub(r'^conv1\.', 'resnet.embedder.embedder.convolution.', key)
        key = re.sub(r'^bn1\.', 'resnet.embedder.embedder.normalization.', key)
        key = re.sub(r'^layer(\d)\.(\d+)\.', lambda at: f'resnet.encoder.stages.{int(at[1]) - 1}.layers.{at[2]}.', key)
        key = re.sub(r'\.conv(\d)\.', lambda at: f'.layer.{int(at[1]) - 1}.convolution.', key)
        key = re.sub(r'\.bn(\d)\.', lambda at: f'.layer.{int(at[1]) - 1}.normalization.', key)
        return key.replace('.downsample.0.', '.shortcut.convolution.').replace(
            '.downsample.1.', '.shortcut.normalization.'
        )

    last = 3 if bottleneck else 2
    sizes = [len(backbone[f'layer{stage}.0.bn{last}.weight']) for stage in (1, 2, 3, 4)]
    depths = [
        len({key.split('.')[1] for key in backbone if key.startswith(f'layer{stage}.')}) for stage in (1, 2, 3, 4)
    ]

    def build() -> nn.Module:
        from transformers import ResNetConfig, ResNetForImageClassification

        return ResNetForImageClassification(
            ResNetConfig(
                embedding_size=len(backbone['bn1.weight']),
                hidden_sizes=sizes,
                depths=depths,
                layer_type='bottleneck' if bottleneck else 'basic',
                num_labels=facts.classes,
            )
        )

    state_dict = _with_head({rename(key): value for key, value in backbone.items()}, facts, 'classifier.1')
    return Target(state_dict, build, 'transformers.ResNetForImageClassification')


# ------------------------------------------------------------------------------------------------------------- ConvNeXt
def _pool_first_only(facts: Facts, library: str) -> None:
    if facts.norm_first:
        raise UserValueError(
            f"{facts.source} is a ConvNeXt that normalises its map, then pools, as RM needs it; {library}'s pools "
            'first and would say something else. --layout timm has it (head_norm_first=True), and so has onnx.'
        )


def _convnext_rename(backbone: StateDict, rules) -> StateDict:
    renamed = {}
    for key, value in backbone.items():
        for pattern, new in rules:
            key, count = re.subn(pattern, new, key)
            if count:
                break
        renamed[key] = value
    return renamed


def _convnext_torchvision(facts: Facts) -> Target:
    _pool_first_only(facts, 'torchvision')
    arch = (facts.config or {})['arch']

    def odd(at: re.Match, part: str) -> str:
        return f'features.{2 * int(at[1]) + 1}.{at[2]}.{part}'

    rules = [
        (r'^downsample_layers\.(\d)\.', lambda at: f'features.{2 * int(at[1])}.'),
        (r'^norm3\.', 'classifier.0.'),
        *(
            (rf'^stages\.(\d)\.(\d+)\.{old}', lambda at, new=new: odd(at, new))
            for old, new in (
                (r'gamma$', 'layer_scale'),
                (r'depthwise_conv\.', 'block.0.'),
                (r'norm\.', 'block.2.'),
                (r'pointwise_conv1\.', 'block.3.'),
                (r'pointwise_conv2\.', 'block.5.'),
            )
        ),
    ]
    state_dict = _convnext_rename(facts.network.backbone, rules)
    for key in [key for key in state_dict if key.endswith('.layer_scale')]:
        state_dict[key] = state_dict[key][:, None, None]

    def build() -> nn.Module:
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        channels = [*arch['channels'], None]
        blocks = [CNBlockConfig(channels[n], channels[n + 1], arch['depths'][n]) for n in range(4)]
        return ConvNeXt(blocks, num_classes=facts.classes)

    return Target(_with_head(state_dict, facts, 'classifier.2'), build, "torchvision's ConvNeXt")


def _convnext_timm(facts: Facts) -> Target:
    arch = (facts.config or {})['arch']
    rules = [
        (r'^downsample_layers\.0\.', 'stem.'),
        (r'^downsample_layers\.(\d)\.', r'stages.\1.downsample.'),
        (r'^norm3\.', 'norm_pre.' if facts.norm_first else 'head.norm.'),
        (r'^stages\.(\d)\.(\d+)\.depthwise_conv\.', r'stages.\1.blocks.\2.conv_dw.'),
        (r'^stages\.(\d)\.(\d+)\.pointwise_conv(\d)\.', r'stages.\1.blocks.\2.mlp.fc\3.'),
        (r'^stages\.(\d)\.(\d+)\.', r'stages.\1.blocks.\2.'),
    ]
    arguments = dict(depths=list(arch['depths']), dims=list(arch['channels']))
    if facts.norm_first:
        arguments['head_norm_first'] = True

    def build() -> nn.Module:
        import timm

        return timm.create_model('convnext_tiny', num_classes=facts.classes, **arguments)

    shown = ', '.join(f'{key}={value}' for key, value in arguments.items())
    return Target(
        _with_head(_convnext_rename(facts.network.backbone, rules), facts, 'head.fc'),
        build,
        f"timm.create_model('convnext_tiny', {shown})",
        hub=dict(architecture='convnext_tiny', model_args=arguments),
    )


def _convnext_transformers(facts: Facts) -> Target:
    _pool_first_only(facts, 'transformers')
    arch = (facts.config or {})['arch']
    start = 'convnext.encoder.stages'
    rules = [
        (r'^downsample_layers\.0\.0\.', 'convnext.embeddings.patch_embeddings.'),
        (r'^downsample_layers\.0\.1\.', 'convnext.embeddings.layernorm.'),
        (r'^downsample_layers\.(\d)\.', rf'{start}.\1.downsampling_layer.'),
        (r'^norm3\.', 'convnext.layernorm.'),
        (r'^stages\.(\d)\.(\d+)\.gamma$', rf'{start}.\1.layers.\2.layer_scale_parameter'),
        (r'^stages\.(\d)\.(\d+)\.depthwise_conv\.', rf'{start}.\1.layers.\2.dwconv.'),
        (r'^stages\.(\d)\.(\d+)\.norm\.', rf'{start}.\1.layers.\2.layernorm.'),
        (r'^stages\.(\d)\.(\d+)\.pointwise_conv(\d)\.', rf'{start}.\1.layers.\2.pwconv\3.'),
    ]

    def build() -> nn.Module:
        from transformers import ConvNextConfig, ConvNextForImageClassification

        return ConvNextForImageClassification(
            ConvNextConfig(
                depths=list(arch['depths']),
                hidden_sizes=list(arch['channels']),
                num_labels=facts.classes,
                layer_norm_eps=1e-6,
            )
        )

    state_dict = _with_head(_convnext_rename(facts.network.backbone, rules), facts, 'classifier')
    return Target(state_dict, build, 'transformers.ConvNextForImageClassification')


# ----------------------------------------------------------------------------------------------------------------- Swin
def _swin_merge_order(key: str, value: torch.Tensor) -> torch.Tensor:
    """Four patches are merged channel by channel in mmpretrain, patch by patch (column by column) elsewhere."""
    if '.downsample.' not in key:
        return value
    *rows, width = value.shape
    # (C, row, column) -> (column, row, C)
    return value.reshape(*rows, width // 4, 2, 2).transpose(-1, -3).reshape(*rows, width).contiguous()


def _swin_size(facts: Facts) -> int:
    """The images on which a Swin is compared: its last map is one window."""
    return 4 * 2 ** (len((facts.config or {})['arch']['depths']) - 1) * (facts.config or {})['window_size']


SWIN_BLOCK = r'^stages\.(\d)\.blocks\.(\d+)\.'


def _swin_torchvision(facts: Facts) -> Target:
    config = facts.config or {}
    state_dict = {}
    for key, value in facts.network.backbone.items():
        new = re.sub(r'^patch_embed\.projection\.', 'features.0.0.', key)
        new = re.sub(r'^patch_embed\.norm\.', 'features.0.2.', new)
        new = re.sub(r'^norm3\.', 'norm.', new)
        new = re.sub(SWIN_BLOCK, lambda at: f'features.{2 * int(at[1]) + 1}.{at[2]}.', new)
        new = re.sub(r'^stages\.(\d)\.downsample\.', lambda at: f'features.{2 * int(at[1]) + 2}.', new)
        new = new.replace('.attn.w_msa.', '.attn.').replace('.ffn.layers.0.0.', '.mlp.0.')
        new = new.replace('.ffn.layers.1.', '.mlp.3.')
        value = value.flatten() if new.endswith('relative_position_index') else value
        state_dict[new] = _swin_merge_order(key, value)

    def build() -> nn.Module:
        from torchvision.models.swin_transformer import SwinTransformer

        arch, window = config['arch'], config['window_size']
        return SwinTransformer(
            [4, 4],
            arch['embed_dims'],
            list(arch['depths']),
            list(arch['num_heads']),
            [window] * 2,
            num_classes=facts.classes,
        )

    return Target(_with_head(state_dict, facts, 'head'), build, "torchvision's SwinTransformer", _swin_size(facts))


def _swin_timm(facts: Facts) -> Target:
    config = facts.config or {}
    arch = config['arch']
    state_dict = {}
    for key, value in facts.network.backbone.items():
        if key.endswith('relative_position_index'):
            continue
        new = re.sub(r'^patch_embed\.projection\.', 'patch_embed.proj.', key)
        new = re.sub(r'^norm3\.', 'norm.', new)
        new = re.sub(SWIN_BLOCK, r'layers.\1.blocks.\2.', new)
        new = re.sub(r'^stages\.(\d)\.downsample\.', lambda at: f'layers.{int(at[1]) + 1}.downsample.', new)
        new = new.replace('.attn.w_msa.', '.attn.').replace('.ffn.layers.0.0.', '.mlp.fc1.')
        state_dict[new.replace('.ffn.layers.1.', '.mlp.fc2.')] = _swin_merge_order(key, value)
    size = facts.size or _swin_size(facts)
    arguments = dict(
        img_size=size,
        embed_dim=arch['embed_dims'],
        depths=list(arch['depths']),
        num_heads=list(arch['num_heads']),
        window_size=config['window_size'],
    )
    name = 'swin_tiny_patch4_window7_224'

    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=facts.classes, **arguments)

    shown = ', '.join(f'{key}={value}' for key, value in arguments.items())
    how = f"timm.create_model('{name}', {shown})"
    hub = dict(architecture=name, model_args=arguments)
    return Target(_with_head(state_dict, facts, 'head.fc'), build, how, size, hub)


def _swin_transformers(facts: Facts) -> Target:
    config = facts.config or {}
    arch = config['arch']
    state_dict = {}
    for key, value in facts.network.backbone.items():
        if key.endswith('relative_position_index'):
            continue
        new = re.sub(r'^patch_embed\.projection\.', 'swin.embeddings.patch_embeddings.projection.', key)
        new = re.sub(r'^patch_embed\.norm\.', 'swin.embeddings.norm.', new)
        new = re.sub(r'^norm3\.', 'swin.layernorm.', new)
        new = re.sub(r'^stages\.', 'swin.encoder.layers.', new)
        new = new.replace('.norm1.', '.layernorm_before.').replace('.norm2.', '.layernorm_after.')
        new = new.replace('.ffn.layers.0.0.', '.mlp.fc1.').replace('.ffn.layers.1.', '.mlp.fc2.')
        table = 'relative_position_bias_table'
        new = new.replace(f'.attn.w_msa.{table}', f'.attention.relative_position_bias.{table}')
        new = new.replace('.attn.w_msa.proj.', '.attention.o_proj.')
        if '.attn.w_msa.qkv.' in new:
            for name, part in zip('qkv', value.chunk(3)):
                state_dict[new.replace('.attn.w_msa.qkv.', f'.attention.{name}_proj.')] = part
            continue
        state_dict[new] = _swin_merge_order(key, value)
    size = facts.size or _swin_size(facts)

    def build() -> nn.Module:
        from transformers import SwinConfig, SwinForImageClassification

        return SwinForImageClassification(
            SwinConfig(
                image_size=size,
                embed_dim=arch['embed_dims'],
                depths=list(arch['depths']),
                num_heads=list(arch['num_heads']),
                window_size=config['window_size'],
                num_labels=facts.classes,
            )
        )

    return Target(_with_head(state_dict, facts, 'classifier'), build, 'transformers.SwinForImageClassification', size)


# ------------------------------------------------------------------------------------------------- PVTv2 and timm's own
def _pvt_timm(facts: Facts) -> Target:
    config = facts.config or {}
    depths = tuple(config['num_layers'])
    number = 'B0' if config['embed_dims'] == 32 else PVT_DEPTHS.get(depths)
    name = f'pvt_v2_{(number or "b1").lower()}'
    arguments = {} if number else dict(depths=list(depths))

    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=facts.classes, **arguments)

    hub = dict(architecture=name, model_args=arguments)
    state_dict = _with_head(pvt_to_timm(facts.network.backbone), facts, 'head')
    return Target(state_dict, build, f"timm.create_model('{name}')", 64, hub, tolerance=5e-3)


def _timm_itself(facts: Facts) -> Target:
    given = {key: value for key, value in facts.backbone.items() if key not in ('type', 'init_cfg', 'pretrained')}
    name = given.pop('model_name', None)
    if not name:
        raise UserValueError(
            f'{facts.source} has a backbone of timm, but nothing says which: the config that made it is needed '
            "(a run's folder, or --config)."
        )
    if given.pop('features_only', False):
        raise UserValueError(
            f"{facts.source}: timm's {name} was built with features_only=True, whose names are not those of the "
            'classifier. Train without features_only, or export onnx.'
        )
    given.pop('checkpoint_path', None)
    given = {('in_chans' if key == 'in_channels' else key): value for key, value in given.items()}
    rename: Tuple[str, str] = ('', '')
    if 'convnext' in name and 'timm_model.head.norm.weight' in facts.network.backbone:
        given['head_norm_first'], rename = True, ('head.norm.', 'norm_pre.')

    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=facts.classes, **given)

    try:
        classifier = build().pretrained_cfg['classifier']
    except ImportError:
        raise UserError(f"{facts.source} is timm's {name}, and timm is not installed: pip install timm") from None
    except Exception as error:
        raise UserFileError(f'{facts.source}: timm does not build its {name}: {one_line(error)}') from error
    if not isinstance(classifier, str):
        raise UserValueError(f"{facts.source}: timm's {name} has the classifiers {classifier}; one is supported.")
    state_dict = {}
    for key, value in facts.network.backbone.items():
        key = key[len('timm_model.') :] if key.startswith('timm_model.') else key
        state_dict[rename[1] + key[len(rename[0]) :] if rename[0] and key.startswith(rename[0]) else key] = value
    shown = ''.join(f', {key}={value!r}' for key, value in given.items())
    hub = dict(architecture=name, model_args=given)
    size = facts.size or 224
    return Target(_with_head(state_dict, facts, classifier), build, f"timm.create_model('{name}'{shown})", size, hub)


CELLS: Dict[tuple, Callable[[Facts], Target]] = {
    ('torchvision', 'ResNet'): lambda facts: _resnet(facts, 'torchvision'),
    ('torchvision', 'ConvNeXt'): _convnext_torchvision,
    ('torchvision', 'SwinTransformer'): _swin_torchvision,
    ('timm', 'ResNet'): lambda facts: _resnet(facts, 'timm'),
    ('timm', 'ConvNeXt'): _convnext_timm,
    ('timm', 'SwinTransformer'): _swin_timm,
    ('timm', 'mmdet.PyramidVisionTransformerV2'): _pvt_timm,
    ('timm', 'TIMMBackbone'): _timm_itself,
    ('transformers', 'ResNet'): _resnet_transformers,
    ('transformers', 'ConvNeXt'): _convnext_transformers,
    ('transformers', 'SwinTransformer'): _swin_transformers,
}
NAMES = {
    'ResNet': 'ResNets',
    'ConvNeXt': 'ConvNeXt',
    'SwinTransformer': 'Swin',
    'mmdet.PyramidVisionTransformerV2': 'PVTv2',
    'TIMMBackbone': "timm's own",
}
