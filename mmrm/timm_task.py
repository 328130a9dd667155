"""RecursiveMix as a training task of timm (``timm.task``), for its training loop.

Example:
    >>> task = RecursiveMixTask(timm.create_model('resnet50'), 'layer4', omega=0.5, device=device)
    >>> task.setup_ema(decay=0.9998)
    >>> task.compile()
    >>> task.prepare_distributed(device_ids=[local_rank])
    >>> optimizer = create_optimizer_v2(task.get_trainable_module(), opt='adamw', lr=1e-3)
    >>> task(images, labels)['loss'].backward()
"""

from typing import Any, Callable, Dict, List, Optional

import torch
from timm.models import group_parameters
from timm.task import TrainingTask
from timm.utils import ModelEmaV3
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .wrapper import RecursiveMixModel


class TrainableModule(RecursiveMixModel):
    """The network with RM, and what timm's optimizers ask of a network."""

    def no_weight_decay(self) -> set:
        names = getattr(self.module, 'no_weight_decay', set)
        return {f'module.{name}' for name in names()}

    def group_matcher(self, coarse: bool = False) -> Any:
        """The network's groups of layers, with ``fc_roi`` in the last one."""
        network: Any = self.module
        layers = group_parameters(network, network.group_matcher(coarse=coarse), reverse=True)
        last = max(layers.values(), default=0)
        return lambda name: layers.get(name.removeprefix('module.'), last)


class RecursiveMixTask(TrainingTask):
    """Classification with RecursiveMix, the consistency included.

    Checkpoints of timm's ``CheckpointSaver`` hold the network alone as ``state_dict``, and ``fc_roi`` as
    ``task_state``. The average of ``setup_ema`` is the network's. Call :meth:`reset_history` at the start of an epoch.

    Args:
        model: The network, of timm or not.
        layer: Name of the submodule whose output is the last feature map, see :class:`RecursiveMixModel`.
        criterion: Takes logits and mixed scores, such as timm's ``BinaryCrossEntropy`` and ``SoftTargetCrossEntropy``.
            None: the cross entropy.
        device, dtype, verbose: As for timm's tasks.
        **options: Further arguments of :class:`RecursiveMixModel`: ``alpha``, ``omega``, ``prob``, ``input_size`` ...
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        criterion: Optional[Callable] = None,
        device: Optional[torch.device] = None,
        dtype: Optional[torch.dtype] = None,
        verbose: bool = True,
        **options: Any,
    ):
        super().__init__(device=device, dtype=dtype, verbose=verbose)
        module = TrainableModule(model, layer, loss=criterion, **options).to(self.device, self.dtype)
        self.trainable_module: Any = module
        self._module = [module]  # out of nn.Module's sight: the same one, without DDP and compile around it

    @property
    def module(self) -> RecursiveMixModel:
        """The network with RM: ``task.module.enabled``, ``task.module.losses``, ``task.module.rm.state_dict()``."""
        return self._module[0]

    def reset_history(self) -> None:
        """Empty the history, as at the start of an epoch: the next batch is not mixed."""
        self.module.reset_history()

    def prepare_distributed(self, device_ids: Optional[list] = None, **ddp_kwargs: Any) -> 'RecursiveMixTask':
        """Wrap the network and ``fc_roi`` in DDP; ``find_unused_parameters`` is not needed."""
        self.trainable_module = DistributedDataParallel(self.trainable_module, device_ids=device_ids, **ddp_kwargs)
        return self

    def compile(self, backend: str = 'inductor', mode: Optional[str] = None, **compile_kwargs: Any) -> Any:  # type: ignore[override]
        """Compile the network and its losses, one graph; the mixing stays eager."""
        options = dict(backend=backend, mode=mode, **compile_kwargs)
        self.trainable_module = torch.compile(self.trainable_module, **options)
        self.eval_model: Any = torch.compile(self.module.module, **options)
        return self.eval_model

    def setup_ema(
        self, decay: float = 0.9999, use_warmup: bool = False, device: Optional[torch.device] = None, **kwargs: Any
    ) -> nn.Module:
        """Create an average of the network; ``fc_roi`` needs none."""
        self.trainable_module_ema = ModelEmaV3(
            self.module.module, decay=decay, use_warmup=use_warmup, device=device, **kwargs
        )
        return self.trainable_module_ema

    def update_ema(self, step: Optional[int] = None) -> None:
        if self.has_ema():
            self.trainable_module_ema.update(self.module.module, step=step)

    def get_clip_parameters(self, exclude_head: bool = False) -> List[nn.Parameter]:
        network = list(self.module.module.parameters())
        return network[:-2] if exclude_head else [*network, *self.module.consistency.parameters()]

    def get_eval_model(self, module: Optional[nn.Module] = None, ema: bool = False) -> Optional[nn.Module]:
        """The network, or its average."""
        model = super().get_eval_model(module, ema)
        return self.module.module if model is self.trainable_module else model

    def get_task_state(self, module: Optional[nn.Module] = None, ema: bool = False) -> Dict[str, Any]:
        return {} if ema else dict(consistency=self.module.consistency.state_dict())

    def load_task_state(
        self,
        state: Optional[Dict[str, Any]],
        strict: bool = True,
        module: Optional[nn.Module] = None,
        ema: bool = False,
    ) -> None:
        if state and not ema:
            self.module.consistency.load_state_dict(state['consistency'], strict=strict)

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Mix a batch and return its loss, the parts of it, and the logits of the mixed images as ``output``."""
        loss = self.trainable_module(input, target)
        parts = {name: value for name, value in self.module.losses.items() if name != 'loss'}
        return dict(parts, loss=loss, output=self.module.logits)
