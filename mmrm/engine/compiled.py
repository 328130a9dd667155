"""A compiled training step that stays compiled."""

from typing import Optional, Union

import torch
from mmpretrain.models import ImageClassifier

from ..models.samples import MIX_FIELD, as_batch
from ..utils.errors import UserValueError
from .batched_images import unwrapped


def compile_losses(model: torch.nn.Module, options: Optional[Union[bool, dict]]) -> bool:
    """Compile what a classifier does between its mixed images and its losses, in place.

    mmengine compiles ``train_step`` whole: the drawing of boxes, the objects per image, the update. Its graph breaks at
    each of them and is compiled again for every box. Here the preprocessor and the update stay eager, labels and mix go
    in as tensors, and the network, its head and its losses are one graph.

    Args:
        model: mmpretrain's ``ImageClassifier``, under DDP or not. Any other model is left alone, and so is
            one with a ``loss`` of its own.
        options: ``compile`` of the config: True, or the arguments of ``torch.compile``.

    Returns:
        Whether it was compiled.
    """
    classifier = unwrapped(model)
    if not isinstance(classifier, ImageClassifier) or not options:
        return False
    if type(classifier).loss is not ImageClassifier.loss:
        return False  # a loss of the user's own: mmengine compiles the step as it is

    def losses(inputs: torch.Tensor, samples) -> dict:
        return classifier.head.loss(classifier.extract_feat(inputs), samples)

    if not isinstance(options, (bool, dict)):
        raise UserValueError(f"compile={options!r} must be True, False or a dict of torch.compile's arguments.")
    try:
        compiled = torch.compile(losses, **({} if options is True else options))
    except (TypeError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserValueError(f'compile={options!r}: {reason}') from error

    def loss(inputs: torch.Tensor, data_samples) -> dict:
        samples = as_batch(data_samples)
        found = compiled(inputs, samples)
        mix = samples[0].get(MIX_FIELD)
        if mix is not None and mix.prediction is not None:  # CUDA graphs overwrite the outputs of the call before
            mix.prediction = mix.prediction.clone()
        return found

    classifier.loss = loss
    return True
