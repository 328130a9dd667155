"""The stand-in for mmcv's compiled extension: mmcv's own functions against loops written from its documentation."""

import importlib.metadata
import sys
import types
from fractions import Fraction

import mmcv
import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.ops import DeformConv2d, nms, roi_align, sigmoid_focal_loss, soft_nms

from mmrm.compat import operators as ops

stood_in = pytest.mark.skipif(not isinstance(sys.modules['mmcv._ext'], ops.StandIn), reason='mmcv is compiled here')


def random_boxes(count: int, size: float = 100.0, dtype=torch.float32) -> torch.Tensor:
    corner, side = torch.rand(2, count, 2, dtype=dtype) * size
    return torch.cat((corner, corner + side), 1)


def exact_iou(a, b, offset: int) -> Fraction:
    """IoU of two boxes with integer corners as mmcv documents it: a side is x2 - x1 + offset long."""
    a, b = [int(v) for v in a], [int(v) for v in b]
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]) + offset)
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]) + offset)
    areas = [(c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b)]
    union = sum(areas) - width * height
    return Fraction(width * height, union) if union else Fraction(0)


def plain_nms(boxes, scores, threshold: str, offset: int) -> list:
    order = sorted(range(len(boxes)), key=lambda i: -float(scores[i]))  # stable: of equal scores the first
    keep = []
    for i in order:
        if all(exact_iou(boxes[i], boxes[j], offset) <= Fraction(threshold) for j in keep):
            keep.append(i)
    return keep


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 4, st.sampled_from([0.1, 0.5, 0.9])), max_size=12),
    st.sampled_from(['0.2', '0.3', '0.5', '0.6', '0.7']),
    st.sampled_from([0, 1]),
)
def test_nms_equals_the_documented_rule_with_equal_scores_and_ious_on_the_threshold(rows, threshold, offset):
    rows = [(x, y, x + w, y + h, score) for x, y, w, h, score in rows]
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)
    dets, keep = nms(table[:, :4], table[:, 4], float(threshold), offset=offset)
    assert keep.tolist() == plain_nms(table[:, :4], table[:, 4], threshold, offset)
    assert keep.dtype == torch.int64
    assert torch.equal(dets, table[keep])


@pytest.mark.parametrize('offset', [0, 1])
def test_empty_input_gives_empty_output(offset):
    dets, keep = nms(torch.zeros(0, 4), torch.zeros(0), 0.5, offset=offset)
    assert dets.shape == (0, 5) and keep.shape == (0,) and keep.dtype == torch.int64
    assert len(soft_nms(torch.zeros(0, 4), torch.zeros(0), offset=offset)[1]) == 0
    image = torch.randn(1, 2, 4, 4, requires_grad=True)
    pooled = roi_align(image, torch.zeros(0, 5), (2, 2), 1.0, 0, 'avg', True)
    pooled.sum().backward()
    assert pooled.shape == (0, 2, 2, 2) and torch.equal(image.grad, torch.zeros_like(image))


@stood_in
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    boxes, scores = random_boxes(50).to(dtype), torch.rand(50).to(dtype)
    _, keep = nms(boxes, scores, 0.5)
    assert torch.equal(keep, torchvision.ops.nms(boxes.double(), scores.double(), 0.5))
    image = torch.randn(1, 2, 8, 8).to(dtype).requires_grad_()
    rois = torch.tensor([[0.0, 1.0, 2.0, 6.0, 7.0]], dtype=dtype)
    result = roi_align(image, rois, (2, 2), 1.0, 0, 'avg', True)
    result.sum().backward()
    assert result.dtype == image.grad.dtype == dtype
    wide = torch.promote_types(dtype, torch.float32)
    expected = roi_align(image.detach().to(wide), rois.to(wide), (2, 2), 1.0, 0, 'avg', True)
    assert torch.equal(result, expected.to(dtype))


def plain_soft_nms(boxes, scores, threshold, sigma, min_score, method, offset):
    boxes, scores, left, kept = boxes.tolist(), scores.tolist(), list(range(len(boxes))), []
    while left:
        top = max(left, key=lambda i: scores[i])
        left.remove(top)
        kept.append((top, scores[top]))
        a = boxes[top]
        for i in list(left):
            b = boxes[i]
            inter = max(0, min(a[2], b[2]) - max(a[0], b[0]) + offset) * max(
                0, min(a[3], b[3]) - max(a[1], b[1]) + offset
            )
            union = sum((c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b)) - inter
            iou = inter / union
            if method == 'gaussian':
                scores[i] *= np.exp(-iou * iou / sigma)
            elif iou >= threshold:
                scores[i] *= 1 - iou if method == 'linear' else 0
            if scores[i] < min_score:
                left.remove(i)
    return kept


@pytest.mark.parametrize('method', ['naive', 'linear', 'gaussian'])
@pytest.mark.parametrize('offset', [0, 1])
def test_soft_nms_lowers_the_scores_of_overlapped_boxes(method, offset):
    boxes, scores = random_boxes(60, size=50.0), torch.rand(60)
    dets, keep = soft_nms(boxes, scores, iou_threshold=0.3, sigma=0.5, min_score=0.05, method=method, offset=offset)
    expected = plain_soft_nms(boxes, scores, 0.3, 0.5, 0.05, method, offset)
    assert keep.tolist() == [index for index, _ in expected]
    assert torch.equal(dets[:, :4], boxes[keep])
    assert torch.allclose(dets[:, 4], torch.tensor([float(score) for _, score in expected]), atol=1e-5)
    assert 1 < len(keep) < 60


def random_rois(count: int, batch: int, size: float, dtype=torch.float64) -> torch.Tensor:
    boxes = random_boxes(count, size, dtype) - size / 6  # some reach over each border
    return torch.cat((torch.randint(0, batch, (count, 1)).to(dtype), boxes), 1)


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('sampling_ratio', [0, 2, -1])
@pytest.mark.parametrize('size', [(1, 1), (3, 2)])
def test_roi_align_equals_torchvisions(aligned, sampling_ratio, size):
    image, rois = torch.randn(2, 3, 7, 9, dtype=torch.float64), random_rois(12, 2, 30.0)
    rois[0, 3:] = rois[0, 1:3] + 0.5  # less than one cell
    result = roi_align(image, rois, size, 0.25, sampling_ratio, 'avg', aligned)
    assert torch.equal(result, torchvision.ops.roi_align(image, rois, size, 0.25, sampling_ratio, aligned))


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('sampling_ratio', [0, 2])
def test_roi_align_has_the_gradient_of_finite_differences(aligned, sampling_ratio):
    image = torch.randn(2, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    rois = random_rois(5, 2, 20.0)
    assert torch.autograd.gradcheck(lambda x: roi_align(x, rois, (2, 3), 0.25, sampling_ratio, 'avg', aligned), image)


@stood_in
@pytest.mark.parametrize('gamma, alpha', [(2.0, 0.25), (1.5, 0.6)])
def test_sigmoid_focal_loss_equals_torchvisions(gamma, alpha):
    logits = (4 * torch.randn(20, 3, dtype=torch.float64)).requires_grad_()
    target = torch.randint(0, 4, (20,))  # 3 is the background
    loss = sigmoid_focal_loss(logits, target, gamma, alpha, None, 'none')
    one_hot = torch.nn.functional.one_hot(target, 4)[:, :3].double()
    expected = torchvision.ops.sigmoid_focal_loss(logits, one_hot, alpha, gamma)
    assert torch.allclose(loss, expected)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.allclose(grad, torch.autograd.grad(expected.sum(), logits)[0])
    assert torch.autograd.gradcheck(lambda x: sigmoid_focal_loss(x, target, gamma, alpha, None, 'mean'), (logits,))


@stood_in
def test_sigmoid_focal_loss_weighs_classes_and_stays_finite():
    logits = torch.tensor([[100.0, -100.0], [-100.0, 100.0]]).requires_grad_()
    weight = torch.tensor([2.0, 3.0])
    loss = sigmoid_focal_loss(logits, torch.tensor([1, 2]), 2.0, 0.25, weight, 'none')
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad.isfinite().all()
    assert torch.allclose(loss[0], torch.tensor([3 * 0.75 * 100.0, 3 * 0.25 * 100.0]))
    assert torch.allclose(loss[1], torch.tensor([0.0, 0.75 * 100.0]))


@stood_in
def test_any_other_op_is_refused_by_name_when_it_is_called():
    image, layer = torch.randn(1, 1, 4, 4), DeformConv2d(1, 1, 1)
    with pytest.raises(NotImplementedError, match='deform_conv_forward') as error:
        layer(image, torch.zeros(1, 2, 4, 4))
    assert 'MMCV_WITH_OPS=1 pip install' in str(error.value) and mmcv.__version__ in str(error.value)
    with pytest.raises(NotImplementedError, match="roi_align with pool_mode='max' needs mmcv's compiled extension"):
        roi_align(image, torch.tensor([[0.0, 0.0, 0.0, 2.0, 2.0]]), (1, 1), 1.0, 0, 'max', True)


@stood_in
def test_mmengine_finds_the_stand_in_where_it_asks_for_mmcv():
    from mmengine.model import revert_sync_batchnorm
    from mmengine.utils.dl_utils import mmcv_full_available

    model = revert_sync_batchnorm(torch.nn.Sequential(torch.nn.SyncBatchNorm(2)))
    assert model(torch.randn(3, 2, 4, 4)).shape == (3, 2, 4, 4)
    # mmengine asks for a loader, which the stand-in lacks; OneDL's asks for a spec, which it has.
    onedl = 'onedl-mmengine' in {found.metadata['Name'] for found in importlib.metadata.distributions()}
    assert mmcv_full_available() == onedl
    from mmcv.utils import collect_env

    assert 'mmrm' in collect_env()['MMCV Compiler']
    assert not hasattr(sys.modules['mmcv._ext'], '__path__')


@pytest.fixture
def without_extension(monkeypatch):
    """mmcv as it is before mmrm was imported."""
    monkeypatch.delitem(sys.modules, 'mmcv._ext')
    monkeypatch.setattr(mmcv, '_ext', getattr(mmcv, '_ext', None), raising=False)  # to be put back
    monkeypatch.setattr(mmcv, '__path__', list(mmcv.__path__))


@stood_in
def test_a_compiled_extension_is_left_alone(without_extension, tmp_path):
    assert ops.needed()
    (tmp_path / '_ext.py').write_text('compiled = True')
    mmcv.__path__.append(str(tmp_path))
    assert not ops.needed()
    ops.apply()
    assert sys.modules['mmcv._ext'].compiled


@stood_in
def test_an_extension_that_cannot_be_loaded_and_a_toolbox_imported_too_early_are_warned_of(
    without_extension, monkeypatch, tmp_path
):
    (tmp_path / '_ext.py').write_text('raise ImportError("undefined symbol: _ZN3c10")')
    mmcv.__path__.append(str(tmp_path))
    for name in ops.USERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, 'mmseg.models', types.ModuleType('mmseg.models'))
    with pytest.warns(RuntimeWarning) as told:
        ops.apply()
    unloadable, early = (str(each.message) for each in told)
    assert 'cannot be loaded (undefined symbol: _ZN3c10)' in unloadable and 'rebuild mmcv' in unloadable
    assert 'mmseg.models was imported before mmrm.models' in early
    assert isinstance(sys.modules['mmcv._ext'], ops.StandIn) and not ops.needed()
