"""Manifold Mixup: Mixup of the features at a layer that is drawn for every batch.

`Manifold Mixup: Better Representations by Interpolating Hidden States <https://arxiv.org/abs/1806.05236>`_
"""

from typing import Any, Sequence, Union

import torch

from ...utils.errors import check_numbers
from .layer_mix import LayerMix


def manifold_mixup(features: torch.Tensor, index: torch.Tensor, lam: Union[float, torch.Tensor]) -> torch.Tensor:
    r"""Return λ h_i + (1 - λ) h_index(i).

    Args:
        features: Output of the layer, shape ``(N, ...)``.
        index: Partner of each sample, shape ``(N, )``.
        lam: The share that a sample keeps of its own, a number or a tensor without dimensions.
    """
    return lam * features + (1 - lam) * features[index]


class ManifoldMixup(LayerMix):
    r"""Manifold Mixup at a layer drawn evenly for each batch. At the layer ``'input'`` it is Mixup.

    One permutation and one λ ~ Beta(α, α) serve the features and the labels.

    Args:
        alpha (float): Above 0. Defaults to 1.0.
        layers (Sequence[str]): ``'input'`` and modules of the backbone. Defaults to the input and the first two stages
            of a ResNet.
        rng (np.random.RandomState, optional): Defaults to None, NumPy's global generator.

    Example:
        >>> data_preprocessor = dict(batch_augments=dict(augments=dict(type='ManifoldMixup', alpha=1.0)))
    """

    mix_features = staticmethod(manifold_mixup)

    def __init__(self, alpha: float = 1.0, layers: Sequence[str] = ('input', 'layer1', 'layer2'), rng: Any = None):
        super().__init__(layers, rng)
        check_numbers(self._name, 0, above=True, alpha=alpha)
        self.alpha = alpha

    def draw(self, count: int, size: Sequence[int]):
        lam = self._generator.beta(self.alpha, self.alpha)
        index = torch.randperm(count)
        # A tensor: a Python number would recompile the graph for each value.
        return dict(index=index, lam=torch.tensor(lam, dtype=torch.float64)), index, lam
