r"""The learning-rate curves of the paper's logs: one value per epoch, a linear warm-up, then a cosine or steps.

With epochs e counted from 1, E of them, and w warm-up epochs:

.. math::
    e \le w:&\quad \mathrm{lr}\,\big(s + (1 - s)(e - 1) / w\big), \qquad s = 1 / (w + 1)
        \;\text{ gives }\; \mathrm{lr}\, e / (w + 1) \\
    e > w:&\quad \mathrm{lr}\,\big(m + (1 - m)\,\tfrac12 (1 + \cos(\pi (e - 1) / E))\big)
        \quad\text{or}\quad \mathrm{lr}\,\gamma^{\,\#\{\text{milestones} < e\}}

The cosine keeps the phase of the epoch and drops a little where the warm-up ends; mmengine's ``LinearLR`` followed by
``CosineAnnealingLR`` starts it after the warm-up, which is another curve.
"""

import math
from typing import List, Optional, Sequence

from mmengine.optim import _ParamScheduler
from mmengine.registry import PARAM_SCHEDULERS

from ..utils.errors import UserTypeError, UserValueError, check_numbers

INFINITE = int(1e9)  # mmengine's "no end"


class _WarmupLR(_ParamScheduler):
    """A factor per epoch on the initial learning rate of every parameter group.

    The value depends on the epoch's number alone, so a resumed run has the same curve, and on the initial rate by
    multiplication, so ``auto_scale_lr`` scales the whole curve.
    """

    def __init__(
        self,
        optimizer,
        warmup: int = 5,
        start_factor: Optional[float] = None,
        begin: int = 0,
        by_epoch: bool = True,
        **kwargs,
    ):
        name = type(self).__name__
        if not by_epoch or begin != 0:
            raise UserValueError(
                f'{name}: by_epoch={by_epoch!r}, begin={begin!r}, but by_epoch must be True and begin 0: '
                'it sets the learning rate of every epoch.'
            )
        check_numbers(name, 0, integer=True, warmup=warmup)
        start_factor = 1 / (warmup + 1) if start_factor is None else start_factor
        check_numbers(name, 0, 1, start_factor=start_factor)
        self.warmup = warmup
        self.start_factor = start_factor
        super().__init__(optimizer, 'lr', **kwargs)

    def factor(self, epoch: int) -> float:
        """Factor of ``epoch``, counted from 1, after the warm-up."""
        raise NotImplementedError

    def _get_value(self) -> List[float]:
        epoch = self.last_step + 1
        if epoch <= self.warmup:  # on a line that would reach 1 in epoch warmup + 1
            factor = self.start_factor + (1 - self.start_factor) * (epoch - 1) / self.warmup
        else:
            factor = self.factor(epoch)
        return [base * factor for base in self.base_values]


@PARAM_SCHEDULERS.register_module()
class RMCosineLR(_WarmupLR):
    """Linear warm-up, then a cosine, one value per epoch.

    Args:
        optimizer (OptimWrapper | Optimizer): The Runner gives it.
        warmup (int): Number of warm-up epochs. Defaults to 5.
        start_factor (float, optional): Factor of epoch 1, in [0, 1]. Defaults to None, ``1 / (warmup + 1)``: epoch e of
            the warm-up has ``lr * e / (warmup + 1)``.
        min_factor (float): Factor that the cosine runs to, in [0, 1]. Defaults to 0.
        epochs (int, optional): Number of epochs. Defaults to None, ``end``, which is ``train_cfg.max_epochs`` under the
            Runner.
        begin, end, last_step, by_epoch, verbose: As in mmengine's schedulers; ``begin`` is 0, ``by_epoch`` True.
    """

    def __init__(
        self, optimizer, *args, min_factor: float = 0.0, epochs: Optional[int] = None, end: int = INFINITE, **kwargs
    ):
        epochs = end if epochs is None else epochs
        if epochs == INFINITE:
            raise UserValueError('RMCosineLR: epochs, the number of epochs, or `end` must be given.')
        check_numbers('RMCosineLR', 1, integer=True, epochs=epochs)
        check_numbers('RMCosineLR', 0, 1, min_factor=min_factor)
        self.epochs = epochs
        self.min_factor = min_factor
        super().__init__(optimizer, *args, end=end, **kwargs)

    def factor(self, epoch: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * (epoch - 1) / self.epochs))
        return self.min_factor + (1 - self.min_factor) * cosine


@PARAM_SCHEDULERS.register_module()
class RMStepLR(_WarmupLR):
    """Linear warm-up, then steps, one value per epoch.

    Args:
        optimizer (OptimWrapper | Optimizer): The Runner gives it.
        milestones (Sequence[int]): After how many epochs the rate is multiplied by ``gamma``, ascending.
        gamma (float): Defaults to 0.1.
        warmup, start_factor: As in :class:`RMCosineLR`.
        begin, end, last_step, by_epoch, verbose: As in mmengine's schedulers; ``begin`` is 0, ``by_epoch`` True.
    """

    def __init__(self, optimizer, milestones: Sequence[int], *args, gamma: float = 0.1, **kwargs):
        if not isinstance(milestones, (list, tuple)) or not all(isinstance(m, int) for m in milestones):
            raise UserTypeError(f'RMStepLR: milestones={milestones!r} must be a list of epochs.')
        if list(milestones) != sorted(set(milestones)) or any(m < 1 for m in milestones):
            raise UserValueError(f'RMStepLR: milestones={milestones!r} must ascend from 1 or more.')
        if not 0 < gamma <= 1:
            raise UserValueError(f'RMStepLR: gamma={gamma!r} must be in (0, 1].')
        self.milestones = list(milestones)
        self.gamma = gamma
        super().__init__(optimizer, *args, **kwargs)

    def factor(self, epoch: int) -> float:
        return self.gamma ** sum(epoch > milestone for milestone in self.milestones)
