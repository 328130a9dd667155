"""PuzzleMix as a batch augment."""

from typing import Optional, Sequence, Tuple

import numpy as np
import torch
from mmengine.model import BaseModel
from mmpretrain.registry import BATCH_AUGMENTS
from torch import nn

from ...regularisers.labels import mix_labels
from ...regularisers.puzzlemix import graph_cut, import_gco, puzzle_mix, saliency_map
from ...utils.errors import UserError, UserValueError
from .binding import BoundAugment
from .layer_mix import check_positive
from .pixels import check_preprocessor, to_pixels


@BATCH_AUGMENTS.register_module()
class PuzzleMix(BoundAugment):
    r"""`PuzzleMix <https://arxiv.org/abs/2009.06962>`_: mixes the salient blocks of two images.

    Saliency comes from one more forward and backward pass of the unmixed batch, in evaluation mode, by the model that
    is trained; neither gradients nor statistics of norms are touched. A graph cut on the CPU finds the mask, sample by
    sample: it needs the package gco-wrapper, which has wheels for Python 3.11 and earlier. The defaults are those of
    the ImageNet row of the paper.

    Args:
        alpha (float): :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, above 0. Defaults to 1.0.
        beta (float): Weight of seams in the mask, at least 0. Defaults to 1.2.
        gamma (float): Weight of seams in the image, at least 0. Defaults to 0.5.
        eta (float): Weight of the prior, which wants a share of :math:`\lambda`, at least 0. Defaults to 0.2.
        eps (float): Price of moving a block across the image, at least 0; 0 moves no blocks. Defaults to 0.8.
        labels (int): How many shares a block can take, at least 2. Defaults to 3: all, half, nothing.
        blocks (Sequence[int]): Numbers of blocks per side, each at least 2; for a batch one of those is drawn that
            divide both sides of the image. Defaults to (2, 4, 8, 16).
        neighbour_size (int): Size in pixels of the cells that are compared across a seam. Defaults to 2.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> data_preprocessor = dict(batch_augments=dict(augments=dict(type='PuzzleMix')))
    """

    solve = staticmethod(graph_cut)

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.2,
        gamma: float = 0.5,
        eta: float = 0.2,
        eps: float = 0.8,
        labels: int = 3,
        blocks: Sequence[int] = (2, 4, 8, 16),
        neighbour_size: int = 2,
        rng: Optional[np.random.RandomState] = None,
    ):
        self.alpha = check_positive('PuzzleMix', 'alpha', alpha)
        for name, value in dict(beta=beta, gamma=gamma, eta=eta, eps=eps).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float('inf'):
                raise UserValueError(f'PuzzleMix: {name}={value!r} must be a finite number >= 0.')
        blocks = [blocks] if isinstance(blocks, int) else blocks
        if not isinstance(blocks, (list, tuple)) or not blocks or not all(_is_count(each, 2) for each in blocks):
            raise UserValueError(f'PuzzleMix: blocks={blocks!r} must be a list of integers >= 2.')
        for name, value, least in (('labels', labels, 2), ('neighbour_size', neighbour_size, 1)):
            if not _is_count(value, least):
                raise UserValueError(f'PuzzleMix: {name}={value!r} must be an integer >= {least}.')
        self.beta, self.gamma, self.eta, self.eps = beta, gamma, eta, eps
        self.labels, self.blocks, self.neighbour_size = labels, tuple(blocks), neighbour_size
        self.rng = rng

    def bind(self, model: nn.Module) -> None:
        """Get the model; raises if the graph cut is not installed."""
        if self.solve is graph_cut:
            try:
                import_gco()
            except ImportError as error:
                raise UserError(str(error)) from None
        check_preprocessor('PuzzleMix', model)
        super().bind(model)

    def __call__(self, batch_input: torch.Tensor, batch_score: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Mix a batch with a permutation of itself.

        Args:
            batch_input (Tensor): Images, shape ``(N, C, H, W)``.
            batch_score (Tensor): One-hot or soft labels, shape ``(N, num_classes)``.

        Returns:
            tuple[Tensor, Tensor]: The mixed images and the mixed labels, same shapes, new tensors.
        """
        model, rng = self.model, np.random if self.rng is None else self.rng
        usable = [each for each in self.blocks if all(side % each == 0 for side in batch_input.shape[-2:])]
        if not usable:
            raise UserValueError(
                f'PuzzleMix: images of {batch_input.shape[-2]} x {batch_input.shape[-1]} pixels cannot be cut into '
                f'blocks: none of blocks={list(self.blocks)} divides both sides. Set blocks, or resize the images.'
            )
        lam = rng.beta(self.alpha, self.alpha)
        index = torch.randperm(len(batch_input)).to(batch_input.device)
        blocks = usable[rng.randint(len(usable))]
        try:
            saliency = saliency_map(model, batch_input, batch_score, self._forward)
        except ValueError as error:
            raise UserValueError(f'PuzzleMix: {error}') from error
        except RuntimeError as error:
            if 'use_reentrant' not in str(error) and 'Checkpointing is not compatible' not in str(error):
                raise
            raise UserError(
                'PuzzleMix: the gradient of the input does not pass activation checkpointing: set '
                'with_cp=False in the backbone.'
            ) from error
        with torch.no_grad():
            images, share = puzzle_mix(
                batch_input,
                to_pixels(batch_input, model.data_preprocessor),
                saliency,
                index,
                lam,
                blocks,
                self.eps,
                self.solve,
                beta=self.beta,
                gamma=self.gamma,
                eta=self.eta,
                labels=self.labels,
                neighbour_size=self.neighbour_size,
            )
        return images, mix_labels(batch_score, index, share)

    def _forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images, mode='tensor') if isinstance(self.model, BaseModel) else self.model(images)

    def __repr__(self) -> str:
        return (
            f'PuzzleMix(alpha={self.alpha}, beta={self.beta}, gamma={self.gamma}, eta={self.eta}, eps={self.eps}, '
            f'labels={self.labels}, blocks={list(self.blocks)}, neighbour_size={self.neighbour_size})'
        )


def _is_count(value, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
