"""How a batch augment gets at the model: it is bound to it before training.

mmpretrain gives a batch augment images and labels, never the model. Those that need it (to mix at a layer, or for a
saliency) derive from :class:`BoundAugment`; :class:`mmrm.engine.hooks.BindAugmentsHook` binds them under
mmengine's Runner, :func:`bind_augments` in a loop of your own.
"""

from typing import Any, List, Optional

import numpy as np
from torch import nn

from ...utils.errors import UserError


class BoundAugment:
    """A batch augment that needs the model."""

    rng: Any = None  # where numbers come from; None: NumPy's global generator
    _model: Optional[nn.Module] = None

    def bind(self, model: nn.Module) -> None:
        """Get the model, as it is inside a DDP wrapper. An augment that is bound already forgets its earlier model."""
        self.unbind()
        self._model = model

    def unbind(self) -> None:
        """Forget the model."""
        self._model = None

    @property
    def model(self) -> nn.Module:
        """The model; raises if there is none yet."""
        if self._model is None:
            raise UserError(
                f'{type(self).__name__} needs the model. Add dict(type="BindAugmentsHook") to '
                'custom_hooks (configs/_base_/default_runtime.py has it), or call mmrm.bind_augments(model) before a '
                'training loop of your own.'
            )
        return self._model

    @property
    def _generator(self) -> Any:
        return np.random if self.rng is None else self.rng


def bound_augments(model: nn.Module) -> List[BoundAugment]:
    """The augments of a model's data preprocessor that need the model."""
    augment = getattr(getattr(model, 'data_preprocessor', None), 'batch_augments', None)
    return [each for each in getattr(augment, 'augments', []) if isinstance(each, BoundAugment)]


def bind_augments(model: nn.Module) -> None:
    """Bind every augment of a model that needs it. Under DDP give the model itself, ``wrapper.module``."""
    for augment in bound_augments(model):
        augment.bind(model)


def unbind_augments(model: nn.Module) -> None:
    """Undo :func:`bind_augments`."""
    for augment in bound_augments(model):
        augment.unbind()
