"""DropBlock in networks that were built without it, over a training run."""

import copy
from types import SimpleNamespace

import pytest
import torch
from helpers import batch, classifier, step
from mmengine.registry import HOOKS
from mmpretrain.registry import MODELS
from torch import nn

from mmrm.models.regularisers.dropblock import DropBlock, attach, detach
from mmrm.utils.errors import UserValueError

RESNET = ['layer[34].*.bn[123]', 'layer[34].*.downsample']


def resnet(depth=50):
    torch.manual_seed(0)
    return MODELS.build(dict(type='ResNet', depth=depth, stem_channels=8, base_channels=8))


def hooked(network):
    return {
        name
        for name, module in network.named_modules()
        if any(isinstance(hook, DropBlock) for hook in module._forward_hooks.values())
    }


def test_every_convolution_and_every_skip_of_the_last_two_stages_of_a_resnet_is_covered():
    network = resnet()
    names = attach(network, DropBlock(7, 0.9), RESNET)
    blocks = [f'layer3.{index}' for index in range(6)] + [f'layer4.{index}' for index in range(3)]
    assert (
        set(names)
        == hooked(network)
        == {f'{block}.{part}' for block in blocks for part in ('bn1', 'bn2', 'bn3', 'downsample')}
    )


def test_a_skip_without_a_module_gets_one_that_changes_nothing():
    network, plain = resnet(), resnet()
    attach(network, DropBlock(7, 1.0), RESNET)
    assert isinstance(network.layer3[1].downsample, nn.Identity) and plain.layer3[1].downsample is None
    assert network.state_dict().keys() == plain.state_dict().keys()
    images = torch.rand(2, 3, 64, 64)
    assert network(images)[-1].equal(plain(images)[-1])


def test_dropblock_is_active_in_training_only():
    network, plain = resnet(18), resnet(18)
    attach(network, DropBlock(3, 0.7), ['layer[34].*.bn[12]'])
    images = torch.rand(2, 3, 64, 64)
    network.eval(), plain.eval()
    assert network(images)[-1].equal(plain(images)[-1])
    network.train(), plain.train()
    network.layer3[0].bn1.eval()  # after a frozen norm it drops while the network trains
    kept = []
    network.layer3[0].bn1.register_forward_hook(lambda module, given, out: kept.append(out))
    assert not network(images)[-1].allclose(plain(images)[-1])
    assert (kept[0] == 0).any()


def test_a_recomputed_forward_pass_drops_the_same_blocks():
    """Activation checkpointing: the gradients are those of the run without it."""
    gradients = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        network = MODELS.build(dict(type='ResNet', depth=18, stem_channels=8, base_channels=8, with_cp=with_cp))
        attach(network, DropBlock(2, 0.7), ['layer[34].*.bn[12]'])
        network.train()
        torch.manual_seed(1)
        images = torch.rand(2, 3, 64, 64)
        network(images)[-1].square().mean().backward()
        gradients.append(network.layer3[0].conv1.weight.grad)
    assert torch.allclose(*gradients, atol=1e-7)


def test_copied_model_has_its_own_dropblock():
    network = resnet(18)
    attach(network, DropBlock(2, 0.5), ['layer3.0.bn1'])
    twin = copy.deepcopy(network)
    (hook,) = twin.layer3[0].bn1._forward_hooks.values()
    assert hook.network is twin
    detach(twin)
    assert not hooked(twin) and hooked(network)


# ------------------------------------------------------------------------------------------------------------ bad input
def test_pattern_without_a_match_lists_the_stages():
    with pytest.raises(UserValueError, match=r"no module of ResNet matches 'stage\[34\].bn1'. Its stages are conv1"):
        attach(resnet(18), DropBlock(7, 0.9), ['layer3.0.bn1', 'stage[34].bn1'])


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(block_size=2.5), 'block_size=2.5 must be an integer'),
        (dict(keep_prob=1.1), 'keep_prob=1.1 must be a number from 0 to 1'),
        (dict(keep_prob=0), 'keep_prob=0 would drop everything'),
        (dict(schedule='cosine'), "schedule='cosine' must be one of"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(UserValueError, match=message):
        HOOKS.build({**dict(type='DropBlockHook', block_size=4, keep_prob=0.9, modules=[]), **settings})


# -------------------------------------------------------------------------------------------------------- over training
@pytest.mark.parametrize('schedule, expected', [('linear', [1.0, 0.98, 0.96]), ('constant', [0.9, 0.9, 0.9])])
def test_the_keep_rate_follows_the_iteration(schedule, expected):
    model = classifier(backbone=dict(type='ResNet', depth=18, stem_channels=8, base_channels=8)).train()
    hook = HOOKS.build(
        dict(type='DropBlockHook', block_size=4, keep_prob=0.9, modules=['layer[34].*.bn[12]'], schedule=schedule)
    )
    runner = SimpleNamespace(model=model, max_iters=10, logger=SimpleNamespace(info=print))
    hook.before_train(runner)
    rates = []
    for runner.iter in (0, 2, 4):
        hook.before_train_iter(runner, 0)
        rates.append(hook.dropblock.keep_prob)
        assert torch.isfinite(step(model, batch())['loss'])
    assert rates == pytest.approx(expected)
    assert len(hooked(model)) == 8
    hook.before_train(runner)  # a second training of the same model
    assert all(len(module._forward_hooks) == 1 for name, module in model.named_modules() if name in hooked(model))
    hook.after_train(runner)
    assert not hooked(model)
