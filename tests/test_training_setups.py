"""RM in the set-ups people train in. Each test fails when its set-up breaks."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import batch, classifier, step
from mmengine.model import ExponentialMovingAverage, MMDistributedDataParallel
from mmengine.optim import OptimWrapper

from mmrm import BFloat16OptimWrapper, reset_history
from mmrm.models.check_parts import missing_parts


def mix_of(data):
    return data['data_samples'][0].rm_mix


def batches(count, **kwargs):
    generator = torch.Generator().manual_seed(7)
    return [batch(generator=generator, **kwargs) for _ in range(count)]


def losses_of(model, data, seed=0, **kwargs):
    """The losses of a run over ``data`` with fixed boxes, without updates."""
    np.random.seed(seed)
    reset_history(model)
    return [{name: value.detach() for name, value in step(model, copy.deepcopy(d), **kwargs).items()} for d in data]


def close(one, other, **tolerance):
    return all(torch.allclose(a[name].float(), b[name].float(), **tolerance) for a, b in zip(one, other) for name in a)


def test_history_survives_an_iteration_of_another_augment():
    model = classifier(alpha=1.0)
    preprocessor, augment = model.data_preprocessor, model.data_preprocessor.batch_augments
    rm = augment.augments[0]
    step(model, batch())
    earlier, prediction = rm._history.images.clone(), rm._history.mix.prediction
    augment.augments = [rm, blend]
    augment.probs = [0.0, 1.0]
    losses = step(model, batch())
    assert losses['loss_consistency'] == 0 and losses['rm_lambda'] == 0
    augment.probs = [1.0, 0.0]
    data = preprocessor(dict(inputs=[torch.zeros(3, 32, 32)] * 4, data_samples=batch()['data_samples']), training=True)
    mix = mix_of(data)
    box = mix.box
    assert torch.equal(mix.historical_prediction, prediction)
    patch = F.interpolate(earlier, (box.y2 - box.y1, box.x2 - box.x1), mode='nearest')
    assert torch.equal(data['inputs'][:, :, box.y1 : box.y2, box.x1 : box.x2], patch)


def blend(images, scores):  # a stock-like augment: two tensors in, two out
    return images.flip(0) * 0.5 + images * 0.5, scores.flip(0) * 0.5 + scores * 0.5


def test_amp():
    """Losses in float32, close to those without AMP, and a history in float32."""
    model, data = classifier(alpha=1.0), batches(6)
    full, mixed = losses_of(model, data), losses_of(model, data, autocast=torch.bfloat16)
    assert all(value.dtype == torch.float32 for losses in mixed for value in losses.values())
    assert close(full, mixed, atol=0.06)
    assert mixed[-1]['rm_kl'] > 0
    history = model.data_preprocessor.batch_augments.augments[0]._history
    assert history.mix.prediction.dtype == torch.float32
    assert torch.allclose(history.mix.prediction.sum(1), torch.ones(4), atol=1e-5)


def test_bfloat16_wrapper():
    """A step casts the forward pass to bfloat16 as torch's autocast does, and updates float32 weights."""
    model, data = classifier(alpha=1.0), batches(3)
    expected = losses_of(model, data, autocast=torch.bfloat16)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    seen = []
    model.backbone.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs[-1].dtype))
    wrapper = BFloat16OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.0))
    np.random.seed(0)
    reset_history(model)
    logs = [model.train_step(d, wrapper) for d in copy.deepcopy(data)]
    assert seen == [torch.bfloat16] * 3
    assert [log['rm_kl'].item() for log in logs] == [losses['rm_kl'].item() for losses in expected]
    wrapper.param_groups[0]['lr'] = 0.1
    model.train_step(copy.deepcopy(data[0]), wrapper)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert not all(torch.equal(one, other) for one, other in zip(before, model.parameters()))


def test_gradient_accumulation():
    """Every forward is an iteration of the history; the gradients add up."""
    model, data = classifier(alpha=1.0), batches(4)
    losses_of(model, data)
    expected = [parameter.grad / 4 for parameter in model.parameters()]
    model.zero_grad()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.0), accumulative_counts=4)
    np.random.seed(0)
    reset_history(model)
    wrapper.initialize_count_status(model, 0, 4)
    wrapper.zero_grad = lambda **kwargs: None  # to see the gradients after the step
    for d in copy.deepcopy(data):
        log = model.train_step(d, wrapper)
    assert log['rm_lambda'] > 0
    for parameter, grad in zip(model.parameters(), expected):
        assert torch.allclose(parameter.grad, grad, atol=1e-5)


def test_ema_and_validation():
    """The averaged copy has the RoI layer but neither shares nor touches the history; nor does validation."""
    model = classifier(alpha=1.0)
    step(model, batch())
    augment = model.data_preprocessor.batch_augments.augments[0]
    history, images, prediction = augment._history, augment._history.images.clone(), augment._history.mix.prediction
    ema = ExponentialMovingAverage(model, momentum=0.5)
    assert ema.module.data_preprocessor.batch_augments.augments[0] is not augment
    ema.update_parameters(model)
    with torch.no_grad():
        model.head.fc_roi.weight += 1
    ema.update_parameters(model)
    assert torch.allclose(ema.module.head.fc_roi.weight, model.head.fc_roi.weight - 0.5, atol=1e-6)
    for each in (ema.module, model):
        each.eval().val_step(batch())
    assert augment._history is history and torch.equal(history.images, images)
    assert history.mix.prediction is prediction


def test_channels_last():
    model, data = classifier(alpha=1.0), batches(5)
    contiguous = losses_of(model, data)
    model = model.to(memory_format=torch.channels_last)
    model.data_preprocessor.register_forward_hook(
        lambda module, args, out: out.update(inputs=out['inputs'].contiguous(memory_format=torch.channels_last))
    )
    assert close(contiguous, losses_of(model, data), atol=1e-4)


def test_gradient_checkpointing():
    model, data = classifier(alpha=1.0), batches(4)
    plain = losses_of(model, data)
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    checkpointed = classifier(
        alpha=1.0, backbone=dict(type='ResNet', depth=18, base_channels=8, out_indices=(3,), with_cp=True)
    )
    checkpointed.load_state_dict(model.state_dict())
    model.zero_grad()
    assert close(plain, losses_of(checkpointed, data), atol=1e-5)
    assert all(torch.allclose(a, b.grad, atol=1e-4) for a, b in zip(grads, checkpointed.parameters()))


def test_ddp_needs_no_search_for_unused_parameters(one_process):
    """torch raises in the step after one that left a parameter without a gradient: here, mixed or not, none does."""
    model = classifier(alpha=1.0, probs=0.5)
    ddp = MMDistributedDataParallel(model, device_ids=None, broadcast_buffers=False, find_unused_parameters=False)
    wrapper = OptimWrapper(torch.optim.SGD(ddp.parameters(), lr=0.05))
    before = model.head.fc_roi.weight.detach().clone()
    mixed = [float(ddp.train_step(batch(), wrapper)['rm_lambda']) > 0 for _ in range(8)]
    assert {False, True} <= set(mixed[1:]) and not torch.equal(model.head.fc_roi.weight, before)


LINEAR = dict(type='LinearClsHead', num_classes=5, in_channels=64)
MIXUP = dict(type='Mixup', alpha=1.0)


@pytest.mark.parametrize(
    'parts, words',
    [
        (dict(head=LINEAR), ['the head is LinearClsHead', "type='RMConsistencyHead'"]),
        (dict(preprocessor='ClsDataPreprocessor'), ['is ClsDataPreprocessor', "type='RMDataPreprocessor'"]),
        (
            dict(head=LINEAR, preprocessor='ClsDataPreprocessor'),
            ['the head is LinearClsHead and the data preprocessor is ClsDataPreprocessor'],
        ),
        (dict(augments=[MIXUP, dict(type='ResizeFillMix')]), ['omega=0.5, but RecursiveMix is off', 'omega=0 ']),
        (dict(), None),
        (dict(augments=[dict(type='RecursiveMix'), MIXUP]), None),
        (dict(omega=0, preprocessor='ClsDataPreprocessor'), None),
        (dict(omega=0, augments=dict(type='ResizeFillMix')), None),
        (dict(head=LINEAR, augments=MIXUP), None),
    ],
)
def test_a_missing_part_of_rm_is_named_with_what_to_do(parts, words):
    message = missing_parts(classifier(**parts))
    assert message is None if words is None else all(word in message for word in words)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_cuda_amp_equals_the_cpu(dtype):
    model, data = classifier(alpha=1.0), batches(6)
    expected = losses_of(model, data)
    model.cuda()
    np.random.seed(0)
    reset_history(model)
    scaler = torch.amp.GradScaler('cuda', enabled=dtype == torch.float16)
    for d, reference in zip(copy.deepcopy(data), expected):
        processed = model.data_preprocessor(d, training=True)
        with torch.autocast('cuda', dtype=dtype):
            losses = model(**processed, mode='loss')
        scaler.scale(model.parse_losses(losses)[0]).backward()
        for name, value in reference.items():
            assert torch.allclose(losses[name].float().cpu(), value, atol=0.1)


def test_reset_history_reaches_stock_preprocessors_too():
    model = classifier(preprocessor='ClsDataPreprocessor')
    augment = model.data_preprocessor.batch_augments.augments[0]
    step(model, batch())
    assert augment._history is not None
    reset_history(model)
    assert augment._history is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
def test_cuda_step_copies_nothing_back_to_the_host():
    model = classifier(alpha=1.0).cuda()
    step(model, batch())
    data = model.data_preprocessor(batch(), training=True)
    torch.cuda.set_sync_debug_mode('error')
    try:
        model(**data, mode='loss')
    finally:
        torch.cuda.set_sync_debug_mode('default')
