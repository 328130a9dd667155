"""The memory of a training step, counted on fake tensors: every allocation happens, none of the computing does."""

from typing import Callable, List, Optional, Tuple

import torch
from mmpretrain.structures import DataSample

from mmrm.models.data_preprocessor import MIX_FIELD, recursive_mixes
from mmrm.models.regularisers import PuzzleMix, StyleCutMix, bound_augments
from mmrm.utils.errors import UserError


def peak_memory(
    model: torch.nn.Module,
    batch: int,
    size: Tuple[int, int],
    classes: int,
    optimizer: Optional[Callable] = None,
    steps: int = 3,
) -> int:
    """Peak bytes of a float32 training step of a classifier, after the steps that fill history and momentum.

    The model's parameters become fake: it is of no further use.

    Args:
        model (nn.Module): mmpretrain's ImageClassifier, on the CPU.
        batch (int): Images.
        size (tuple[int, int]): Their height and width.
        classes (int): Number of classes.
        optimizer (callable, optional): Makes the optimizer from the parameters. Defaults to None: SGD with momentum.
        steps (int): The last one counts. Defaults to 3.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.mem_tracker import MemTracker
    except ImportError as error:
        raise UserError('counting the memory of a step without a GPU needs torch 2.5 or later.') from error
    for augment in bound_augments(model):
        # A graph cut needs real numbers; the tracker cannot follow a network that is not trained.
        if isinstance(augment, (PuzzleMix, StyleCutMix)):
            raise UserError(
                f'the memory of a step with {type(augment).__name__} can be counted on a GPU only: '
                'leave it out (--no-memory).'
            )
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                module._parameters[name] = (
                    parameter if parameter is None else torch.nn.Parameter(mode.from_tensor(parameter.detach()))
                )
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer if buffer is None else mode.from_tensor(buffer)
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4))
        updates = make(model.parameters())
        peak = 0
        for _ in range(steps):
            images, scores = torch.randn(batch, 3, *size), torch.zeros(batch, classes)
            tracker = MemTracker()
            tracker.track_external(model, updates, *_history_tensors(model), images)
            with tracker:
                augment = model.data_preprocessor.batch_augments
                if augment is not None:
                    images, scores = augment(images, scores)
                samples = [DataSample().set_gt_score(score) for score in scores]
                mixes = [recursive_mix.take_mix() for recursive_mix in recursive_mixes(model.data_preprocessor)]
                for sample in samples if mixes else ():
                    sample.set_field(next((mix for mix in mixes if mix), None), MIX_FIELD, field_type='metainfo')
                model.parse_losses(model(images, samples, mode='loss'))[0].backward()
                updates.step()
                updates.zero_grad()
            peak = tracker.get_tracker_snapshot('peak')[torch.device('cpu')]['Total']
    return peak


def _history_tensors(model: torch.nn.Module) -> List[torch.Tensor]:
    kept = [augment._history for augment in recursive_mixes(model.data_preprocessor) if augment._history]
    return [tensor for past in kept for tensor in (past.images, past.scores, past.mix.prediction) if tensor is not None]
