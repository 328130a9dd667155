"""PuzzleMix's masks without a graph cut: what one costs, and the cheapest of all for small grids."""

import itertools

import numpy as np


def energy(labels, unary, down, right):
    """What a labelling costs, shape ``(n, n)``."""
    steps = unary.shape[-1] - 1
    share = 1 - labels / steps
    total = sum(unary[row, column, labels[row, column]] for row, column in np.ndindex(labels.shape))
    total += (down * (share[:-1] - share[1:]) ** 2).sum()
    return total + (right * (share[:, :-1] - share[:, 1:]) ** 2).sum()


def solve_exactly(unary, down, right):
    """The cheapest labels of all, by dynamic programming over rows; for grids of up to 4 x 4 blocks."""
    height, width, number = unary.shape
    rows = np.array(list(itertools.product(range(number), repeat=width)))
    share = 1 - rows / (number - 1)
    inner = [
        unary[row, np.arange(width), rows].sum(1) + ((share[:, :-1] - share[:, 1:]) ** 2 * right[row]).sum(1)
        for row in range(height)
    ]
    best, choice = inner[0], []
    for row in range(1, height):
        table = best[:, None] + ((share[:, None] - share) ** 2 * down[row - 1]).sum(-1)
        choice.append(table.argmin(0))
        best = table.min(0) + inner[row]
    last = [int(best.argmin())]
    for pointers in reversed(choice):
        last.insert(0, int(pointers[last[0]]))
    return rows[last]
