r"""PuzzleMix (Kim, Choo, Song, ICML 2020), with gco-wrapper for the graph cut.

Both images of a pair are cut into ``n x n`` blocks. A mask z says how much of a block of the mixed image comes
from the sample itself, a transport Π moves salient blocks to where they are shown:

.. math::
    \tilde x = z \odot \Pi^\top x + (1 - z) \odot \Pi'^\top x' \qquad
    \tilde y = \bar z\, y + (1 - \bar z)\, y'

The mask minimises the saliency that is lost, plus seams in the mask (``beta``) and in the image (``gamma``), minus the
log-likelihood of the mask under λ (``eta``). This file follows that order: saliency, energies, cut,
transport, mix. The scales of ``beta``, ``gamma`` and ``eta`` are those of the authors' code.
"""

import math
import sys
import warnings
from typing import Any, Callable, Iterator, NamedTuple, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ...core import mix_labels, to_device
from ...utils.errors import UserError, UserValueError, check_numbers
from ...wrapper import evaluation_mode
from .binding import BoundAugment
from .pixels import check_preprocessor, to_pixels

# A power of two, so exact; without it small gradients vanish in float16.
GRADIENT_SCALE = 1024.0
# gco counts in 32-bit integers and refuses terms above 1e7.
LARGEST_TERM = 1_000_000
SEAM_SCALE = 16
TINY = 1e-8


# ---------------------------------------------------------------------------------------------------------- saliency
def saliency_map(
    model: nn.Module, images: torch.Tensor, scores: torch.Tensor, forward: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    r"""√(mean_c (∂ CE / ∂ x)^2), in evaluation mode.

    No parameter gets a gradient, no statistic of a norm moves and no random number is drawn.

    Args:
        model: Whose modules are switched to evaluation meanwhile.
        images: Shape ``(N, C, H, W)``.
        scores: The labels of the unmixed images, one-hot or soft, shape ``(N, num_classes)``.
        forward: Gives the logits, shape ``(N, num_classes)``, of images. It runs under the caller's autocast.

    Returns:
        Shape ``(N, H, W)``, float32, not negative; not finite where the gradient overflowed.
    """
    with evaluation_mode(model), torch.enable_grad():
        images = images.detach().clone().requires_grad_()
        logits = forward(images)
        if not isinstance(logits, torch.Tensor) or logits.shape != scores.shape:
            got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise UserValueError(
                f'PuzzleMix: the saliency needs logits of shape {tuple(scores.shape)}, but the model gives {got}.'
            )
        loss = -(scores.float() * F.log_softmax(logits.float(), dim=1)).sum()
        (gradient,) = torch.autograd.grad(loss * GRADIENT_SCALE, images)
    return gradient.float().div_(GRADIENT_SCALE).square_().mean(dim=1).sqrt_()


def pool_saliency(saliency: torch.Tensor, blocks: int) -> torch.Tensor:
    """The share of a sample's saliency that lies in each block.

    Args:
        saliency: Shape ``(N, H, W)``; ``blocks`` divides both sides.
        blocks: Number of blocks per side, ``n``.

    Returns:
        Shape ``(N, n, n)``, each sample sums to 1. A sample without any saliency, or with an infinite one, gets the
        same share everywhere.
    """
    height, width = saliency.shape[1:]
    pooled = F.avg_pool2d(saliency.float()[:, None], (height // blocks, width // blocks))[:, 0]
    total = pooled.sum(dim=(1, 2), keepdim=True)
    usable = total.isfinite() & (total > 0)
    return torch.where(
        usable, pooled / torch.where(usable, total, torch.ones_like(total)), torch.full_like(pooled, 1 / blocks**2)
    )


# -------------------------------------------------------------------------------------------------------------- mask
class Energies(NamedTuple):
    """What a mask costs. Label ``l`` of ``L`` stands for a share of ``1 - l / (L - 1)`` of the sample itself.

    Args:
        unary: Cost of each label in each block, shape ``(N, n, n, L)``.
        down: Weight of (z_i - z_j)^2 for a block and the one below it, shape ``(N, n - 1, n)``.
        right: The same for a block and the one to its right, shape ``(N, n, n - 1)``.
    """

    unary: torch.Tensor
    down: torch.Tensor
    right: torch.Tensor


def mask_energies(
    saliency: torch.Tensor,
    pixels: torch.Tensor,
    index: torch.Tensor,
    lam: float,
    beta: float = 1.2,
    gamma: float = 0.5,
    eta: float = 0.2,
    labels: int = 3,
    neighbour_size: int = 2,
) -> Energies:
    """The energies of the masks that mix sample ``i`` with sample ``index[i]``.

    The seam in the image, between a block of image p and its neighbour of image q, is the mean difference of the pixels
    on both sides (averaged over cells of ``neighbour_size`` pixels). It is split into unary terms and a weight of
    (z_i - z_j)^2: exact, but for a constant, for masks of 0 and 1, and linear in between.

    Args:
        saliency: Of :func:`pool_saliency`, shape ``(N, n, n)``.
        pixels: The images in 0..1, shape ``(N, C, H, W)``.
        index: A permutation, shape ``(N, )``.
        lam: The share of the sample itself in the prior.
        beta: Weight of seams in the mask.
        gamma: Weight of seams in the image, a factor on top of ``beta``.
        eta: Weight of the prior.
        labels: Number of shares that a block can take, at least 2.
        neighbour_size: In pixels; the greatest common divisor with the block's side is taken.
    """
    blocks = saliency.shape[1]
    own = torch.linspace(1, 0, labels, device=saliency.device)
    beta = beta / (SEAM_SCALE * blocks)
    lost_own, lost_partner = saliency, saliency[index]  # what is not shown is lost
    cost_own, cost_partner = lost_partner.clone(), lost_own.clone()

    weights = []
    for first, second, before, after in _edges(pixels, blocks, neighbour_size):
        seams = {
            (p, q): beta * gamma * (a - b).abs().mean(dim=(1, -1))
            for p, a in (('own', first), ('partner', first[index]))
            for q, b in (('own', second), ('partner', second[index]))
        }
        cost_own[before] += (seams['own', 'own'] + seams['own', 'partner']) / 2
        cost_own[after] += (seams['own', 'own'] + seams['partner', 'own']) / 2
        cost_partner[before] += (seams['partner', 'own'] + seams['partner', 'partner']) / 2
        cost_partner[after] += (seams['own', 'partner'] + seams['partner', 'partner']) / 2
        mixed = seams['own', 'partner'] + seams['partner', 'own'] - seams['own', 'own'] - seams['partner', 'partner']
        # A swap needs weights that are not negative; with gamma <= 1 they are not.
        weights.append((beta + mixed / 2).clamp(min=0))

    prior = [math.comb(labels - 1, label) * lam ** (labels - 1 - label) * (1 - lam) ** label for label in range(labels)]
    prior = -eta / blocks**2 * to_device(torch.tensor(prior), saliency.device).add(TINY).log()
    unary = own * cost_own[..., None] + (1 - own) * cost_partner[..., None] + prior
    return Energies(unary, *weights)


def _edges(pixels: torch.Tensor, blocks: int, neighbour_size: int) -> Iterator[tuple]:
    """For blocks above each other, then beside each other: the cells on both sides, and the blocks' places.

    Cells have shape ``(N, C, n - 1, n, cells)`` and ``(N, C, n, n - 1, cells)``.
    """
    height, width = pixels.shape[-2] // blocks, pixels.shape[-1] // blocks
    size = math.gcd(neighbour_size, height), math.gcd(neighbour_size, width)
    cells = F.avg_pool2d(pixels.float(), size)
    cells = cells.unflatten(3, (blocks, -1)).unflatten(2, (blocks, -1))  # (N, C, n, rows, n, columns)
    rest, last = slice(1, None), slice(None, -1)
    bottom, top = cells[:, :, :, -1], cells[:, :, :, 0]
    yield bottom[:, :, last], top[:, :, rest], (slice(None), last), (slice(None), rest)
    right, left = cells[..., -1].transpose(3, 4), cells[..., 0].transpose(3, 4)
    yield right[:, :, :, last], left[:, :, :, rest], (slice(None), slice(None), last), (slice(None), slice(None), rest)


def import_gco() -> Any:
    """The module of gco-wrapper.

    Raises:
        UserError: With what to install, and for which Pythons there is a wheel.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', FutureWarning)  # it asks for numpy.bool
            import gco
    except ImportError as error:
        raise UserError(
            'PuzzleMix needs the package gco-wrapper for its graph cut: pip install gco-wrapper, or pip install '
            '"mmrm[puzzlemix]". It has wheels for Python 3.11 and earlier; for a later one it must be compiled. This '
            f'is Python {sys.version_info.major}.{sys.version_info.minor} ({error}).'
        ) from None
    return gco


def graph_cut(unary: np.ndarray, down: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The labels of one sample by alpha-beta swaps, a local minimum of its energy.

    Args:
        unary: Shape ``(n, n, L)``.
        down: Shape ``(n - 1, n)``.
        right: Shape ``(n, n - 1)``.

    Returns:
        Integers in 0..L-1, shape ``(n, n)``.
    """
    steps = np.arange(unary.shape[-1])
    # In integers of our own: gco would multiply by 1e5 and overflow where one block has most of the saliency.
    unary = unary - unary.min(axis=-1, keepdims=True)
    down, right = down / steps[-1] ** 2, right / steps[-1] ** 2
    scale = LARGEST_TERM / max(unary.max(), steps[-1] ** 2 * max(down.max(), right.max()), TINY)
    terms = [np.rint(scale * term).astype(np.int32) for term in (unary, down, right)]
    distance = ((steps[:, None] - steps) ** 2).astype(np.int32)
    labels = import_gco().cut_grid_graph(terms[0], distance, terms[1], terms[2], algorithm='swap')
    return labels.reshape(unary.shape[:2])


def cut_masks(energies: Energies, solve: Callable[..., np.ndarray] = graph_cut) -> torch.Tensor:
    """The mask of every sample: the share of the sample itself in each block, shape ``(N, n, n)``.

    Args:
        energies: Of :func:`mask_energies`.
        solve: Gives the labels of one sample, as :func:`graph_cut` does.
    """
    terms = [term.detach().cpu().double().numpy() for term in energies]
    labels = np.stack([solve(*sample) for sample in zip(*terms)])
    device, number = energies.unary.device, energies.unary.shape[-1]
    return 1 - to_device(labels.astype(np.float32), device) / (number - 1)


# --------------------------------------------------------------------------------------------------------- transport
def transport_plan(mask: torch.Tensor, saliency: torch.Tensor, eps: float = 0.8) -> torch.Tensor:
    r"""Which block is moved to each place: salient blocks to places that are shown, not far.

    Moving block i to place j costs ε d_ij^2 - s_i [z_j > 0], with distances in shares of the image.
    In ``n`` rounds every block asks for its cheapest place, a place takes the cheapest of those who ask, and who is
    refused pays 1 more there from then on. A place that is shown always has a block: at first its own one asks for it.

    Args:
        mask: How much of this image is shown in each place, shape ``(N, n, n)``.
        saliency: Of :func:`pool_saliency`, shape ``(N, n, n)``.
        eps: Price of a move, above 0.

    Returns:
        The block for each place, counted along rows, shape ``(N, n * n)``. What comes to places that are not shown has
        no meaning.
    """
    blocks, device = mask.shape[1], mask.device
    places = torch.arange(blocks, device=device, dtype=torch.float32)
    places = torch.stack(torch.meshgrid(places, places, indexing='ij'), -1).reshape(-1, 2)
    distance = (places[:, None] - places).square().sum(-1) / (blocks - 1) ** 2
    shown = (mask > 0).flatten(1)
    cost = eps * distance - saliency.flatten(1)[:, :, None] * shown[:, None, :]  # (N, block, place)
    own = torch.arange(blocks**2, device=device).expand(shown.shape)
    for _ in range(blocks):
        price, asked = cost.min(dim=2)
        best = torch.full_like(price, math.inf).scatter_reduce(1, asked, price, 'amin')
        cheapest = price == best.gather(1, asked)
        # Of two with the same price the first one.
        first = torch.full_like(own, blocks**2).scatter_reduce(1, asked, torch.where(cheapest, own, blocks**2), 'amin')
        refused = first.gather(1, asked) != own
        cost.scatter_add_(2, asked[..., None], refused[..., None].to(cost.dtype))
    return torch.where(first < blocks**2, first, own)


def transport(images: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
    """Put block ``plan[:, j]`` of each image at place ``j``.

    Args:
        images: Shape ``(N, C, H, W)``.
        plan: Of :func:`transport_plan`, shape ``(N, n * n)``; ``n`` divides both sides.
    """
    blocks = math.isqrt(plan.shape[1])
    number, channels, height, width = images.shape
    pieces = images.unflatten(3, (blocks, -1)).unflatten(2, (blocks, -1))  # (N, C, n, rows, n, columns)
    pieces = pieces.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    pieces = pieces[torch.arange(number, device=images.device)[:, None], plan]
    pieces = pieces.unflatten(1, (blocks, blocks)).permute(0, 3, 1, 4, 2, 5)
    return pieces.reshape(number, channels, height, width)


# --------------------------------------------------------------------------------------------------------------- mix
def puzzle_mix(
    images: torch.Tensor,
    pixels: torch.Tensor,
    saliency: torch.Tensor,
    index: torch.Tensor,
    lam: float,
    blocks: int,
    eps: float = 0.8,
    solve: Callable[..., np.ndarray] = graph_cut,
    **energies,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Mix sample ``i`` with sample ``index[i]``.

    Args:
        images: Shape ``(N, C, H, W)``; left as they are.
        pixels: The same images in 0..1.
        saliency: Of :func:`saliency_map`, shape ``(N, H, W)``.
        index: A permutation, shape ``(N, )``.
        lam: The share of the sample itself in the prior, in [0, 1].
        blocks: Number of blocks per side; it divides H and W.
        eps: Price of a move; 0 moves nothing.
        solve: See :func:`cut_masks`.
        **energies: ``beta``, ``gamma``, ``eta``, ``labels`` and ``neighbour_size`` of :func:`mask_energies`.

    Returns:
        The mixed images, and the share of each sample itself in its mixed image, shape ``(N, )``, float32: the mean of
        its mask.
    """
    pooled = pool_saliency(saliency, blocks)
    mask = cut_masks(mask_energies(pooled, pixels, index, lam, **energies), solve)
    own, partner = images, images[index]
    if eps:
        own = transport(own, transport_plan(mask, pooled, eps))
        partner = transport(partner, transport_plan(1 - mask, pooled[index], eps))
    shown = mask.repeat_interleave(images.shape[2] // blocks, 1).repeat_interleave(images.shape[3] // blocks, 2)
    shown = shown[:, None].to(images.dtype)
    return shown * own + (1 - shown) * partner, mask.mean(dim=(1, 2))


# ----------------------------------------------------------------------------------------------------- batch augment
class PuzzleMix(BoundAugment):
    r"""`PuzzleMix <https://arxiv.org/abs/2009.06962>`_: mixes the salient blocks of two images.

    Saliency comes from one more forward and backward pass of the unmixed batch, in evaluation mode, by the model that
    is trained; neither gradients nor statistics of norms are touched. A graph cut on the CPU finds the mask, sample by
    sample: it needs the package gco-wrapper, which has wheels for Python 3.11 and earlier. The defaults are those of
    the ImageNet row of the paper.

    Args:
        alpha (float): λ ~ Beta(α, α), above 0. Defaults to 1.0.
        beta (float): Weight of seams in the mask, at least 0. Defaults to 1.2.
        gamma (float): Weight of seams in the image, at least 0. Defaults to 0.5.
        eta (float): Weight of the prior, a share of λ, at least 0. Defaults to 0.2.
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
        rng: Any = None,
    ):
        check_numbers('PuzzleMix', 0, above=True, alpha=alpha)
        check_numbers('PuzzleMix', 0, beta=beta, gamma=gamma, eta=eta, eps=eps)
        check_numbers('PuzzleMix', 2, integer=True, labels=labels)
        check_numbers('PuzzleMix', 1, integer=True, neighbour_size=neighbour_size)
        blocks = [blocks] if isinstance(blocks, int) else blocks
        if not isinstance(blocks, (list, tuple)) or not blocks:
            raise UserValueError(f'PuzzleMix: blocks={blocks!r} must be a list of integers >= 2.')
        for each in blocks:
            check_numbers('PuzzleMix: each of', 2, integer=True, blocks=each)
        self.alpha, self.eps, self.blocks, self.rng = alpha, eps, tuple(blocks), rng
        self.energies = dict(beta=beta, gamma=gamma, eta=eta, labels=labels, neighbour_size=neighbour_size)

    def bind(self, model: nn.Module) -> None:
        """Get the model; raises if the graph cut is not installed."""
        if self.solve is graph_cut:
            import_gco()
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
        model, rng = self.model, self._generator
        usable = [each for each in self.blocks if all(side % each == 0 for side in batch_input.shape[-2:])]
        if not usable:
            raise UserValueError(
                f'PuzzleMix: images of {batch_input.shape[-2]} x {batch_input.shape[-1]} pixels cannot be cut into '
                f'blocks: none of blocks={list(self.blocks)} divides both sides. Set blocks, or resize the images.'
            )
        lam = rng.beta(self.alpha, self.alpha)
        index = to_device(torch.randperm(len(batch_input)), batch_input.device)
        blocks = usable[rng.randint(len(usable))]
        try:
            saliency = saliency_map(model, batch_input, batch_score, self._forward)
        except RuntimeError as error:
            if 'use_reentrant' not in str(error) and 'Checkpointing is not compatible' not in str(error):
                raise
            raise UserError(
                'PuzzleMix: the gradient of the input does not pass activation checkpointing: set '
                'with_cp=False in the backbone.'
            ) from error
        with torch.no_grad():
            pixels = to_pixels(batch_input, model.data_preprocessor)
            images, share = puzzle_mix(
                batch_input, pixels, saliency, index, lam, blocks, self.eps, self.solve, **self.energies
            )
        return images, mix_labels(batch_score, batch_score[index], 1 - share)

    def _forward(self, images: torch.Tensor) -> torch.Tensor:
        from mmengine.model import BaseModel  # the functions above work without OpenMMLab

        return self.model(images, mode='tensor') if isinstance(self.model, BaseModel) else self.model(images)
