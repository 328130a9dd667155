"""What a GPU would do, shown on a CPU with fake tensors: devices, precision, waiting, memory, CUDA graphs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_gpu import DEVICE, Watch, fake_gpu, overwriting_backend, to_gpu, walk
from helpers import batch, classifier
from mmpretrain.models import ResNet
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mmrm import RecursiveMixModel, bind_augments
from mmrm.core import Consistency, RecursiveMix, pool
from mmrm.engine.compiled import compile_losses
from mmrm.models.regularisers import stylecutmix

PLAIN = dict(type='LinearClsHead', num_classes=5, in_channels=64)
# How often the host waits for the device in a step of each method. PuzzleMix cuts graphs on the CPU.
WAITS = dict(
    RecursiveMix=0, ResizeFillMix=0, ManifoldMixup=0, MoEx=0, FeatureCutMix=0, CutMixMoEx=0, StyleCutMix=0, PuzzleMix=3
)
OPTIONS = dict(
    RecursiveMix=dict(alpha=1.0),
    ManifoldMixup=dict(layers='layer1'),
    FeatureCutMix=dict(layers='layer1'),
    CutMixMoEx=dict(moex_prob=1.0),
    StyleCutMix=dict(encoder='', decoder='', distances=[[1.0] * 5] * 5, size=16),
)


@pytest.fixture
def gpu(monkeypatch):
    with fake_gpu(monkeypatch):
        yield


def test_walk_over_the_graph_is_bit_equal_to_torchs_engine():
    network = ResNet(18)
    images = torch.randn(2, 3, 64, 64, requires_grad=True)
    logits = network(images)[0].mean((2, 3))
    loss = F.cross_entropy(logits.double().float(), torch.tensor([0, 1]))
    found = walk(loss)
    loss.backward()
    assert found.keys() == {images, *network.parameters()}
    assert all(torch.equal(gradient, leaf.grad) for leaf, gradient in found.items())


def build(method, monkeypatch):
    """A small classifier with one method, bound and on the fake device."""
    omega = 0.5 if method == 'RecursiveMix' else 0
    with unset_fake_temporarily():
        model = classifier(omega=omega, augments=dict(type=method, **OPTIONS.get(method, {})))
        augment = model.data_preprocessor.batch_augments.augments[0]
        encoder = nn.Sequential(nn.Conv2d(3, 3, 1), *stylecutmix._layers(3, stylecutmix.ENCODER))
        decoder = nn.Sequential(*stylecutmix._layers(512, stylecutmix.DECODER)[:-1])
        networks = dict(encoder=encoder.requires_grad_(False), decoder=decoder.requires_grad_(False))
        if method == 'StyleCutMix':
            monkeypatch.setattr(augment, '_network', lambda name, build: networks[name])
        if method == 'PuzzleMix':
            monkeypatch.setattr(augment, 'solve', lambda unary, down, right: np.zeros(unary.shape[:2]))
        bind_augments(model)
    for network in networks.values():
        to_gpu(network)
        network.to = lambda device, network=network: network  # torch's swaps tensors, see to_gpu
    return to_gpu(model)


def real_batch(*args):
    """A batch with numbers in it, as a loader gives it: the images pinned."""
    with unset_fake_temporarily():
        data = batch(*args)
    data['inputs'] = torch.stack(data['inputs']).pin_memory()
    return data


def train_step(model, dtype):
    data = model.data_preprocessor(real_batch(4), training=True)
    with torch.autocast('cuda', dtype=dtype, enabled=dtype != torch.float32):
        losses = model(**data, mode='loss')
    model.parse_losses(losses)[0].backward()
    return data, losses


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize('method', WAITS)
def test_a_step_stays_on_the_device(method, dtype, gpu, monkeypatch):
    model = build(method, monkeypatch)
    train_step(model, dtype)  # layers are measured and history is filled in the first
    model.zero_grad()
    with Watch() as watch:
        data, losses = train_step(model, dtype)
    assert len(watch.waits) == WAITS[method], watch.waits
    assert watch.dtypes == {torch.float32, dtype}  # above all no float64
    scores = torch.stack([sample.gt_score for sample in data['data_samples']])
    for tensor in (data['inputs'], scores, *losses.values(), *(p.grad for p in model.parameters())):
        assert tensor.device == DEVICE and tensor.dtype == torch.float32
    if method == 'RecursiveMix':
        assert data['data_samples'][0].rm_mix.lam > 0 and losses.keys() >= {'loss_consistency', 'rm_kl', 'rm_lambda'}


def small_network():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 64, 5))


def wrap(network):
    return RecursiveMixModel(network, '2', alpha=1.0, input_size=32, layout='NCHW')


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_core_and_wrapper_do_not_wait(dtype, gpu):
    with unset_fake_temporarily():
        wrapped = wrap(small_network())
    wrapped, network = to_gpu(wrapped), wrapped.module
    rm, consistency = RecursiveMix(alpha=1.0, num_classes=5), to_gpu(Consistency(8, 5))
    images, labels = torch.randn(4, 3, 32, 32, device=DEVICE), torch.zeros(4, dtype=torch.long, device=DEVICE)
    with Watch() as watch, torch.autocast('cuda', dtype=dtype, enabled=dtype != torch.float32):
        for _ in range(3):
            wrapped(images, labels).backward()
            mixed, scores, mix = rm.mix(images, labels)
            _, region = pool(network[:3](mixed), mix)
            logits = network(mixed)
            (F.cross_entropy(logits, scores) + consistency(mix, region, logits)).backward()
    assert mix.lam > 0 and mix.historical_prediction.device == DEVICE
    assert watch.waits == [] and watch.dtypes == {torch.float32, dtype}
    assert all(p.grad.device == DEVICE for p in [*wrapped.parameters(), *consistency.parameters()])


def test_rm_adds_less_than_30_mib_at_batch_64(gpu):
    peaks = []
    for omega in (0.0, 0.5):
        with unset_fake_temporarily():
            model = classifier(1000, omega, backbone=dict(type='ResNet', depth=50), in_channels=2048)
        if omega == 0:
            model.data_preprocessor.batch_augments, model.data_preprocessor.to_onehot = None, False
        with Watch() as watch:
            to_gpu(model)
            momentum = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for _ in range(2):
                model.zero_grad()
                data = model.data_preprocessor(real_batch(64, (224, 224)), training=True)
                model.parse_losses(model(**data, mode='loss'))[0].backward()
                del data
        peaks.append(watch.peak)
        assert len(momentum) and watch.peak > 4 * 2**30  # the activations are counted
    added = (peaks[1] - peaks[0]) / 2**20
    assert 8 < added < 30, added


# ------------------------------------------------------------------------------------------------------- CUDA graphs
def in_a_config(compiled):
    model = classifier(alpha=1.0, in_channels=8, backbone=small_network()[:3])
    if compiled:
        assert compile_losses(model, dict(backend=compiled))

    def step():
        losses = model(**model.data_preprocessor(batch(4), training=True), mode='loss')
        model.parse_losses(losses)[0].backward()
        return losses['loss_consistency']

    return step


def in_the_wrapper(compiled):
    model = wrap(small_network())
    called = torch.compile(model, backend=compiled) if compiled else model

    def step():
        called.train()
        called(torch.randn(4, 3, 32, 32), torch.arange(4)).backward()
        found = model.losses['consistency'].clone()
        called.eval()
        with torch.no_grad():
            called(torch.randn(4, 3, 32, 32))  # a compiled evaluation overwrites as well
        return found

    return step


def in_a_loop(compiled):
    rm, consistency, network = RecursiveMix(alpha=1.0, num_classes=5), Consistency(8, 5), small_network()[:3]
    fc = nn.Linear(8, 5)

    def losses(images, scores, mix):
        mean, region = pool(network(images), mix)
        logits = fc(mean)
        found = consistency(mix, region, logits)
        return F.cross_entropy(logits, scores) + found, found.detach()

    function = torch.compile(losses, backend=compiled, fullgraph=True) if compiled else losses

    def step():
        total, found = function(*rm.mix(torch.randn(4, 3, 32, 32), torch.arange(4)))
        total.backward()
        return found

    return step


@pytest.mark.parametrize('way', [in_a_config, in_the_wrapper, in_a_loop], ids=lambda way: way.__name__)
def test_a_compiled_step_outlives_the_overwriting_of_its_outputs(way):
    found = []
    for compiled in (None, overwriting_backend()):
        torch._dynamo.reset()
        torch.manual_seed(0)
        np.random.seed(0)
        step = way(compiled)
        found.append(torch.stack([step().detach().clone() for _ in range(5)]))
    torch._dynamo.reset()
    assert (found[0][1:] > 0).all()
    torch.testing.assert_close(found[1], found[0])
