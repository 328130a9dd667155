"""What is logged in addition to the consistency loss."""

from typing import Any, Optional

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ...core import Mix, kl_divergence
from ...models.heads import RMConsistencyHead
from ...models.samples import MIX_FIELD
from ...utils.errors import UserValueError
from ..batched_images import unwrapped


@HOOKS.register_module()
class LogConsistencyHook(Hook):
    r"""Logs ``rm_kl_blind`` and ``rm_entropy`` in every training iteration with ``RMConsistencyHead``.

    ``rm_kl_blind`` is the KL between p^h and its mean over the batch: the best that an answer without a look at
    the region can reach. ``rm_entropy`` is ω λ H(p^h), the difference between the consistency as the
    authors log it, a cross entropy, and the KL. Both are 0 where there is nothing to compare.
    """

    _mix: Optional[Mix] = None
    _handle: Any = None
    _head: Optional[RMConsistencyHead] = None

    def before_train(self, runner) -> None:
        model = unwrapped(runner.model)
        self._head = next((module for module in model.modules() if isinstance(module, RMConsistencyHead)), None)
        if self._head is not None and self._head.multi_label:
            raise UserValueError('LogConsistencyHook compares softmax distributions: RMMultiLabelHead has none.')
        if self._head is not None and self._head.omega > 0:
            self._handle = model.data_preprocessor.register_forward_hook(self._keep)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs: Optional[dict] = None) -> None:
        if self._handle is None:
            return
        mix, self._mix = self._mix, None
        blind, entropy = torch.zeros(()), torch.zeros(())
        if mix is not None and mix.historical_prediction is not None:
            history = mix.historical_prediction[: mix.count].float()
            lams = mix.share if mix.lams is None else mix.lams[: mix.count, None] * (mix.count / len(mix.lams))
            blind, entropy = blind_kl(history), self._head.omega * mean_entropy(history, lams)
        blind, entropy = torch.stack([blind, entropy]).tolist()  # one wait for the GPU
        runner.message_hub.update_scalar('train/rm_kl_blind', blind)
        runner.message_hub.update_scalar('train/rm_entropy', entropy)

    def after_train(self, runner) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _keep(self, preprocessor, arguments, output) -> None:
        samples = output.get('data_samples')
        self._mix = getattr(samples[0], MIX_FIELD, None) if samples else None


def blind_kl(history: torch.Tensor) -> torch.Tensor:
    """The mean KL of predictions, shape ``(N, num_classes)``, to their mean: no constant answer comes closer."""
    mean = history.mean(dim=0, keepdim=True).clamp(min=1e-12)
    return kl_divergence(history, mean.log().expand_as(history)).mean()


def mean_entropy(history: torch.Tensor, lam: torch.Tensor) -> torch.Tensor:
    """The mean entropy of predictions, shape ``(N, num_classes)``, weighed by a share, or one for each, ``(N, 1)``."""
    return (lam * torch.special.entr(history)).sum(dim=1).mean()
