"""Classifiers under the names of torchvision, timm and transformers.

Each function at the end makes one cell of the table in docs/weights.md: it renames the tensors and says how the other
library builds the network. :func:`check_target` builds both networks, loads strictly and compares their logits, so that
what is written computes the same there.
"""

import importlib
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import nn

from ..utils.config import type_name
from ..utils.errors import UserError, UserFileError, UserValueError
from ..utils.trust import registered_only
from .layouts import PVT_DEPTHS, Network, Rules, StateDict, compare, count_modules, describe, pvt_to_timm, rename

LIBRARIES = ('torchvision', 'timm', 'transformers')
TOLERANCE = 1e-3  # of the largest logit; renaming mistakes are of the order of 1


class Facts(NamedTuple):
    """What a renaming must know of a checkpoint.

    Args:
        network (Network): Its tensors.
        config (dict): Its backbone, as :func:`~mmrm.weights.layouts.identify` found it; empty if unknown.
        source (Path): Its file, for messages.
        backbone (dict): The ``backbone`` of the config that made it; empty if not known.
        norm_first (bool): Whether a ConvNeXt normalises its map before pooling, as RM makes it do.
        size (int, optional): Side of its images in pixels, where known.
        foreign (bool): Whether ``backbone`` is of a config that others wrote.
    """

    network: Network
    config: dict
    source: Path
    backbone: dict
    norm_first: bool
    size: Optional[int] = None
    foreign: bool = True

    @property
    def classes(self) -> int:
        return len(self.network.head['fc.bias'])

    @property
    def is_timm(self) -> bool:
        """Whether the backbone is mmpretrain's TIMMBackbone."""
        return any(key.startswith('timm_model.') for key in self.network.backbone)

    def with_head(self, backbone: StateDict, name: str) -> StateDict:
        """The tensors of a renamed backbone and of the linear layer, which is called ``name`` there."""
        head = self.network.head
        return {**backbone, f'{name}.weight': head['fc.weight'], f'{name}.bias': head['fc.bias']}


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
    cell = CELLS.get((layout, 'TIMMBackbone' if facts.is_timm else facts.config.get('type')))
    if cell is None:
        names = ', '.join(known for wanted, known in CELLS if wanted == layout)
        raise UserValueError(
            f'{facts.source} is {describe(facts.network.backbone)}: the {layout} layout is not provided for it, '
            f'only for {names}.'
        )
    return cell(facts)


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
    problems = compare(theirs.state_dict(), target.state_dict)
    if problems:
        raise UserFileError(f'{facts.source} does not fit {target.how}: {problems}')
    theirs.load_state_dict(target.state_dict, strict=False)  # the counters of BN may be absent
    images = torch.randn(1, 3, target.size, target.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = source_classifier(facts)(images)
        found = theirs.eval()(images)
    difference = relative_difference(getattr(found, 'logits', found), expected)
    if not difference < target.tolerance:
        raise UserFileError(
            f'{facts.source} has other logits in {target.how}: they differ by {difference:.1g} of the largest. '
            'Nothing was written.'
        )
    return True


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of two tensors, of the largest value."""
    return (found - expected).abs().max().item() / max(expected.abs().max().item(), 1e-6)


def source_classifier(facts: Facts) -> Callable[[torch.Tensor], torch.Tensor]:
    """mmpretrain's own network of these tensors, from images to logits."""
    from mmpretrain.registry import MODELS

    if facts.is_timm:
        config = dict(facts.backbone, pretrained=False)
    else:
        config = dict(facts.config)
        if type_name(facts.backbone) == type_name(config):  # what no tensor shows, such as strides: as it was trained
            config = {**config, **facts.backbone, 'type': config['type']}
        if config['type'] == 'ConvNeXt':
            config['gap_before_final_norm'] = not facts.norm_first
        fill_registry(config)
    config.pop('init_cfg', None)
    backbone = registered_only(f'checkpoint {facts.source}' if facts.foreign else '')(MODELS.build)(config)
    backbone.load_state_dict(facts.network.backbone, strict=False)
    backbone.eval()
    weight, bias = facts.network.head['fc.weight'].float(), facts.network.head['fc.bias'].float()

    def classify(images: torch.Tensor) -> torch.Tensor:
        features = backbone(images)[-1]
        return nn.functional.linear(features.mean((2, 3)) if features.ndim == 4 else features, weight, bias)

    return classify


def fill_registry(config: dict) -> None:
    """Import the toolbox of a type such as ``mmdet.PyramidVisionTransformerV2``: that fills its registry."""
    scope, separator, _ = str(config['type']).partition('.')
    if separator:
        importlib.import_module(f'{scope}.models')


# ------------------------------------------------------------------------------------------------ how the others build
def _timm(facts: Facts, backbone: StateDict, head: str, name: str, arguments: Optional[dict] = None) -> Target:
    arguments = arguments or {}

    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=facts.classes, **arguments)

    shown = ''.join(f', {key}={value!r}' for key, value in arguments.items())
    hub = dict(architecture=name, model_args=arguments)
    return Target(facts.with_head(backbone, head), build, f"timm.create_model('{name}'{shown})", hub=hub)


def _transformers(facts: Facts, backbone: StateDict, head: str, kind: str, size: int = 64, **arguments) -> Target:
    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f'{kind}Config')(num_labels=facts.classes, **arguments)
        return getattr(transformers, f'{kind}ForImageClassification')(config)

    return Target(facts.with_head(backbone, head), build, f'transformers.{kind}ForImageClassification', size)


# --------------------------------------------------------------------------------------------------------------- ResNet
def _resnet_name(facts: Facts, library: str) -> str:
    if 'base_channels' in facts.config:
        raise UserValueError(
            f"{facts.source} is {describe(facts.network.backbone)}: {library}'s ResNets have the width 64, those "
            'of transformers any.'
        )
    return f'resnet{facts.config["depth"]}'


def _resnet_torchvision(facts: Facts) -> Target:
    name = _resnet_name(facts, 'torchvision')

    def build() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=facts.classes)

    return Target(facts.with_head(facts.network.backbone, 'fc'), build, f'torchvision.models.{name}')


def _resnet_timm(facts: Facts) -> Target:
    return _timm(facts, facts.network.backbone, 'fc', _resnet_name(facts, 'timm'))


def _resnet_transformers(facts: Facts) -> Target:
    backbone = facts.network.backbone
    bottleneck = 'layer1.0.conv3.weight' in backbone
    block = 'resnet.encoder.stages.{-1}.layers.{}'
    rules = [
        ('conv1.', 'resnet.embedder.embedder.convolution.'),
        ('bn1.', 'resnet.embedder.embedder.normalization.'),
        ('layer{}.{}.conv{}.', f'{block}.layer.{{-1}}.convolution.'),
        ('layer{}.{}.bn{}.', f'{block}.layer.{{-1}}.normalization.'),
        ('layer{}.{}.downsample.0.', f'{block}.shortcut.convolution.'),
        ('layer{}.{}.downsample.1.', f'{block}.shortcut.normalization.'),
    ]
    return _transformers(
        facts,
        rename(backbone, rules),
        'classifier.1',
        'ResNet',
        embedding_size=len(backbone['bn1.weight']),
        hidden_sizes=[len(backbone[f'layer{stage}.0.bn{3 if bottleneck else 2}.weight']) for stage in (1, 2, 3, 4)],
        depths=[count_modules(backbone, f'layer{stage}.') for stage in (1, 2, 3, 4)],
        layer_type='bottleneck' if bottleneck else 'basic',
    )


# ------------------------------------------------------------------------------------------------------------- ConvNeXt
def _check_pools_first(facts: Facts, library: str) -> None:
    if facts.norm_first:
        raise UserValueError(
            f"{facts.source} is a ConvNeXt that normalizes before it pools, as RM needs it; {library}'s pools "
            'first and would give other logits. Use --layout timm (head_norm_first=True) or onnx.'
        )


def _convnext_torchvision(facts: Facts) -> Target:
    _check_pools_first(facts, 'torchvision')
    arch = facts.config['arch']
    rules = [
        ('norm3.', 'classifier.0.'),
        ('downsample_layers.{}.', 'features.{*2}.'),
        ('stages.{}.{}.gamma', 'features.{*2+1}.{}.layer_scale'),
        ('stages.{}.{}.depthwise_conv.', 'features.{*2+1}.{}.block.0.'),
        ('stages.{}.{}.norm.', 'features.{*2+1}.{}.block.2.'),
        ('stages.{}.{}.pointwise_conv1.', 'features.{*2+1}.{}.block.3.'),
        ('stages.{}.{}.pointwise_conv2.', 'features.{*2+1}.{}.block.5.'),
    ]
    backbone = {
        key: value[:, None, None] if key.endswith('.layer_scale') else value
        for key, value in rename(facts.network.backbone, rules).items()
    }

    def build() -> nn.Module:
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        stages = zip(arch['channels'], [*arch['channels'][1:], None], arch['depths'])
        return ConvNeXt([CNBlockConfig(*stage) for stage in stages], num_classes=facts.classes)

    return Target(facts.with_head(backbone, 'classifier.2'), build, "torchvision's ConvNeXt")


def _convnext_timm(facts: Facts) -> Target:
    rules = [
        ('downsample_layers.0.', 'stem.'),
        ('downsample_layers.{}.', 'stages.{}.downsample.'),
        ('norm3.', 'norm_pre.' if facts.norm_first else 'head.norm.'),
        ('stages.{}.{}.depthwise_conv.', 'stages.{}.blocks.{}.conv_dw.'),
        ('stages.{}.{}.pointwise_conv{}.', 'stages.{}.blocks.{}.mlp.fc{}.'),
        ('stages.{}.{}.', 'stages.{}.blocks.{}.'),
    ]
    arguments = dict(depths=list(facts.config['arch']['depths']), dims=list(facts.config['arch']['channels']))
    if facts.norm_first:
        arguments['head_norm_first'] = True
    return _timm(facts, rename(facts.network.backbone, rules), 'head.fc', 'convnext_tiny', arguments)


def _convnext_transformers(facts: Facts) -> Target:
    _check_pools_first(facts, 'transformers')
    arch = facts.config['arch']
    block = 'convnext.encoder.stages.{}.layers.{}'
    rules = [
        ('downsample_layers.0.0.', 'convnext.embeddings.patch_embeddings.'),
        ('downsample_layers.0.1.', 'convnext.embeddings.layernorm.'),
        ('downsample_layers.{}.', 'convnext.encoder.stages.{}.downsampling_layer.'),
        ('norm3.', 'convnext.layernorm.'),
        ('stages.{}.{}.gamma', f'{block}.layer_scale_parameter'),
        ('stages.{}.{}.depthwise_conv.', f'{block}.dwconv.'),
        ('stages.{}.{}.norm.', f'{block}.layernorm.'),
        ('stages.{}.{}.pointwise_conv{}.', f'{block}.pwconv{{}}.'),
    ]
    return _transformers(
        facts,
        rename(facts.network.backbone, rules),
        'classifier',
        'ConvNext',
        depths=list(arch['depths']),
        hidden_sizes=list(arch['channels']),
        layer_norm_eps=1e-6,
    )


# ----------------------------------------------------------------------------------------------------------------- Swin
def _swin_backbone(facts: Facts, rules: Rules, keep_index: bool = False) -> StateDict:
    """A Swin's tensors under other names, its patches merged in the others' order.

    Four patches are merged channel by channel in mmpretrain, patch by patch (column by column) elsewhere.
    """
    backbone = {}
    for key, value in facts.network.backbone.items():
        if '.downsample.' in key:
            *rows, width = value.shape
            # (C, row, column) -> (column, row, C)
            value = value.reshape(*rows, width // 4, 2, 2).transpose(-1, -3).reshape(*rows, width).contiguous()
        if keep_index or not key.endswith('relative_position_index'):
            backbone[key] = value
    return rename(backbone, rules)


def _swin_arguments(facts: Facts) -> Tuple[int, dict]:
    """The side of the images on which a Swin is compared, by default one window in its last map; its arguments."""
    arch, window = facts.config['arch'], facts.config['window_size']
    size = facts.size or 4 * 2 ** (len(arch['depths']) - 1) * window
    depths, heads = list(arch['depths']), list(arch['num_heads'])
    return size, dict(embed_dim=arch['embed_dims'], depths=depths, num_heads=heads, window_size=window)


def _swin_torchvision(facts: Facts) -> Target:
    size, arguments = _swin_arguments(facts._replace(size=None))
    rules = [
        ('patch_embed.projection.', 'features.0.0.'),
        ('patch_embed.norm.', 'features.0.2.'),
        ('norm3.', 'norm.'),
        ('stages.{}.blocks.{}.attn.w_msa.', 'features.{*2+1}.{}.attn.'),
        ('stages.{}.blocks.{}.ffn.layers.0.0.', 'features.{*2+1}.{}.mlp.0.'),
        ('stages.{}.blocks.{}.ffn.layers.1.', 'features.{*2+1}.{}.mlp.3.'),
        ('stages.{}.blocks.{}.', 'features.{*2+1}.{}.'),
        ('stages.{}.downsample.', 'features.{*2+2}.'),
    ]
    backbone = {
        key: value.flatten() if key.endswith('relative_position_index') else value
        for key, value in _swin_backbone(facts, rules, keep_index=True).items()
    }

    def build() -> nn.Module:
        from torchvision.models.swin_transformer import SwinTransformer

        window = [arguments['window_size']] * 2
        return SwinTransformer([4, 4], **dict(arguments, window_size=window), num_classes=facts.classes)

    return Target(facts.with_head(backbone, 'head'), build, "torchvision's SwinTransformer", size)


def _swin_timm(facts: Facts) -> Target:
    block = 'layers.{}.blocks.{}'
    rules = [
        ('patch_embed.projection.', 'patch_embed.proj.'),
        ('norm3.', 'norm.'),
        ('stages.{}.blocks.{}.attn.w_msa.', f'{block}.attn.'),
        ('stages.{}.blocks.{}.ffn.layers.0.0.', f'{block}.mlp.fc1.'),
        ('stages.{}.blocks.{}.ffn.layers.1.', f'{block}.mlp.fc2.'),
        ('stages.{}.blocks.{}.', f'{block}.'),
        ('stages.{}.downsample.', 'layers.{+1}.downsample.'),
    ]
    size, arguments = _swin_arguments(facts)
    target = _timm(
        facts, _swin_backbone(facts, rules), 'head.fc', 'swin_tiny_patch4_window7_224', dict(img_size=size, **arguments)
    )
    return target._replace(size=size)


def _swin_transformers(facts: Facts) -> Target:
    block, table = 'swin.encoder.layers.{}.blocks.{}', 'relative_position_bias_table'
    rules = [
        ('patch_embed.projection.', 'swin.embeddings.patch_embeddings.projection.'),
        ('patch_embed.norm.', 'swin.embeddings.norm.'),
        ('norm3.', 'swin.layernorm.'),
        ('stages.{}.blocks.{}.norm1.', f'{block}.layernorm_before.'),
        ('stages.{}.blocks.{}.norm2.', f'{block}.layernorm_after.'),
        ('stages.{}.blocks.{}.ffn.layers.0.0.', f'{block}.mlp.fc1.'),
        ('stages.{}.blocks.{}.ffn.layers.1.', f'{block}.mlp.fc2.'),
        (f'stages.{{}}.blocks.{{}}.attn.w_msa.{table}', f'{block}.attention.relative_position_bias.{table}'),
        ('stages.{}.blocks.{}.attn.w_msa.proj.', f'{block}.attention.o_proj.'),
        ('stages.{}.blocks.{}.attn.w_msa.', f'{block}.attention.'),
        ('stages.', 'swin.encoder.layers.'),
    ]
    backbone = {}
    for key, value in _swin_backbone(facts, rules).items():
        if '.attention.qkv.' in key:
            for name, part in zip('qkv', value.chunk(3)):
                backbone[key.replace('.qkv.', f'.{name}_proj.')] = part
        else:
            backbone[key] = value
    size, arguments = _swin_arguments(facts)
    return _transformers(facts, backbone, 'classifier', 'Swin', size, image_size=size, **arguments)


# ------------------------------------------------------------------------------------------------- PVTv2 and timm's own
def _pvt_timm(facts: Facts) -> Target:
    depths = tuple(facts.config['num_layers'])
    number = 'B0' if facts.config['embed_dims'] == 32 else PVT_DEPTHS.get(depths)
    name = f'pvt_v2_{(number or "b1").lower()}'
    arguments = {} if number else dict(depths=list(depths))
    # timm adds 1e-5 in some of its norms, mmdet 1e-6.
    return _timm(facts, pvt_to_timm(facts.network.backbone), 'head', name, arguments)._replace(tolerance=5e-3)


def _timm_itself(facts: Facts) -> Target:
    not_timms = ('type', 'init_cfg', 'pretrained', 'checkpoint_path', 'features_only', 'in_channels', 'model_name')
    given = {key: value for key, value in facts.backbone.items() if key not in not_timms}
    name = facts.backbone.get('model_name')
    if not name:
        raise UserValueError(
            f'{facts.source} has a backbone of timm, but its name is unknown: the config that made it is needed '
            "(a run's folder, or --config)."
        )
    rules = [('timm_model.', '')]
    if 'convnext' in name and 'timm_model.head.norm.weight' in facts.network.backbone:
        given['head_norm_first'] = True
        rules.insert(0, ('timm_model.head.norm.', 'norm_pre.'))
    target = _timm(facts, {}, '', name, given)._replace(size=facts.size or 224)
    try:
        classifier = target.build().pretrained_cfg['classifier']
    except ImportError:
        raise UserError(f"{facts.source} is timm's {name}, and timm is not installed: pip install timm") from None
    return target._replace(state_dict=facts.with_head(rename(facts.network.backbone, rules), classifier))


CELLS: Dict[tuple, Callable[[Facts], Target]] = {
    ('torchvision', 'ResNet'): _resnet_torchvision,
    ('torchvision', 'ConvNeXt'): _convnext_torchvision,
    ('torchvision', 'SwinTransformer'): _swin_torchvision,
    ('timm', 'ResNet'): _resnet_timm,
    ('timm', 'ConvNeXt'): _convnext_timm,
    ('timm', 'SwinTransformer'): _swin_timm,
    ('timm', 'mmdet.PyramidVisionTransformerV2'): _pvt_timm,
    ('timm', 'TIMMBackbone'): _timm_itself,
    ('transformers', 'ResNet'): _resnet_transformers,
    ('transformers', 'ConvNeXt'): _convnext_transformers,
    ('transformers', 'SwinTransformer'): _swin_transformers,
}
