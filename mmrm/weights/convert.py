"""The RecursiveMix authors' checkpoints in mmpretrain's layout."""

from pathlib import Path
from typing import Union

from ..utils.errors import UserFileError
from .export import check_classifier, save, source_and_out, verify
from .layouts import describe, split
from .provenance import origin, read_weights


def convert(checkpoint: Union[str, Path], out: Union[str, Path], overwrite: bool = False) -> dict:
    """Write a checkpoint of the authors' code (or of torchvision) as one of mmpretrain, the RoI layer included.

    Theirs are ``{'epoch', 'state_dict', 'optimizer'}`` with ``module.`` before each name: the ImageNet ResNet-50 in
    torchvision's names with ``fc`` and ``fc_roi``, and the CIFAR ResNets, DenseNets and PyramidNets. The network is
    rebuilt from the tensors' shapes and must take every one of them.

    Args:
        checkpoint (str | Path): The file.
        out (str | Path): ``.pth`` or ``.safetensors``.
        overwrite (bool): Whether an existing ``out`` may be replaced. Defaults to False.

    Returns:
        dict: What was written into ``meta``.
    """
    source, out = source_and_out(checkpoint, out, overwrite)
    weights = read_weights(source)
    network = split(weights.tensors)
    if network.layout.startswith('checkpoint with the prefix'):
        raise UserFileError(f"{source} is in mmpretrain's layout already.")
    check_classifier(network, source)
    if verify(network.backbone, str(source)) is None:
        raise UserFileError(
            f'{source} is {describe(network.backbone)}: none of the networks that can be converted '
            '(ResNet, CIFAR ResNet, DenseNet, PyramidNet, PVTv2).'
        )
    state_dict = {f'backbone.{key}': value for key, value in network.backbone.items()}
    state_dict.update({f'head.{key}': value for key, value in network.head.items()})
    meta = dict(
        origin(weights, state_dict),
        content=f'classifier, {describe(network.backbone).removeprefix("a ")}',
        layout='mmpretrain',
        converted_from=network.layout,
    )
    return save(state_dict, out, meta, overwrite)
