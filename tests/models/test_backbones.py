import pytest
import torch
from mmpretrain.registry import MODELS
from torch import nn
from torchvision.models import DenseNet as TorchvisionDenseNet

import mmrm.models  # noqa: F401
from mmrm.models.backbones import DenseNetCIFAR, MapPooling, PyramidNetCIFAR
from mmrm.models.backbones.pyramidnet import PyramidBottleneck, pyramid_widths
from mmrm.utils.errors import UserValueError


@pytest.mark.parametrize(
    'backbone, shape',
    [
        (dict(type='PyramidNetCIFAR', depth=20, alpha=12), (2, 112, 8, 8)),
        (dict(type='DenseNetCIFAR', arch=dict(growth_rate=4, depths=[2, 2, 2, 2], init_channels=8)), (2, 16, 4, 4)),
    ],
)
def test_output_is_a_tuple_of_the_last_map_and_every_parameter_learns(backbone, shape):
    network = MODELS.build(backbone)
    network.init_weights()
    outs = network(torch.rand(2, 3, 32, 32))
    assert isinstance(outs, tuple) and [tuple(out.shape) for out in outs] == [shape]
    assert outs[0].min() == 0  # it ends with a ReLU
    outs[0].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_densenet_equals_torchvisions_with_the_papers_stem_and_transitions():
    ours = DenseNetCIFAR(arch=dict(growth_rate=4, depths=[2, 3, 2, 2], init_channels=8))
    theirs = TorchvisionDenseNet(growth_rate=4, block_config=(2, 3, 2, 2), num_init_features=8, num_classes=10).features
    theirs.conv0 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    for name in ('norm0', 'relu0', 'pool0'):
        setattr(theirs, name, nn.Identity())
    for number in (1, 2, 3):
        getattr(theirs, f'transition{number}').relu = nn.Identity()
    # Torchvision's ReLU after the last norm is in its forward, not among its features.
    weights = [tensor for name, tensor in in_order(theirs)]
    names = [name for name, tensor in in_order(ours)]
    assert [tensor.shape for tensor in weights] == [tensor.shape for name, tensor in in_order(ours)]
    ours.load_state_dict(dict(zip(names, weights)))
    ours.eval()
    theirs.eval()
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(images)[0], theirs(images).relu())


def in_order(network):
    """Weights by their place in the forward pass: mmpretrain keeps its transitions in a list of their own."""
    state = network.state_dict()
    if not any(name.startswith('stages.') for name in state):
        return list(state.items())

    def place(name):
        part, _, rest = name.partition('.')
        number = int(rest.split('.')[0])
        return (-1, 0) if part == 'stem' else (number, part == 'transitions')

    return sorted(state.items(), key=lambda item: place(item[0]))


def test_pyramid_grows_by_the_same_amount_in_every_block():
    widths = pyramid_widths(164, 270)
    assert widths == list(range(21, 287, 5))
    assert len(pyramid_widths(200, 240)) == 66 and pyramid_widths(200, 240)[-1] == 16 + 240


@pytest.mark.parametrize('stride', [1, 2])
def test_shortcut_has_no_parameters_and_pads_new_channels_with_zeros(stride):
    block = PyramidBottleneck(8, 5, stride)
    nn.init.zeros_(block.bn4.weight)
    images = torch.randn(2, 8, 8, 8)
    out = block(images)
    assert out.shape == (2, 20, 8 // stride, 8 // stride)
    assert torch.equal(out[:, :8], images if stride == 1 else nn.functional.avg_pool2d(images, 2))
    assert out[:, 8:].abs().max() == 0


def test_stochastic_depth_grows_linearly_and_is_off_in_evaluation():
    network = PyramidNetCIFAR(depth=29, alpha=9, drop_path_rate=0.5)
    rates = [block.drop_path.drop_prob for layer in (network.layer1, network.layer2, network.layer3) for block in layer]
    assert rates == pytest.approx([0.5 * (index + 1) / 9 for index in range(9)])
    images = torch.rand(4, 3, 32, 32)
    network(images)
    assert not torch.equal(network(images)[0], network(images)[0])
    network.eval()
    assert torch.equal(network(images)[0], network(images)[0])
    plain = PyramidNetCIFAR(depth=29, alpha=9)
    plain.load_state_dict(network.state_dict())
    plain.eval()
    assert torch.equal(network(images)[0], plain(images)[0])


@pytest.mark.parametrize(
    'arguments, named',
    [
        (dict(depth=163, alpha=270), 'depth=163'),
        (dict(depth=164, alpha=0), 'alpha=0'),
        (dict(depth=164, alpha=270, drop_path_rate=1.0), 'drop_path_rate=1.0'),
        (dict(depth=164, alpha=270, out_indices=(3,)), r'out_indices=\(3,'),
    ],
)
def test_a_wrong_argument_is_named(arguments, named):
    with pytest.raises(UserValueError, match=named):
        PyramidNetCIFAR(**arguments)


def test_the_list_of_mmdets_pvt_is_pooled():
    maps = torch.rand(2, 8, 3, 4)
    torch.testing.assert_close(MapPooling()([maps]), (maps.mean(dim=(2, 3)),))
