"""What a GPU would do, shown on a CPU with fake tensors: devices, precision, waiting, memory, CUDA graphs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_gpu import DEVICE, Watch, fake_gpu, overwriting_backend, to_gpu, walk
from helpers import batch, classifier
from mmpretrain.models import ResNet
from parallel_training import small_network, wrap
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mmrm import bind_augments
from mmrm.core import Box, Consistency, RecursiveMix, pool, roi_mean
from mmrm.engine import loops
from mmrm.engine.runner import read_at_once
from mmrm.models.regularisers import stylecutmix
from mmrm.utils.random_state import get_random_state, set_random_state

METHODS = ('RecursiveMix', 'PerSample', 'ResizeFillMix', 'ManifoldMixup', 'MoEx', 'FeatureCutMix', 'CutMixMoEx')
METHODS += ('StyleCutMix', 'PuzzleMix')
OPTIONS = dict(
    RecursiveMix=dict(alpha=1.0),
    PerSample=dict(type='RecursiveMix', alpha=1.0, per_sample=True),
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


def style_encoder():
    return nn.Sequential(nn.Conv2d(3, 3, 1), *stylecutmix._layers(3, stylecutmix.ENCODER))


def build(method, monkeypatch):
    """A small classifier with one method, bound and on the fake device."""
    omega = 0.5 if method in ('RecursiveMix', 'PerSample') else 0
    with unset_fake_temporarily():
        model = classifier(omega=omega, augments={'type': method, **OPTIONS.get(method, {})})
        augment, networks = model.data_preprocessor.batch_augments.augments[0], {}
        if method == 'StyleCutMix':
            decoder = nn.Sequential(*stylecutmix._layers(512, stylecutmix.DECODER)[:-1])
            networks = dict(encoder=style_encoder().requires_grad_(False), decoder=decoder.requires_grad_(False))
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
@pytest.mark.parametrize('method', METHODS)
def test_a_step_stays_on_the_device(method, dtype, gpu, monkeypatch):
    model = build(method, monkeypatch)
    train_step(model, dtype)  # layers are measured and history is filled in the first
    model.zero_grad()
    with Watch() as watch:
        data, losses = train_step(model, dtype)
    assert len(watch.waits) == (3 if method == 'PuzzleMix' else 0), watch.waits  # it cuts graphs on the CPU
    assert watch.dtypes == {torch.float32, dtype}  # above all no float64
    scores = torch.stack([sample.gt_score for sample in data['data_samples']])
    for tensor in (data['inputs'], scores, *losses.values(), *(p.grad for p in model.parameters())):
        assert tensor.device == DEVICE and tensor.dtype == torch.float32
    if method in ('RecursiveMix', 'PerSample'):
        assert data['data_samples'][0].rm_mix.lam > 0 and losses.keys() >= {'loss_consistency', 'rm_kl', 'rm_lambda'}


def test_distances_of_classes_need_no_float64_on_the_device(gpu):
    with unset_fake_temporarily():
        encoder, labels = style_encoder(), torch.arange(2)
    batches = [(torch.zeros(2, 3, 32, 32, device=DEVICE), labels)]
    with Watch() as watch:
        found = stylecutmix.class_distances(to_gpu(encoder), batches, 2, 16)
    assert found.shape == (2, 2) and watch.dtypes == {torch.float32}


def test_the_region_is_pooled_in_float32_wherever_there_is_autocast(gpu, monkeypatch):
    """Also on devices that torch learns of by an extension: what has autocast is asked, not listed."""
    features, asked = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16, device=DEVICE), []
    monkeypatch.setattr(torch.amp, 'is_autocast_available', lambda kind: asked.append(kind) or True)
    with torch.autocast('cuda', dtype=torch.bfloat16):
        assert torch.mm(features[0, 0].float(), features[0, 0].float()).dtype == torch.bfloat16
        assert roi_mean(features, Box(0, 0, 8, 8), (16, 16)).dtype == torch.float32
    assert asked == ['cuda']


def test_the_random_state_of_any_accelerator_is_kept(monkeypatch):
    drawn = []
    monkeypatch.setattr(torch.accelerator, 'is_available', lambda: True)
    monkeypatch.setattr(torch.accelerator, 'current_accelerator', lambda: torch.device('xpu'))
    monkeypatch.setattr(torch.xpu, 'get_rng_state', lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.xpu, 'set_rng_state', lambda state: drawn.append(int(state)))
    state = get_random_state()
    set_random_state(state)
    del state['xpu']  # of a checkpoint that was written on a CPU
    set_random_state(state)
    assert drawn == [7]


@pytest.mark.parametrize('per_sample', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_core_and_wrapper_do_not_synchronize_with_the_device(dtype, per_sample, gpu):
    with unset_fake_temporarily():
        wrapped = wrap(small_network())
    wrapped, network = to_gpu(wrapped), wrapped.module
    rm = RecursiveMix(alpha=1.0, num_classes=5, per_sample=per_sample)
    consistency = to_gpu(Consistency(8, 5))
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


def test_all_losses_of_a_step_are_read_by_one_copy(gpu):
    names = ('loss', 'loss_consistency', 'rm_kl', 'rm_lambda')
    outputs = dict({name: torch.zeros((), device=DEVICE, requires_grad=True) for name in names}, note='text')
    with Watch() as watch:
        found = read_at_once(outputs)
    assert len(watch.waits) == 1 and list(found) == [*names, 'note'] and found['note'] == 'text'
    assert all(found[name].device.type == 'cpu' and not found[name].requires_grad for name in names)


def test_the_losses_that_hooks_get_are_those_of_the_step():
    outputs = dict(loss=torch.tensor(0.1), number=3)
    assert read_at_once(outputs) is outputs and read_at_once(None) is None


def test_a_compiled_wrapper_outlives_the_overwriting_of_its_outputs():
    """As CUDA graphs do it; in configs and in loops of one's own: tests/engine/test_compiled.py."""
    found = []
    for backend in (None, overwriting_backend()):
        torch._dynamo.reset()
        torch.manual_seed(0)
        np.random.seed(0)
        model = wrap(small_network())
        called, values = torch.compile(model, backend=backend) if backend else model, []
        for _ in range(5):
            called.train()
            called(torch.randn(4, 3, 32, 32), torch.arange(4)).backward()
            values.append(model.losses['consistency'].clone())
            called.eval()
            with torch.no_grad():
                called(torch.randn(4, 3, 32, 32))  # a compiled evaluation overwrites as well
        found.append(torch.stack(values))
    torch._dynamo.reset()
    assert (found[0][1:] > 0).all()
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize('rank', range(3))
def test_a_checkpoint_of_three_processes_takes_two_exchanges(rank, monkeypatch):
    """However many buffers they have. Process 0 gets those of all, in the layout that they have."""
    tensors = [
        {f'buffer.{n}': torch.full((2, 3, 4, 4), r + n).to(memory_format=torch.channels_last) for n in range(20)}
        for r in range(3)
    ]
    sent = []

    def broadcast(data, source):
        assert (data[0] is None) == (source != rank)
        sent.append(source)
        data[0] = tensors[source]

    monkeypatch.setattr(loops, 'get_rank', lambda: rank)
    monkeypatch.setattr(loops, 'get_world_size', lambda: 3)
    monkeypatch.setattr(loops, 'broadcast_object_list', broadcast)
    gathered = loops.gather_tensors(tensors[rank])
    assert sent == [1, 2] and (gathered is None) == (rank > 0)
    if rank == 0:
        for found, expected in zip(gathered, tensors):
            assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
            assert all(tensor.stride() == (48, 1, 12, 3) for tensor in found.values())
