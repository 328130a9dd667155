"""RM on networks that the paper never used: mmpretrain's own configs with the lines that README shows.

Some are shallower than they are shipped, so that a test takes a second; their widths and heads are the shipped ones.
"""

import pytest
import torch
from helpers import batch, step, without_scope
from mmengine.config import Config
from mmengine.utils import get_installed_path
from mmpretrain.registry import MODELS

import mmrm.models  # noqa: F401
from mmrm.utils.paths import shipped

BASES = {
    'ConvNeXt': 'convnext/convnext-tiny_32xb128_in1k.py',
    'Swin': 'swin_transformer/swin-tiny_16xb64_in1k.py',
    'ViT': 'vision_transformer/vit-base-p16_64xb64_in1k.py',
    'DeiT': 'deit/deit-tiny_4xb256_in1k.py',
    'EfficientNet': 'efficientnet/efficientnet-b0_8xb32_in1k.py',
    'MobileNetV3': 'mobilenet_v3/mobilenet-v3-small_8xb128_in1k.py',
    'RegNet': 'regnet/regnetx-400mf_8xb128_in1k.py',
    'timm ResNet': 'resnet/resnet18_8xb32_in1k.py',
    'timm ConvNeXt': 'resnet/resnet18_8xb32_in1k.py',
    'timm ViT': 'resnet/resnet18_8xb32_in1k.py',
}
# What docs/networks.md says that a network needs beside README's lines.
MAP = "out_type='featmap'"
BACKBONE = {
    'ConvNeXt': 'gap_before_final_norm=False',
    'ViT': MAP,
    'DeiT': MAP,
    'timm ResNet': "_delete_=True, type='TIMMBackbone', model_name='resnet18'",
    'timm ConvNeXt': "_delete_=True, type='TIMMBackbone', model_name='convnext_atto'",
    'timm ViT': "_delete_=True, type='TIMMBackbone', model_name='vit_tiny_patch16_224', features_only=True, "
    'out_indices=[-1], dynamic_img_size=True',
}
HEAD = {'timm ConvNeXt': 'in_channels=320, ', 'timm ViT': 'in_channels=192, '}
HOOKS = ('ConvNeXt',)  # the bases that have custom_hooks
LESS = {
    'ConvNeXt': dict(arch=dict(depths=[1, 1, 1, 1], channels=[96, 192, 384, 768])),
    'Swin': dict(arch=dict(embed_dims=96, depths=[1, 1, 1, 1], num_heads=[3, 6, 12, 24]), pad_small_map=True),
    'ViT': dict(arch=dict(embed_dims=768, num_layers=1, num_heads=12, feedforward_channels=768)),
    'DeiT': dict(arch=dict(embed_dims=192, num_layers=2, num_heads=3, feedforward_channels=768)),
}


def config_of(name, folder):
    hooks = '*_base_.custom_hooks, ' if name in HOOKS else ''
    (folder / 'mine.py').write_text(f"""
_base_ = ['mmpretrain::{BASES[name]}']
custom_imports = dict(imports=['mmrm.models'], allow_failed_imports=False)
data_preprocessor = dict(
    type='RMDataPreprocessor', batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5)))
model = dict(
    backbone=dict({BACKBONE.get(name, '')}),
    neck=None,
    head=dict({HEAD.get(name, '')}type='RMConsistencyHead', omega=0.5))
custom_hooks = [{hooks}dict(type='ResetHistoryHook'), dict(type='RandomStateHook')]
""")
    return Config.fromfile(folder / 'mine.py')


def build(config, **backbone):
    config.model.setdefault('data_preprocessor', config.data_preprocessor)  # as mmengine's Runner does
    config.model.backbone.update(backbone)
    return MODELS.build(config.model)


@pytest.mark.parametrize('name', BASES)
def test_user_config_adds_rm_in_a_few_lines(name, tmp_path):
    if name.startswith('timm'):
        pytest.importorskip('timm')
    config = config_of(name, tmp_path)
    model = build(config, **LESS.get(name, {}))
    assert model.data_preprocessor.mean.any()  # what the base config says stays
    for _ in range(2):
        losses = step(model, batch(2, (64, 64), num_classes=1000))
    assert losses['rm_lambda'] > 0 and losses['rm_kl'] > 0
    assert model.head.fc_roi.weight.grad.any()
    assert all(parameter.grad is not None for parameter in model.head.parameters())
    if name == 'ConvNeXt':  # what the base has stays
        assert [hook.type for hook in config.custom_hooks] == ['EMAHook', 'ResetHistoryHook', 'RandomStateHook']
        assert config.model.head.loss.type == 'LabelSmoothLoss' and config.model.head.in_channels == 768
    if name == 'ViT':  # its head's hidden layer, too
        widths = [(layer.fc.in_features, layer.fc.out_features) for layer in model.head.layers]
        assert widths == [(768, 3072), (3072, 1000)] and isinstance(model.head.layers[0].act, torch.nn.Tanh)


@pytest.mark.parametrize('name, hint', [('ConvNeXt', 'gap_before_final_norm=False'), ('DeiT', 'out_type="featmap"')])
def test_backbone_that_pools_names_the_setting_for_a_map(name, hint, tmp_path):
    config = config_of(name, tmp_path)
    pools = dict(gap_before_final_norm=True) if name == 'ConvNeXt' else dict(out_type='cls_token')
    model = build(config, **{**LESS[name], **pools})
    with pytest.raises(ValueError, match=hint):
        step(model, batch(2, (64, 64), num_classes=1000))


# Recipes of today: shallower, as above, and batch norm of one process.
RECIPES = {
    'resnet50_8xb256-rsb-a3-100e_in1k': ('resnet', dict(depth=18, norm_cfg=dict(type='BN'))),
    'resnet50_8xb256-rsb-a2-300e_in1k': ('resnet', dict(depth=18, norm_cfg=dict(type='BN'))),
    'convnext-tiny_32xb128_in1k': ('convnext', LESS['ConvNeXt']),
    'swin-tiny_16xb64_in1k': ('swin_transformer', LESS['Swin']),
    'deit-small_4xb256_in1k': ('deit', dict(arch=dict(LESS['DeiT']['arch'], embed_dims=384, num_heads=6))),
}
FOLDERS = ('rm_recipes', 'rm_mixup_cutmix')
RM_LINES = {'custom_imports', 'custom_hooks', 'data_preprocessor', 'model'}


def test_every_recipe_is_tried_here():
    assert all(
        sorted(RECIPES) == sorted(path.stem for path in (shipped() / 'configs' / folder).glob('*.py'))
        for folder in FOLDERS
    )


@pytest.mark.parametrize('folder', FOLDERS)
@pytest.mark.parametrize('name', RECIPES)
def test_a_recipe_differs_from_its_base_in_rm_and_trains(name, folder):
    where, less = RECIPES[name]
    config = Config.fromfile(shipped() / 'configs' / folder / f'{name}.py')
    base = Config.fromfile(f'{get_installed_path("mmpretrain")}/.mim/configs/{where}/{name}.py')
    changed = {key for key in {*config, *base} if without_scope(config.get(key)) != without_scope(base.get(key))}
    assert changed == RM_LINES
    kept = dict(without_scope(config.model.head), type=base.model.head.type)
    assert kept.pop('omega') == 0.5 and kept == without_scope(base.model.head)
    augments = config.data_preprocessor.batch_augments.augments
    types = [each.type for each in augments] if isinstance(augments, list) else [augments.type]
    assert types == (['RecursiveMix'] if folder == 'rm_recipes' else ['RecursiveMix', 'Mixup', 'CutMix'])
    assert types[1:] == [] or without_scope(augments[1:]) == without_scope(base.model.train_cfg.augments)
    if 'depth' in less:
        config.model.head.in_channels = 512
    model = build(config, **less)
    chosen, lams = model.data_preprocessor.batch_augments, []
    assert chosen.probs is None  # equally often
    for number in (0, 0) if len(types) == 1 else (0, 1, 2, 0):
        chosen.probs = [float(each == number) for each in range(len(types))]
        losses = step(model, batch(2, (64, 64), num_classes=1000))
        lams.append(float(losses['rm_lambda']))
        assert all(value.isfinite() for value in losses.values())
    assert lams[-1] > 0 and not any(lams[:-1])
