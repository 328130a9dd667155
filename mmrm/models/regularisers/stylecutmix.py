"""StyleCutMix as a batch augment."""

from pathlib import Path
from typing import Optional, Sequence, Tuple, Union

import numpy as np
import torch
from mmpretrain.registry import BATCH_AUGMENTS
from torch import nn

from ...core import sample_box
from ...regularisers import stylecutmix as arithmetic
from ...regularisers.labels import mix_labels
from ...utils.checkpoints import read_checkpoint
from ...utils.errors import UserError, UserFileError, UserTypeError, UserValueError
from .binding import BoundAugment
from .layer_mix import check_positive, check_share
from .pixels import check_preprocessor, from_pixels, to_pixels

WHERE = 'docs/regularisers.md says where the original one is published and how to make your own.'


@BATCH_AUGMENTS.register_module()
class StyleCutMix(BoundAugment):
    r"""StyleCutMix with automatic gamma (Hong, Choi, Kim: StyleMix, CVPR 2021): CutMix with a mix of styles.

    The style network, AdaIN, is not trained and not part of the model: its files are read when training begins, not for
    testing. It works on images resized to ``size``, RGB; the normalisation of the data preprocessor is undone for it.

    Args:
        encoder (str | Path): File of AdaIN's VGG encoder, ``vgg_normalised.pth``.
        decoder (str | Path): File of AdaIN's decoder, ``decoder.pth``.
        distances (str | Path | Sequence[Sequence[float]]): Style distance of every two classes, a square matrix: a file
            of ``torch.save``, or the numbers. See :func:`mmrm.regularisers.stylecutmix.class_distances`.
        r (float): Weight of the content in the label, in [0, 1]; the style has the rest. Defaults to 0.7.
        delta (float): Styles of classes with a distance far above it are kept, above 0. Defaults to 1.0.
        alpha (float): Size of the box and share of the style come from :math:`\mathrm{Beta}(\alpha, \alpha)`, above 0.
            Defaults to 1.0.
        same_class (float): Added to the distance of a class from itself, at least 0. Defaults to 2.0.
        size (int): To which images are resized for all of it, in pixels, a multiple of 8 and at least 16. Defaults to
            224.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> augment = dict(type='StyleCutMix', encoder='vgg_normalised.pth', decoder='decoder.pth',
        ...                distances='styleDistanceMatrix10.pt')
        >>> data_preprocessor = dict(batch_augments=dict(augments=augment, probs=0.5))
    """

    def __init__(
        self,
        encoder: Union[str, Path],
        decoder: Union[str, Path],
        distances: Union[str, Path, Sequence[Sequence[float]]],
        r: float = 0.7,
        delta: float = 1.0,
        alpha: float = 1.0,
        same_class: float = 2.0,
        size: int = 224,
        rng: Optional[np.random.RandomState] = None,
    ):
        for name, value in dict(encoder=encoder, decoder=decoder).items():
            if not isinstance(value, (str, Path)):
                raise UserTypeError(f'StyleCutMix: {name}={value!r} must be the path of a file.')
        if not isinstance(distances, (str, Path, list, tuple)):
            raise UserTypeError(f'StyleCutMix: distances={distances!r} must be the path of a file or a list of rows.')
        self.r = check_share('StyleCutMix', 'r', r)
        self.delta = check_positive('StyleCutMix', 'delta', delta)
        self.alpha = check_positive('StyleCutMix', 'alpha', alpha)
        if isinstance(same_class, bool) or not isinstance(same_class, (int, float)) or not 0 <= same_class < np.inf:
            raise UserValueError(f'StyleCutMix: same_class={same_class!r} must be a finite number >= 0.')
        step = arithmetic.SHRINKS_BY
        if isinstance(size, bool) or not isinstance(size, int) or size < 2 * step or size % step:
            raise UserValueError(f'StyleCutMix: size={size!r} must be a multiple of {step}, at least {2 * step}.')
        self.encoder, self.decoder, self.distances = encoder, decoder, distances
        self.same_class, self.size, self.rng = float(same_class), size, rng
        self._networks: Optional[Tuple[nn.Module, nn.Module]] = None
        self._distances: Optional[torch.Tensor] = None

    def bind(self, model: nn.Module) -> None:
        """Get the model and read the files; raises if one is missing or does not fit."""
        self.unbind()
        check_preprocessor('StyleCutMix', model)
        networks = tuple(
            self._network(name, build)
            for name, build in (('encoder', arithmetic.build_encoder), ('decoder', arithmetic.build_decoder))
        )
        distances = self._read_distances()
        classes = num_classes(model)
        if classes is not None:
            distances = self._checked(distances, classes)
        super().bind(model)
        self._networks, self._distances = networks, distances

    def unbind(self) -> None:
        """Forget the model and the style network."""
        super().unbind()
        self._networks = self._distances = None

    def __call__(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Mix a batch with a permutation of itself.

        Args:
            batch_input (Tensor): Images, shape ``(N, 3, H, W)``.
            batch_score (Tensor): One-hot or soft labels, shape ``(N, num_classes)``. The most likely class is looked up
                among the distances.

        Returns:
            tuple[Tensor, Tensor]: The mixed images and the mixed labels, same shapes, new tensors.
        """
        preprocessor, rng = self.model.data_preprocessor, np.random if self.rng is None else self.rng
        if batch_input.ndim != 4 or batch_input.shape[1] != 3:
            raise UserValueError(
                'StyleCutMix: the style network needs RGB images, shape (N, 3, H, W), but got '
                f'{tuple(batch_input.shape)}.'
            )
        if batch_score.ndim != 2 or batch_score.shape != (len(batch_input), len(self._distances)):
            self._distances = self._checked(self._distances, batch_score.shape[-1])
        encoder, decoder = (network.to(batch_input.device) for network in self._networks)
        distances = self._distances = self._distances.to(batch_input.device)

        style = rng.beta(self.alpha, self.alpha)
        box = sample_box(rng.beta(self.alpha, self.alpha), self.size, self.size, rng)
        index = torch.randperm(len(batch_input)).to(batch_input.device)
        labels = batch_score.argmax(dim=1)
        gamma = arithmetic.style_gamma(distances, labels, labels[index], self.delta, self.same_class)
        pixels = arithmetic.style_cut_mix(
            to_pixels(batch_input, preprocessor), index, box, style, gamma, encoder, decoder, self.size
        )
        share = arithmetic.label_share(box.area / self.size**2, style, gamma, self.r)
        return from_pixels(pixels, preprocessor).to(batch_input.dtype), mix_labels(batch_score, index, share)

    def _network(self, name: str, build) -> nn.Module:
        path = getattr(self, name)
        weights = self._read(name, path)
        weights = weights.get('state_dict', weights) if isinstance(weights, dict) else weights
        if not isinstance(weights, dict):
            raise UserFileError(f'StyleCutMix: {name} {path} holds a {type(weights).__name__}, not a dict of weights.')
        try:
            return build(weights, f'StyleCutMix: {name} {path}')
        except ValueError as error:
            raise UserFileError(f'{error} {WHERE}') from None

    def _read_distances(self) -> torch.Tensor:
        if isinstance(self.distances, (str, Path)):
            return self._read('distances', self.distances)
        try:
            return torch.tensor(self.distances, dtype=torch.float32)
        except (TypeError, ValueError) as error:
            raise UserValueError(f'StyleCutMix: distances must be rows of numbers of one length: {error}.') from None

    @staticmethod
    def _read(name: str, path: Union[str, Path]):
        try:
            return read_checkpoint(path)
        except UserError as error:
            raise UserFileError(f'StyleCutMix: {name}: {error} {WHERE}') from None

    def _checked(self, distances: torch.Tensor, classes: int) -> torch.Tensor:
        source = f' {self.distances}' if isinstance(self.distances, (str, Path)) else ''
        try:
            return arithmetic.check_distances(distances, classes, f'StyleCutMix: distances{source}')
        except ValueError as error:
            raise UserValueError(str(error)) from None

    def __repr__(self) -> str:
        return (
            f'StyleCutMix(r={self.r}, delta={self.delta}, alpha={self.alpha}, same_class={self.same_class}, '
            f'size={self.size})'
        )


def num_classes(model: nn.Module) -> Optional[int]:
    """The number of classes of a model's labels, if one of its parts says it."""
    for part in (model.data_preprocessor, getattr(model, 'head', None)):
        if isinstance(getattr(part, 'num_classes', None), int):
            return part.num_classes
    return None
