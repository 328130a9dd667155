"""Mixing at a layer: any backbone, by the names of its modules."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import batch, classifier, step
from mmpretrain.registry import BATCH_AUGMENTS, MODELS
from torch import nn

from mmrm.engine.hooks import BindAugmentsHook
from mmrm.models.regularisers import (
    CutMixMoEx,
    FeatureCutMix,
    ManifoldMixup,
    MoEx,
    bind_augments,
    bound_augments,
    unbind_augments,
)
from mmrm.models.regularisers.manifold_mixup import manifold_mixup
from mmrm.models.regularisers.moex import exchange_moments
from mmrm.utils.errors import UserError, UserValueError

METHODS = dict(
    ManifoldMixup=dict(type='ManifoldMixup', layers=['layer2']),
    FeatureCutMix=dict(type='FeatureCutMix', layers=['layer1']),
    MoEx=dict(type='MoEx', lam=0.7, layer='maxpool'),
    CutMixMoEx=dict(type='CutMixMoEx', moex_prob=1.0, layer='maxpool'),
)


def linear(augments, bind=True, probs=None, **kwargs):
    """A small classifier with a linear head and stock preprocessor."""
    torch.manual_seed(0)
    model = classifier(
        augments=augments,
        probs=probs,
        preprocessor='ClsDataPreprocessor',
        head=dict(type='LinearClsHead', num_classes=5, in_channels=64, topk=(1,)),
        **kwargs,
    )
    model.neck = MODELS.build(dict(type='GlobalAveragePooling'))
    if bind:
        bind_augments(model)
    return model.train()


def seed(value=0):
    np.random.seed(value)
    torch.manual_seed(value)


# ---------------------------------------------------------------------------------------------- equal to what is known
def images_and_labels(number=6, size=(20, 28)):
    generator = torch.Generator().manual_seed(3)
    return (
        torch.rand(number, 3, *size, generator=generator),
        F.one_hot(torch.randint(5, (number,), generator=generator), 5),
    )


@pytest.mark.parametrize('value', range(5))
def test_manifold_mixup_at_the_input_is_mmpretrains_mixup(value):
    images, labels = images_and_labels()
    seed(value)
    expected = BATCH_AUGMENTS.build(dict(type='Mixup', alpha=1.0))(images, labels)
    seed(value)
    augment = ManifoldMixup(alpha=1.0, layers=['input'])
    augment.bind(nn.Identity())
    mixed = augment(images, labels)
    assert mixed[0].equal(expected[0]) and mixed[1].equal(expected[1])


@pytest.mark.parametrize('value', range(4))
def test_cutmix_moex_weighs_three_labels(value):
    """a: c l, b: (1-c) l + c (1-l), the partner of b: (1-c) (1-l); read off labels that name the samples."""
    number, lam = 7, 0.9
    net = nn.Sequential(nn.Conv2d(3, 4, 1))
    augment = CutMixMoEx(lam=lam, moex_prob=1.0, layer='0')
    augment.bind(net)
    seed(value)
    images = torch.arange(number).view(-1, 1, 1, 1).expand(-1, 3, 16, 16).float()
    mixed, weights = augment(images, torch.eye(number))
    index = augment._drawn.arguments['index'].tolist()
    assert torch.allclose(weights.sum(1), torch.ones(number))
    for a in range(number):
        b, after = index[a], index[index[a]]
        if len({a, b, after}) < 3:
            continue
        c = (mixed[a, 0] == a).float().mean().item()
        expected = [c * lam, (1 - c) * lam + c * (1 - lam), (1 - c) * (1 - lam)]
        assert weights[a, [a, b, after]].tolist() == pytest.approx(expected, abs=1e-6)


# ------------------------------------------------------------------------------------------------------- at the layer
@pytest.mark.parametrize('name, expected', [('ManifoldMixup', manifold_mixup), ('MoEx', exchange_moments)])
def test_hooked_layer_returns_the_mixed_features(name, expected):
    model, outputs = linear(METHODS[name]), []
    data = model.data_preprocessor(batch(), training=True)
    layer, _, arguments = bound_augments(model)[0]._drawn
    unmixed = copy.deepcopy(model)
    unbind_augments(unmixed)
    for each in (unmixed, model):  # this hook runs after those that mix
        each.backbone.get_submodule(layer).register_forward_hook(lambda m, a, out: outputs.append(out))
        each.backbone(data['inputs'])
    plain, mixed = outputs
    assert torch.allclose(mixed, expected(plain, **arguments), atol=1e-6)
    assert not mixed.allclose(plain)


def test_feature_cutmix_draws_box_and_share_on_the_grid_of_the_layer():
    model = linear(dict(type='FeatureCutMix', layers=['layer3']))
    shares = set()
    seed()
    for _ in range(20):
        data = model.data_preprocessor(batch(size=(64, 96)), training=True)
        mask = bound_augments(model)[0]._drawn.arguments['mask']
        assert mask.shape == (4, 6)  # stride 16
        share = mask.float().mean().item()
        shares.add(round(share, 6))
        scores = torch.stack([sample.gt_score for sample in data['data_samples']])
        for value in scores.max(1).values.tolist():  # 1 where both have one label
            assert min(abs(value - one) for one in (share, 1 - share, 1)) < 1e-6
    assert len(shares) > 3


def test_looking_at_the_sizes_changes_neither_statistics_nor_modes():
    model = linear(METHODS['FeatureCutMix'])
    model.backbone.layer1[0].bn1.eval()  # frozen by the user
    before = copy.deepcopy(model.state_dict())
    model.data_preprocessor(batch(), training=True)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert model.backbone.training and not model.backbone.layer1[0].bn1.training


@pytest.mark.parametrize('name', METHODS)
def test_evaluation_is_not_mixed(name):
    model = linear(METHODS[name])
    plain = copy.deepcopy(model)
    unbind_augments(plain)
    images = plain.data_preprocessor(batch())['inputs']
    model.data_preprocessor(batch(), training=True)  # the passes that follow come right after a training batch
    with torch.no_grad():
        assert model.eval()(images).equal(plain.eval()(images))
        assert model(model.data_preprocessor(batch())['inputs']).isfinite().all()


@pytest.mark.parametrize('name', METHODS)
def test_a_batch_of_one_is_its_own_partner(name):
    model = linear(METHODS[name])
    data = model.data_preprocessor(batch(1, (64, 64)), training=True)
    score = data['data_samples'][0].gt_score
    assert score.max() == 1 and score.sum() == 1
    assert torch.isfinite(model(**data, mode='loss')['loss'])


def test_a_batch_in_pieces_is_an_error():
    model = linear(METHODS['ManifoldMixup'])
    data = model.data_preprocessor(batch(4), training=True)
    with pytest.raises(UserError, match="2 samples at layer 'layer2', but the batch that was drawn for has 4"):
        model(data['inputs'][:2])


# ------------------------------------------------------------------------------------------------------ other backbones
TOKENS = dict(
    type='VisionTransformer',
    arch=dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32),
    img_size=32,
    patch_size=8,
    out_type='featmap',
)
BACKBONES = {
    'ResNet_CIFAR': (dict(type='ResNet_CIFAR', depth=18, base_channels=8), ['relu', 'layer1'], 'relu'),
    'PyramidNetCIFAR': (dict(type='PyramidNetCIFAR', depth=11, alpha=12), ['bn1', 'layer1'], 'bn1'),
    # Its layer norms over channels undo MoEx, wherever it stands.
    'ConvNeXt': (dict(type='ConvNeXt', arch=dict(depths=[1, 1, 1, 1], channels=[8, 8, 8, 8])), ['stages.0'], None),
    'VisionTransformer': (TOKENS, ['layers.0'], 'layers.0'),
}


@pytest.mark.parametrize('name', BACKBONES)
def test_other_backbones_are_mixed_by_the_names_of_their_modules(name):
    config, layers, layer = BACKBONES[name]
    for augment in [ManifoldMixup(layers=layers)] + ([MoEx(layer=layer)] if layer else []):
        holder = nn.Module()
        holder.backbone = MODELS.build(dict(config))
        augment.bind(holder)
        images, _ = augment(*images_and_labels(4, (32, 32)))
        torch.manual_seed(2)
        mixed = holder.backbone(images)[-1]
        augment.clear()
        torch.manual_seed(2)
        assert not mixed.allclose(holder.backbone(images)[-1], atol=1e-4)


# ------------------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    'augment, backbone, message',
    [
        (
            ManifoldMixup(layers=['input', 'stage1']),
            dict(type='ResNet', depth=18, base_channels=8),
            "ManifoldMixup: layer 'stage1' does not exist in ResNet. There are input, conv1, bn1",
        ),
        (MoEx(layer='stages'), BACKBONES['ConvNeXt'][0], 'stages.0, stages.1, stages.2, stages.3'),
        (FeatureCutMix(layers=['layers.0']), TOKENS, r"layer 'layers.0' returns the shape \(1, 17, 16\)"),
    ],
)
def test_a_layer_that_does_not_fit_is_named(augment, backbone, message):
    holder = nn.Module()
    holder.backbone = MODELS.build(dict(backbone))
    with pytest.raises(UserValueError, match=message):
        augment.bind(holder)
        augment(*images_and_labels(2, (32, 32)))


def test_a_layer_that_is_run_more_than_once_is_an_error_at_the_first_batch():
    model = linear(dict(type='MoEx', layer='layer1.0.relu'))
    with pytest.raises(UserValueError, match=r"layer 'layer1.0.relu' runs 2 times in a forward pass of ResNet"):
        model.data_preprocessor(batch(), training=True)
    assert model.backbone.training


@pytest.mark.parametrize(
    'wrong, message',
    [
        (lambda: ManifoldMixup(alpha=0), 'ManifoldMixup: alpha=0 '),
        (lambda: FeatureCutMix(alpha='1'), "FeatureCutMix: alpha='1' "),
        (lambda: MoEx(lam=1.5), 'MoEx: lam=1.5 '),
        (lambda: CutMixMoEx(moex_prob=1.2), 'CutMixMoEx: moex_prob=1.2 '),
        (lambda: ManifoldMixup(layers=[]), 'must name one layer or more'),
        (lambda: ManifoldMixup(layers=['layer1', 'layer1']), 'each once'),
    ],
)
def test_a_wrong_setting_is_named(wrong, message):
    with pytest.raises(UserValueError, match=message):
        wrong()


@pytest.mark.parametrize('name', METHODS)
def test_an_augment_without_its_model_stops_at_the_first_batch(name):
    model = linear(METHODS[name], bind=False)
    with pytest.raises(UserError, match=rf'{name} needs the model. Add dict\(type="BindAugmentsHook"'):
        model.data_preprocessor(batch(), training=True)


# -------------------------------------------------------------------------------------------------- ways to be trained
@pytest.mark.parametrize('name', METHODS)
def test_a_copy_of_the_model_mixes_by_itself(name):
    model = linear(METHODS[name])
    twin = copy.deepcopy(model)
    ours, theirs = bound_augments(model)[0], bound_augments(twin)[0]
    twin.data_preprocessor(batch(), training=True)
    assert theirs.model is twin and theirs._drawn is not None and ours._drawn is None
    unbind_augments(twin)
    assert not any(module._forward_hooks for module in twin.modules())
    assert any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize('augment', [ManifoldMixup(layers=['0']), FeatureCutMix(layers=['0']), MoEx(layer='0')])
def test_a_compiled_network_mixes_alike_and_one_graph_serves_all_draws(augment):
    torch._dynamo.reset()
    net, graphs = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), []
    augment.bind(net)
    compiled = torch.compile(net, backend=lambda graph, inputs: graphs.append(graph) or graph)
    for value in range(4):
        seed(value)
        images, _ = augment(*images_and_labels())
        mixed = net(images)
        assert torch.allclose(compiled(images), mixed, atol=1e-5)
    assert len(graphs) == 1
    augment.clear()
    assert not mixed.allclose(net(images)) and torch.allclose(compiled(images), net(images), atol=1e-5)
    torch._dynamo.reset()


def test_layer_mix_combines_with_recursive_mix_and_keeps_its_history():
    augments = [dict(type='RecursiveMix', alpha=0.5), *METHODS.values()]
    model = classifier(augments=augments, probs=[0.4, 0.15, 0.15, 0.15, 0.15]).train()
    bind_augments(model)
    recursive = model.data_preprocessor.batch_augments.augments[0]
    seed(0)
    chosen, history = set(), None
    for _ in range(25):
        losses = step(model, batch())
        assert torch.isfinite(losses['loss'])
        mixed_by = [type(each).__name__ for each in bound_augments(model) if each._drawn is not None]
        assert len(mixed_by) <= 1
        if mixed_by:
            chosen.add(mixed_by[0])
            assert recursive._history is history and losses['rm_lambda'] == 0
        history = recursive._history
    assert chosen == {'ManifoldMixup', 'FeatureCutMix', 'MoEx', 'CutMixMoEx'} and history is not None


def test_the_hook_binds_before_training_and_unbinds_after():
    runner, hook = SimpleNamespace(model=linear(METHODS['MoEx'], bind=False)), BindAugmentsHook()
    hook.before_train(runner)
    bind_augments(runner.model)  # twice: it mixes once
    assert bound_augments(runner.model)[0].model is runner.model
    assert len(runner.model.backbone.maxpool._forward_hooks) == 1
    step(runner.model, batch())
    hook.after_train(runner)
    assert not any(module._forward_hooks for module in runner.model.modules())
    assert not runner.model.data_preprocessor._forward_pre_hooks
