"""``mmcv.ops`` without a C++ build: what the detectors need of mmcv's compiled extension, served from torchvision.

``mmcv-lite``, and an mmcv built without a compiler, lack the module ``mmcv._ext``, and with it all of ``mmcv.ops``. The
stand-in installed here serves ``nms``, ``softnms``, ``roi_align`` and ``sigmoid_focal_loss`` (which mmdet calls on CUDA
only), on every device that torch and torchvision serve. Any other op can be imported and raises
:class:`NotImplementedError` when it is called. A compiled mmcv is left alone.

The functions below have the names and the arguments of the compiled ones (``mmcv/ops/csrc/pytorch/pybind.cpp``); most
write their result to a tensor that the caller made.
"""

import importlib
import importlib.util
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from typing import Callable, Optional

import torch
import torch.nn.functional as F

from .scopes import is_distributed

REASON = "mmcv.ops, and with it mmdet and parts of mmseg, cannot be imported without mmcv's compiled extension"
VERSIONS = 'mmcv-lite, and mmcv built without a compiler'

NAME = 'mmcv._ext'
# These swallow a failed import of mmcv.ops in some releases and then stay without it.
USERS = ('mmdet.models', 'mmdet.structures', 'mmseg.models')


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in float64 if it is, else in float32: torchvision's kernels know no bfloat16, on the CPU no half."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float, offset: int) -> torch.Tensor:
    """Indices of the boxes that no better box overlaps with an IoU above the threshold, by descending score.

    Args:
        boxes (torch.Tensor): ``(n, 4)``, x1, y1, x2, y2.
        scores (torch.Tensor): ``(n, )``. Of equal scores the first one wins.
        iou_threshold (float): Boxes with exactly this IoU stay.
        offset (int): A box is ``x2 - x1 + offset`` wide, 0 or 1.

    Returns:
        torch.Tensor: ``(kept, )``, int64.
    """
    boxes, scores = _wide(boxes), _wide(scores)
    if offset:  # (x2 + 1) - x1 is the width wanted; in float64, so that adding 1 costs no digit
        boxes = boxes.double() + boxes.new_tensor([0, 0, offset, offset], dtype=torch.float64)
    dtype = torch.promote_types(boxes.dtype, scores.dtype)
    if dtype == torch.float32:  # mmcv compares in float32; 0.6 is larger there than in float64
        iou_threshold = torch.tensor(iou_threshold, dtype=dtype).item()
    return torch.ops.torchvision.nms(boxes.to(dtype), scores.to(dtype), iou_threshold)


def softnms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    dets: torch.Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> torch.Tensor:
    """Like :func:`nms`, but an overlapped box keeps a part of its score and goes only when that falls below a minimum.

    Args:
        boxes, scores, iou_threshold, offset: See :func:`nms`.
        dets (torch.Tensor): ``(n, 5)``; its first ``kept`` rows receive x1, y1, x2, y2 and the new score.
        sigma (float): Of the Gaussian.
        min_score (float): A box below it goes.
        method (int): What the score is multiplied with. 0: 0 from the threshold on, 1: ``1 - IoU`` from the threshold
            on, 2: ``exp(-IoU ** 2 / sigma)``.

    Returns:
        torch.Tensor: ``(kept, )``, int64, by descending new score.
    """
    boxes, scores = _wide(boxes), _wide(scores).clone()
    top_left, bottom_right = boxes[:, :2], boxes[:, 2:]
    area = (bottom_right - top_left + offset).prod(1)
    left = torch.arange(len(boxes), device=boxes.device)
    keep = []
    while len(left):
        best = scores[left].argmax()
        top, left = left[best], torch.cat((left[:best], left[best + 1 :]))
        dets[len(keep)] = torch.cat((boxes[top], scores[top, None])).to(dets)
        keep.append(top)
        side = torch.min(bottom_right[left], bottom_right[top]) - torch.max(top_left[left], top_left[top]) + offset
        inter = side.clamp(min=0).prod(1)
        iou = (inter / (area[left] + area[top] - inter)).nan_to_num()  # two empty boxes
        if method == 2:
            weight = torch.exp(-iou * iou / sigma)
        else:
            weight = torch.where(
                iou >= iou_threshold, 1 - iou if method == 1 else torch.zeros_like(iou), torch.ones_like(iou)
            )
        scores[left] *= weight
        left = left[scores[left] >= min_score]
    return torch.stack(keep) if keep else left


def _bins(
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int, pool_mode: int, aligned: bool
) -> dict:
    """mmcv's options of ``roi_align`` under torchvision's names.

    Args:
        aligned_height, aligned_width (int): Bins of a box.
        spatial_scale (float): Width of the feature map over width of the image.
        sampling_ratio (int): Samples per side of a bin; 0 or less: as many as the bin has pixels.
        pool_mode (int): 1, the average.
        aligned (bool): Whether the centre, not the corner, of the first pixel is at 0.
    """
    if pool_mode != 1:
        raise NotImplementedError(_message("roi_align with pool_mode='max'"))
    size = dict(pooled_height=aligned_height, pooled_width=aligned_width)
    return dict(size, spatial_scale=spatial_scale, sampling_ratio=sampling_ratio, aligned=aligned)


def roi_align_forward(
    input: torch.Tensor, rois: torch.Tensor, output: torch.Tensor, *argmax: torch.Tensor, **bins
) -> None:
    """Average bilinear samples of ``input`` in every bin of every box.

    Args:
        input (torch.Tensor): ``(n, channels, height, width)``.
        rois (torch.Tensor): ``(boxes, 5)``: index of the image, x1, y1, x2, y2 in pixels of the image.
        output (torch.Tensor): ``(boxes, channels, aligned_height, aligned_width)``, written to.
        *argmax (torch.Tensor): Of the maximum only, not used.
        **bins: See :func:`_bins`.
    """
    image = _wide(input)
    output.copy_(torch.ops.torchvision.roi_align(image, rois.to(image.dtype), **_bins(**bins)))


def roi_align_backward(
    grad_output: torch.Tensor,
    rois: torch.Tensor,
    argmax_y: torch.Tensor,
    argmax_x: torch.Tensor,
    grad_input: torch.Tensor,
    **bins,
) -> None:
    """Write the gradient of :func:`roi_align_forward` to ``grad_input``, ``(n, channels, height, width)``."""
    grad = _wide(grad_output)
    shape = dict(zip(('batch_size', 'channels', 'height', 'width'), grad_input.shape))
    backward = torch.ops.torchvision._roi_align_backward
    grad_input.copy_(backward(grad, rois.to(grad.dtype), **shape, **_bins(**bins)))


def _class_weight(weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """``weight[target]`` as a column, 1 for the background (a target without a weight)."""
    known = (target >= 0) & (target < len(weight))
    return torch.where(known, weight[target.clamp(0, len(weight) - 1)], torch.ones_like(weight[:1]))[:, None]


def sigmoid_focal_loss_forward(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, gamma: float, alpha: float
) -> None:
    """Write ``-alpha (1 - p)^gamma log p`` for a sample's class, ``-(1 - alpha) p^gamma log(1 - p)`` for the others.

    Args:
        input (torch.Tensor): Logits, ``(n, classes)``; ``p`` is their sigmoid.
        target (torch.Tensor): ``(n, )``, int64; ``classes`` means background, which is none of them.
        weight (torch.Tensor): ``(classes, )`` or empty.
        output (torch.Tensor): ``(n, classes)``, written to.
        gamma, alpha (float): See above.
    """
    logits = _wide(input)
    p, log_p, log_q = logits.sigmoid(), F.logsigmoid(logits), F.logsigmoid(-logits)
    positive = target[:, None] == torch.arange(logits.shape[1], device=target.device)
    loss = -torch.where(positive, alpha * (1 - p) ** gamma * log_p, (1 - alpha) * p**gamma * log_q)
    output.copy_(loss * _class_weight(weight, target) if weight.numel() else loss)


def sigmoid_focal_loss_backward(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    grad_input: torch.Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Write the derivative of :func:`sigmoid_focal_loss_forward` with respect to each logit to ``grad_input``."""
    logits = _wide(input)
    p, log_p, log_q = logits.sigmoid(), F.logsigmoid(logits), F.logsigmoid(-logits)
    positive = target[:, None] == torch.arange(logits.shape[1], device=target.device)
    grad = -torch.where(
        positive,
        alpha * (1 - p) ** gamma * (1 - p - gamma * p * log_p),
        (1 - alpha) * p**gamma * (gamma * (1 - p) * log_q - p),
    )
    grad_input.copy_(grad * _class_weight(weight, target) if weight.numel() else grad)


def get_compiler_version() -> str:
    """What mmcv's environment report prints."""
    return 'none (mmrm uses nms and roi_align of torchvision)'


def get_compiling_cuda_version() -> str:
    """What mmcv's environment report prints."""
    return 'none'


SERVED = (
    nms,
    softnms,
    roi_align_forward,
    roi_align_backward,
    sigmoid_focal_loss_forward,
    sigmoid_focal_loss_backward,
    get_compiler_version,
    get_compiling_cuda_version,
)


def _message(op: str) -> str:
    import mmcv

    onedl = is_distributed('onedl-mmcv')
    old, new = ('onedl-mmcv', 'onedl-mmcv') if onedl else ('mmcv-lite', 'mmcv')
    return (
        f"mmcv op {op} needs mmcv's compiled extension, which is not installed: without it mmrm provides only nms, "
        'soft_nms, roi_align (average) and sigmoid_focal_loss. To get a compiled mmcv (mmrm leaves it alone): '
        f'"pip uninstall {old}", then "MMCV_WITH_OPS=1 pip install --no-build-isolation --no-binary {new} '
        f'{new}=={mmcv.__version__}" (needs a C++ compiler, for CUDA also nvcc; '
        'https://mmcv.readthedocs.io/en/latest/get_started/build.html).'
    )


class StandIn(types.ModuleType):
    """The module ``mmcv._ext``: what :data:`SERVED` lists, and for any other name an op that says it is missing.

    mmcv asks for the names of all its ops while it is imported, so a missing one can only complain when it is called.
    """

    def __init__(self) -> None:
        super().__init__(NAME, __doc__)
        # mmengine looks for a spec. It has no loader, so that mmengine 0.10 does not take mmcv for a full one.
        self.__spec__ = ModuleSpec(NAME, loader=None, origin=__file__)
        for op in SERVED:
            setattr(self, op.__name__, op)

    def __getattr__(self, name: str) -> Callable:
        if name.startswith('__'):
            raise AttributeError(f'module {NAME!r} has no attribute {name!r}')

        def missing(*args, **kwargs):
            raise NotImplementedError(_message(name))

        missing.__name__ = missing.__qualname__ = name
        return missing


def _why_absent() -> Optional[str]:
    """None if mmcv's extension (or whatever stands in for it) can be imported, else the reason why it cannot."""
    if NAME in sys.modules or importlib.util.find_spec('mmcv') is None:
        return None
    if importlib.util.find_spec(NAME) is None:
        return ''
    try:
        importlib.import_module(NAME)
    except (ImportError, OSError) as error:  # built for another torch
        return str(error)
    return None


def needed() -> bool:
    """Whether mmcv is installed without a working compiled extension."""
    return _why_absent() is not None


def apply() -> None:
    """Install the stand-in as ``mmcv._ext``, and say so where the user might be surprised."""
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    reason = _why_absent()
    if reason is None:
        return
    if reason:
        warnings.warn(
            f"mmcv's compiled extension is installed but cannot be loaded ({reason.strip()}). mmrm has nms, "
            'soft_nms, roi_align and sigmoid_focal_loss instead; rebuild mmcv for this torch to get the other ops.',
            RuntimeWarning,
            stacklevel=2,
        )
    early = sorted(name for name in USERS if name in sys.modules)
    if early:
        warnings.warn(
            f'{", ".join(early)} was imported before mmrm.models, when there was no mmcv.ops yet, and may fail with '
            '"requires mmcv to be compiled with ops". Put "import mmrm.models" first.',
            RuntimeWarning,
            stacklevel=2,
        )
    module = StandIn()
    sys.modules[NAME] = module
    sys.modules['mmcv']._ext = module
