"""What the curves of the analyses and studies share: colours for colour-blind readers, axes, a foot."""

import textwrap
from typing import List, Sequence

import numpy as np

# Okabe and Ito's palette, black last.
PALETTE = ('#0072B2', '#E69F00', '#009E73', '#D55E00', '#CC79A7', '#56B4E9', '#F0E442', '#000000')
COLOURS = {'baseline': '#000000', 'Mixup': '#56B4E9', 'CutMix': '#E69F00', 'RM': '#0072B2'}
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '*')
FOOT = 6.5  # size of the letters below a figure


def tidy(axes, x: str = '', y: str = '', title: str = '') -> None:
    """A curve's axes: what they show, no upper and right frame, a light grid."""
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(True, color='#dddddd', linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.set_title(title, fontsize=9)


def curve(axes, x: Sequence[float], runs: Sequence[Sequence[float]], name: str, index: int = 0, **style) -> None:
    """The mean of several runs over x, with a band of one standard deviation, in the colour of the method's name.

    Args:
        axes: Of matplotlib.
        x (Sequence[float]): The places.
        runs (Sequence[Sequence[float]]): The values of each run.
        name (str): The label.
        index (int): Which of the markers and, of a name without its own, which of the colours. Defaults to 0.
        **style: Of the line, instead of the usual one.
    """
    values = np.asarray(runs, dtype=float)
    mean = values.mean(0)
    usual = dict(color=COLOURS.get(name, PALETTE[index % len(PALETTE)]), marker=MARKERS[index % len(MARKERS)])
    [line] = axes.plot(x, mean, **{**usual, 'markersize': 4, 'linewidth': 1.4, 'label': name, **style})
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)


def wrap(lines: Sequence[str], width: float) -> List[str]:
    """Lines broken so that they fit below a figure of so many inches, also in long paths; the rest is indented."""
    length = max(20, int(0.97 * width / (0.602 * FOOT / 72)))  # a letter of a monospaced font is 0.602 of its size
    options = dict(width=length, subsequent_indent='    ', break_on_hyphens=False)
    return [part for line in lines for part in textwrap.wrap(line, **options) or ['']]


def provenance(figure, lines: Sequence[str]) -> None:
    """Write below a figure what made it: checkpoints, data. Without lines, nothing."""
    if lines:
        text = '\n'.join(wrap(lines, figure.get_figwidth()))
        figure.supxlabel(text, fontsize=FOOT, x=0.01, ha='left', color='#444444', family='monospace')
