"""Class activation maps, computed by grad-cam.

The map is taken from the backbone's last feature map itself, so that for a pooled linear classifier GradCAM is CAM: the
class's weights applied to every cell. ``tools/analysis/cam.py`` draws the maps of several checkpoints side by side.
"""

from typing import Sequence, Tuple

import numpy as np
import torch
from torch import nn

from ..utils.errors import UserError, UserValueError

METHODS = ('GradCAM', 'GradCAMPlusPlus', 'HiResCAM', 'XGradCAM', 'LayerCAM', 'EigenGradCAM', 'EigenCAM')


def grad_cam():
    """The package grad-cam, any version."""
    try:
        import pytorch_grad_cam
        import pytorch_grad_cam.utils.model_targets
    except ImportError as error:
        raise UserError(
            f'class activation maps need the package grad-cam ({error}): pip install -r requirements/analysis.txt'
        ) from error
    return pytorch_grad_cam


class WithMap(nn.Module):
    """A classifier from images to logits whose last feature map passes through :attr:`map`, where it can be hooked.

    Args:
        model (nn.Module): mmpretrain's ImageClassifier.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.map = nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.model.backbone(images)
        features = tuple(features) if isinstance(features, (tuple, list)) else (features,)
        last = features[-1]
        if not isinstance(last, torch.Tensor) or last.ndim != 4:
            shape = tuple(last.shape) if isinstance(last, torch.Tensor) else type(last).__name__
            raise UserValueError(
                f'the backbone {type(self.model.backbone).__name__} has no feature map (N, C, h, w), but {shape}: '
                'there is nothing to map. Transformers of mmpretrain give one with out_type="featmap".'
            )
        features = (*features[:-1], self.map(last))
        if getattr(self.model, 'neck', None) is not None:
            features = self.model.neck(features)
        return self.model.head(features)


def activation_maps(
    model: nn.Module, inputs: torch.Tensor, classes: Sequence[int], method: str = 'GradCAM'
) -> Tuple[np.ndarray, np.ndarray]:
    """The maps of one image for several classes.

    Args:
        model (nn.Module): mmpretrain's ImageClassifier, in eval mode.
        inputs (Tensor): One preprocessed image, shape ``(1, C, H, W)``, on the model's device.
        classes (Sequence[int]): For which classes.
        method (str): One of :data:`METHODS`. Defaults to 'GradCAM'.

    Returns:
        tuple[ndarray, ndarray]: The maps, shape ``(len(classes), H, W)``, each scaled to [0, 1] (all 0 where nothing
        supports the class), and the softmax of each of the classes, shape ``(len(classes), )``.
    """
    package = grad_cam()
    if method not in METHODS:
        raise UserValueError(f'method={method!r} must be one of {", ".join(METHODS)}.')
    wrapped = WithMap(model).eval()
    with torch.no_grad():
        logits = wrapped(inputs)
    for index in classes:
        if not 0 <= index < logits.shape[1]:
            raise UserValueError(f'class {index}: the model has the classes 0 to {logits.shape[1] - 1}.')
    target = package.utils.model_targets.ClassifierOutputTarget
    maps = []
    for index in classes:
        # Only these two arguments are the same in all versions of grad-cam.
        cam = getattr(package, method)(model=wrapped, target_layers=[wrapped.map])
        with torch.enable_grad():
            maps.append(cam(inputs, [target(index)])[0])
        cam.activations_and_grads.release()
    model.zero_grad()
    return np.stack(maps), torch.softmax(logits.float(), 1)[0, list(classes)].cpu().numpy()


def overlay(image: np.ndarray, heat: np.ndarray, strength: float = 0.55) -> np.ndarray:
    """An image, uint8 RGB ``(H, W, 3)``, under its map, ``(H, W)`` in [0, 1]: dark where it is 0, bright at 1.

    The colours are matplotlib's inferno, whose brightness grows evenly.
    """
    from matplotlib import colormaps

    colours = colormaps['inferno'](heat)[..., :3]
    return np.uint8(np.round(255 * ((1 - strength) * image / 255 + strength * colours)))
