"""A file's network is recognised by its tensors."""

import pytest
import torch

from mmrm.weights.layouts import describe, identify, pvt_to_timm, split
from mmrm.weights.provenance import tensor_hash

from networks import CIFARResNet, backbone, shake  # isort: skip

PVT = dict(type='PyramidVisionTransformerV2', embed_dims=8, num_layers=[1, 1, 1, 1])
KNOWN = [
    dict(type='ResNet', depth=18),
    dict(type='ResNet', depth=50, stem_channels=8, base_channels=8),
    dict(type='ResNet', depth=34, stem_channels=16, base_channels=16),
    dict(type='ResNetV1c', depth=18),
    dict(type='ResNetV1d', depth=18),
    dict(type='ResNet_CIFAR', depth=18, stem_channels=8, base_channels=8),
    dict(type='PyramidNetCIFAR', depth=29, alpha=24),
    dict(type='DenseNetCIFAR', arch=dict(growth_rate=4, depths=[2, 2, 2, 2], init_channels=8)),
    dict(PVT, type='mmdet.PyramidVisionTransformerV2'),
    dict(type='SwinTransformer', arch=dict(embed_dims=8, depths=[1, 2, 1, 1], num_heads=[1, 2, 4, 8]), window_size=2),
    dict(type='ConvNeXt', arch=dict(depths=[1, 2, 1, 1], channels=[4, 8, 16, 32])),
]


@pytest.mark.parametrize('config', KNOWN, ids=lambda config: config['type'])
def test_networks_of_the_configs_are_recognised_down_to_their_config_and_described_when_damaged(config):
    tensors = backbone('mmpretrain', **config).state_dict()
    assert identify(tensors) == config
    arguments = ', '.join(f'{key}={value!r}' for key, value in config.items() if key != 'type')
    assert describe(tensors) == f'{config["type"]}({arguments})'
    for key in tensors:  # messages are written about files in which anything may be missing or strange
        assert describe({other: value for other, value in tensors.items() if other != key})
        assert describe({**tensors, key: torch.ones(())})


def test_other_networks_are_described_as_far_as_possible():
    for config, words in (
        (dict(type='ResNeXt', depth=50), 'a ResNet of an unknown depth or kind (ResNeXt, wide, ...)'),
        (dict(type='MobileNetV3', arch='small'), 'no network known here (tensors '),
    ):
        tensors = backbone('mmpretrain', **config).state_dict()
        assert identify(tensors) is None and describe(tensors).startswith(words)
    assert describe({}) == 'nothing'


def test_pvt_survives_timms_names_and_the_authors_names_are_those_that_mmdet_converts():
    """Against mmdet's own converter of the PVT authors' files."""
    from mmdet.models.backbones.pvt import pvt_convert

    tensors = shake(backbone(**PVT)).state_dict()
    timm = pvt_to_timm(tensors)
    back = split(timm)
    assert back.layout == "timm's PVT names" and back.backbone.keys() == tensors.keys()
    assert all(torch.equal(back.backbone[key], value) for key, value in tensors.items())
    authors = {}
    for key, value in timm.items():
        key = key.replace('patch_embed.', 'patch_embed1.').replace('mlp.dwconv.', 'mlp.dwconv.dwconv.')
        for stage in range(4):
            key = key.replace(f'stages.{stage}.downsample.', f'patch_embed{stage + 1}.')
            key = key.replace(f'stages.{stage}.blocks.', f'block{stage + 1}.')
            key = key.replace(f'stages.{stage}.norm.', f'norm{stage + 1}.')
        authors[key] = value
    expected = pvt_convert(authors)
    found = split(dict(authors, **{'head.weight': torch.ones(3, 512)}))
    assert found.layout == "PVT authors' names"
    assert found.backbone.keys() == expected.keys() and list(found.head) == ['fc.weight']
    assert all(torch.equal(found.backbone[key], value) for key, value in expected.items())


def test_a_hash_does_not_depend_on_order_or_memory_and_takes_every_type():
    tensors = shake(CIFARResNet()).state_dict()
    turned = {
        key: value.to(memory_format=torch.channels_last) if value.ndim == 4 else value
        for key, value in reversed(tensors.items())
    }
    assert tensor_hash(turned) == tensor_hash(tensors)
    assert tensor_hash({'x' + key: value for key, value in tensors.items()}) != tensor_hash(tensors)
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool):
        one, other = torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)
        assert tensor_hash(dict(x=one)) != tensor_hash(dict(x=other))
