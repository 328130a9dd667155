"""RecursiveMixModel: RM around networks of other libraries, in loops of PyTorch's own."""

import copy
import io
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
import torchvision
from torch import nn

from mmrm import Consistency, RecursiveMix, RecursiveMixModel


def convnet(channels=16, classes=5, stride=4):
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, stride, 1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


class Patches(nn.Module):
    """Cuts an image into patches, as tokens with ``prefix`` learnt ones before them, or as an NHWC map."""

    def __init__(self, channels=6, patch=8, prefix=0, nhwc=False):
        super().__init__()
        self.embed, self.nhwc = nn.Conv2d(3, channels, patch, patch), nhwc
        self.prefix = nn.Parameter(torch.randn(1, prefix, channels))

    def forward(self, images):
        features = self.embed(images)
        if self.nhwc:
            return features.permute(0, 2, 3, 1)
        tokens = features.flatten(2).transpose(1, 2)
        return torch.cat([self.prefix.expand(len(tokens), -1, -1), tokens], dim=1)


class Net(nn.Module):
    """A layer ``body``, whose output is pooled over everything but samples and the last axis, and a linear one."""

    def __init__(self, body, channels=6, classes=5, wrap=lambda logits: logits):
        super().__init__()
        self.body, self.fc, self.wrap = body, nn.Linear(channels, classes), wrap

    def forward(self, images):
        features = self.body(images)
        while not isinstance(features, torch.Tensor):
            features = features['last_hidden_state'] if isinstance(features, dict) else features[0]
        return self.wrap(self.fc(features.flatten(1, -2).mean(1)))


def small(**kwargs):
    return RecursiveMixModel(convnet(), '1', input_size=32, alpha=1.0, rng=np.random.RandomState(0), **kwargs)


def batches(number, size=(32, 32), samples=4, classes=5):
    return [(torch.randn(samples, 3, *size), torch.randint(0, classes, (samples,))) for _ in range(number)]


def feature_map_of(model, images):
    """The map that the consistency loss gets, for images that are not mixed."""
    seen = []
    model.consistency.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    model.reset_history()
    model.train()(images, torch.zeros(len(images), dtype=torch.long))
    return seen[0]


# What a step does.


def test_the_loss_is_that_of_the_two_parts_by_hand():
    model, data = small(omega=0.7), batches(4)
    net, consistency = copy.deepcopy(model.module), copy.deepcopy(model.consistency)
    rm = RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(0))
    for images, labels in data:
        mixed, scores, mix = rm.mix(images, labels)
        features = net[:2](mixed)
        logits = net[2:](features)
        cross_entropy, region = F.cross_entropy(logits, scores), consistency(mix, features, logits)
        loss = model(images, labels)
        assert torch.equal(loss, cross_entropy + region)
        assert torch.equal(model.losses['cross_entropy'], cross_entropy)
        assert torch.equal(model.losses['consistency'], region) and model.losses['lam'] == mix.lam
    assert region > 0 and not any(
        isinstance(part, torch.Tensor) and part.requires_grad for part in model.losses.values()
    )


def test_forward_without_labels_is_the_network():
    model, images = small(), torch.randn(4, 3, 32, 32)
    for mode in (True, False):
        model.train(mode)
        assert torch.equal(model(images), copy.deepcopy(model.module)(images))


def test_evaluation_with_labels_neither_mixes_nor_touches_the_history():
    model, data = small(label_smoothing=0.1), batches(3)
    model(*data[0])
    kept = model.rm._history
    model.eval()
    loss = model(*data[1])
    assert torch.equal(loss, F.cross_entropy(model.module(data[1][0]), data[1][1]))
    assert model.rm._history is kept and set(model.losses) == {'cross_entropy'}


def test_label_smoothing_is_of_the_loss_and_not_of_the_history():
    smooth, plain, data = small(label_smoothing=0.1), small(), batches(2)
    smooth.load_state_dict(plain.state_dict())
    for images, labels in data:
        smooth(images, labels), plain(images, labels)
    assert torch.equal(smooth.rm._history.scores, plain.rm._history.scores)
    logits, scores = smooth.rm._history.mix.prediction.log(), plain.rm._history.scores
    assert torch.allclose(smooth.losses['cross_entropy'], F.cross_entropy(logits, scores, label_smoothing=0.1))
    assert smooth.losses['cross_entropy'] != plain.losses['cross_entropy']


def test_disabled_mixing_is_the_plain_loss_with_a_gradient_for_fc_roi():
    model, data = small(prob=1.0), batches(3)
    model(*data[0])
    kept, model.enabled = model.rm._history, False
    loss = model(*data[1])
    loss.backward()
    assert torch.allclose(loss, F.cross_entropy(copy.deepcopy(model.module)(data[1][0]), data[1][1]))
    assert model.rm._history is kept and not model.enabled and model.losses['lam'] == 0
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.enabled = True
    model(*data[2])
    assert model.losses['lam'] > 0 and small(prob=0.25).rm.prob == 0.25


# How it reads a network.


def torchvision_net(name):
    return torchvision.models.get_model(name, num_classes=5, weights=None)


def timm_net(name, **options):
    return pytest.importorskip('timm').create_model(name, num_classes=5, **options)


def hugging_face_net(name, **options):
    transformers = pytest.importorskip('transformers')
    config = getattr(transformers, f'{name}Config')(num_labels=5, **options)
    return getattr(transformers, f'{name}ForImageClassification')(config)


RESNET = dict(embedding_size=8, hidden_sizes=[8, 8, 16, 32], depths=[1] * 4)
VIT = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=64)
SWIN = dict(image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4)


@pytest.mark.parametrize(
    'build, name, layer, shape, options',
    [
        (torchvision_net, 'resnet18', 'layer4', (512, 2, 2), {}),
        (torchvision_net, 'mobilenet_v3_small', 'features', (576, 2, 2), {}),
        (torchvision_net, 'swin_t', 'features', (768, 2, 2), {}),
        (torchvision_net, 'swin_t', 'permute', (768, 2, 2), {}),
        (timm_net, 'resnet18', 'layer4', (512, 2, 2), {}),
        (timm_net, 'vit_tiny_patch16_224', 'norm', (192, 4, 4), dict(img_size=64)),
        (timm_net, 'swin_tiny_patch4_window7_224', 'norm', (768, 2, 2), dict(img_size=64, window_size=2)),
        (hugging_face_net, 'ResNet', 'resnet', (32, 2, 2), RESNET),
        (hugging_face_net, 'ViT', 'vit', (32, 4, 4), VIT),
        (hugging_face_net, 'Swin', 'swin', (32, 8, 8), SWIN),
    ],
)
def test_networks_of_other_libraries(build, name, layer, shape, options):
    model = RecursiveMixModel(build(name, **options), layer, input_size=64)
    assert (model.in_channels, model.num_classes) == (shape[0], 5)
    for images, labels in batches(2, (64, 64), samples=2):
        model(images, labels).backward()
    assert model.losses['consistency'] > 0
    assert feature_map_of(model, images).shape == (2, *shape)


@pytest.mark.parametrize(
    'body, dry, size',
    [
        (dict(nhwc=True), (32, 32), (32, 32)),
        (dict(nhwc=True), (32, 64), (32, 64)),
        (dict(prefix=0), (32, 64), (32, 64)),
        (dict(prefix=5), (32, 32), (32, 32)),
        (dict(prefix=2), (40, 48), (40, 48)),
        (dict(prefix=1), (32, 32), (24, 48)),
    ],
)
def test_a_map_is_the_same_in_every_layout_and_size(body, dry, size):
    net = Net(Patches(**body))
    model = RecursiveMixModel(net, 'body', input_size=dry)
    images = torch.randn(2, 3, *size)
    assert torch.allclose(feature_map_of(model, images), net.body.embed(images), atol=1e-6)


def test_timms_number_of_prefix_tokens_is_used():
    net = Net(Patches(prefix=5, patch=16))  # 2 x 2 + 5 tokens look like 3 x 3
    assert RecursiveMixModel(copy.deepcopy(net), 'body', input_size=32)._reading.shape == (6, 3, 3)
    assert RecursiveMixModel(copy.deepcopy(net), 'body', input_size=32, prefix_tokens=5)._reading.shape == (6, 2, 2)
    net.num_prefix_tokens = 5
    assert RecursiveMixModel(net, 'body', input_size=32)._reading.shape == (6, 2, 2)


def test_ambiguous_layout_must_be_given():
    net = Net(Patches(channels=4, nhwc=True), channels=4)  # 4 x 4 x 4
    with pytest.raises(ValueError, match=r"layer 'body' of Net may be of layout NCHW or NHWC.*set layout"):
        RecursiveMixModel(net, 'body', input_size=32)
    model = RecursiveMixModel(net, 'body', input_size=32, layout='NHWC')
    images = torch.randn(2, 3, 32, 32)
    assert torch.allclose(feature_map_of(model, images), net.body.embed(images), atol=1e-6)


@pytest.mark.parametrize(
    'output',
    [
        lambda x: (x, torch.zeros(len(x), 3, 20, 20)),  # attention weights
        lambda x: dict(last_hidden_state=x, pooler_output=x.mean((1, 2))[..., None, None]),
        lambda x: [[x]],
        lambda x: (x.repeat_interleave(2, 1).repeat_interleave(2, 2), x),  # a pyramid: the deepest map counts
    ],
)
def test_layers_that_return_more_than_a_tensor(output):

    class Body(Patches):
        def forward(self, images):
            return output(super().forward(images))

    net = Net(Body(nhwc=True))
    model, images = RecursiveMixModel(net, 'body', input_size=32), torch.randn(2, 3, 32, 32)
    assert torch.allclose(feature_map_of(model, images), net.body.embed(images), atol=1e-6)


class Output(NamedTuple):
    logits: torch.Tensor
    aux_logits: torch.Tensor


@pytest.mark.parametrize(
    'wrap', [lambda z: dict(logits=z), lambda z: Output(z, z * 2), lambda z: (z, z * 2), lambda z: [z]]
)
def test_networks_that_return_more_than_logits(wrap):
    net = Net(Patches(nhwc=True), wrap=wrap)
    model, images = RecursiveMixModel(net, 'body', input_size=32), torch.randn(2, 3, 32, 32)
    assert model.num_classes == 5
    assert torch.equal(model(images), net.fc(net.body(images).flatten(1, 2).mean(1)))
    model(images, torch.tensor([1, 2])).backward()


# What it leaves alone.


def test_the_dry_run_leaves_no_trace():
    net = nn.Sequential(*convnet(), nn.Dropout())
    net[0][1].eval()  # somebody's frozen statistics
    before, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    torch.manual_seed(3)
    Consistency(16, 5)  # the layer of RM draws its weights, as any layer does
    expected = torch.rand(3)
    torch.manual_seed(3)
    RecursiveMixModel(net, '1', input_size=32)
    assert torch.equal(torch.rand(3), expected)
    assert modes == [module.training for module in net.modules()]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_state_dict_holds_the_network_and_fc_roi_alone():
    model = small()
    for images, labels in batches(2):
        model(images, labels)
    names = {f'module.{name}' for name in model.module.state_dict()}
    assert set(model.state_dict()) == names | {'consistency.fc_roi.weight', 'consistency.fc_roi.bias'}
    convnet().load_state_dict(model.module.state_dict())


def through_pickle(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize('duplicate', [copy.deepcopy, through_pickle], ids=['deepcopy', 'torch.save'])
def test_a_copy_trains_on_its_own_network(duplicate):
    model, data = small(), batches(4)
    model(*data[0]), model(*data[1])
    twin = duplicate(model)
    assert twin.rm._history is None and model.rm._history is not None
    assert twin.rm is not model.rm
    before = model.rm._history
    twin(*data[2])
    twin(*data[3]).backward()
    assert twin.losses['consistency'] > 0 and model.rm._history is before
    assert all(parameter.grad is not None for parameter in twin.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


# Loops.


def test_autocast():
    model, losses = small(omega=0.5), []
    for images, labels in batches(3):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            losses.append(model(images, labels))
        losses[-1].backward()
    assert model.losses['consistency'] > 0
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize('per_sample', [False, True])
def test_compiled_wrapper_is_one_graph_for_all_boxes(per_sample):
    """One for the first batch, which is not mixed, and one for all that are."""
    counter = torch._dynamo.testing.CompileCounter()
    model, eager = small(omega=0.5, per_sample=per_sample), small(omega=0.5, per_sample=per_sample)
    eager.load_state_dict(model.state_dict())
    compiled, graphs = torch.compile(model, backend=counter), []
    for images, labels in batches(6):
        assert torch.allclose(compiled(images, labels), eager(images, labels), atol=1e-6)
        graphs.append(counter.frame_count)
    assert model.losses['consistency'] > 0 and graphs[-1] == graphs[1] == 2
    torch._dynamo.reset()


# What it refuses.


@pytest.mark.parametrize(
    'layer, problem',
    [
        ('layer5', "ResNet has no layer 'layer5'"),
        ('fc', r"layer 'fc' of ResNet is not a feature map for this image \(\[\(1, 5\)\]\)"),
        ('idle', "layer 'idle' of ResNet does not run in a forward pass"),
    ],
)
def test_wrong_layer_lists_the_right_ones(layer, problem):
    net = torchvision.models.resnet18(num_classes=5)
    net.idle = nn.Identity()
    with pytest.raises(ValueError, match=rf"{problem}; .*'layer4' \(512 channels, 2 x 2\), 'layer3'"):
        RecursiveMixModel(net, layer, input_size=64)
    assert not any(module._forward_hooks for module in net.modules())


def test_a_wrong_input_size_is_named():
    net = torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=7)
    with pytest.raises(ValueError, match=r'fails on an input of 3 x 224 x 224 .*Set input_size'):
        RecursiveMixModel(net, 'encoder')
    assert net.training


@pytest.mark.parametrize(
    'arguments, message',
    [
        (dict(module='resnet18'), 'module must be a torch.nn.Module, not str'),
        (dict(module=convnet()[:2]), r'must return logits .*shape \(1, 16, 4, 4\)'),
        (dict(layout='HWC'), "layout='HWC' must be None or one of"),
        (dict(prefix_tokens=-1), 'prefix_tokens=-1 must be'),
        (dict(input_size=(3, 32, 32, 1)), r'input_size=\(3, 32, 32, 1\) must be'),
        (dict(num_classes=7), 'num_classes=7, but Sequential gives 5 logits'),
        (dict(alpha=2), 'alpha=2 must be'),
        (dict(omega=-1), 'omega=-1 must be'),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        RecursiveMixModel(**{'module': convnet(), 'layer': '1', 'input_size': 32, **arguments})


def test_a_layer_that_is_skipped_in_training_is_named():

    class Skips(nn.Sequential):
        def forward(self, images):
            return super().forward(images) if not self.training else images.new_zeros(len(images), 5)

    model = RecursiveMixModel(Skips(*convnet()), '1', input_size=32)
    with pytest.raises(ValueError, match="layer '1' of Skips did not run"):
        model(*batches(1)[0])


def test_tokens_that_make_no_grid_are_named():
    model = RecursiveMixModel(Net(Patches(prefix=1)), 'body', input_size=32, prefix_tokens=1)
    model._reading = model._reading._replace(prefix=0)
    with pytest.raises(ValueError, match="the 17 tokens of layer 'body', after 0 prefix tokens, do not form a grid"):
        model(*batches(1)[0])


@pytest.mark.parametrize('train', [True, False])
def test_several_labels_per_image_are_refused(train):
    model, images = small().train(train), torch.randn(2, 3, 32, 32)
    model(images, torch.tensor([[0.25, 0.25, 0.5, 0, 0], [1, 0, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r'must sum to 1, but rows sum to 1 to 2.*multi_label=True'):
        model(images, torch.tensor([[1, 0, 1, 0, 0], [1, 0, 0, 0, 0]]))


def test_data_parallel_is_refused():
    model = small()
    model._is_replica = True
    with pytest.raises(ValueError, match='Use DistributedDataParallel'):
        model(*batches(1)[0])


# Without OpenMMLab.

WITHOUT = """
import sys
for name in ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'rich', 'matplotlib', 'scipy', 'safetensors'):
    sys.modules[name] = None
import torch
import mmrm
from mmrm.models.regularisers.moex import exchange_moments
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
model = mmrm.RecursiveMixModel(net, '0', input_size=16)
for _ in range(2):
    model(torch.randn(2, 3, 16, 16), torch.tensor([0, 2])).backward()
method = ['Box', 'Consistency', 'Mix', 'RecursiveMix', 'RecursiveMixModel', '__version__']
assert sorted(mmrm.__all__) == sorted([*method, 'get_model', 'list_models'])
for name in ('RMConsistencyHead', 'datasets'):
    try:
        getattr(mmrm, name)
    except ImportError as error:
        print(error)
"""


def test_core_trains_with_torch_and_numpy_alone():
    run = subprocess.run([sys.executable, '-c', WITHOUT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for name in ('RMConsistencyHead', 'datasets'):
        assert f'mmrm.{name} needs OpenMMLab, and mmengine, mmcv, mmpretrain cannot be found' in run.stdout
    assert 'pip install .[openmmlab]' in run.stdout
