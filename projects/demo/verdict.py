"""What the demo's one run says, and what it does not: its differences beside those of runs of one method."""

from typing import Dict, List, Optional

from projects.transfer.table import alone_noise, shipped_results, single_run_noise

NAMES = {'atss': 'ATSS', 'pspnet': 'PSPNet'}
# Network -> the task of README.md that is nearest to the demo's, and its data in words.
NEAREST = {'atss': ('atss-bccd', 'on BCCD'), 'pspnet': ('pspnet-camvid', 'on CamVid, the nearest data there')}
OTHERS = {'baseline': 'the baseline', 'cutmix': 'CutMix'}


def measured_noise(results: Optional[List[dict]] = None) -> Dict[str, Optional[float]]:
    """Network -> by how much two single runs of one method differ, 19 times in 20; None if not measured.

    Args:
        results: Of the transfer experiment. Defaults to the shipped ones.
    """
    results = shipped_results() if results is None else results
    return {network: single_run_noise(results, task, 'frozen') for network, (task, _) in NEAREST.items()}


def small_noise(side: int, results: Optional[List[dict]] = None) -> Optional[float]:
    """The same for top-1 on whole images of that side in pixels."""
    return alone_noise(shipped_results() if results is None else results, side)


def verdict(results: Dict[str, dict], noise: Dict[str, Optional[float]]) -> List[str]:
    """A sentence or two for each network: RM's differences, and whether they are within the noise of single runs.

    Args:
        results: By stage name, with ``value`` in percent.
        noise: Of :func:`measured_noise`.
    """
    lines = []
    for network, name in NAMES.items():
        lines.append(f'{name}: {_sentence(network, results, noise.get(network), NEAREST[network][1])}')
    return lines


def small_verdict(results: Dict[str, dict], noise: Optional[float]) -> str:
    """The same for whole images, shrunk; ``results`` has 'small/...', ``noise`` is of :func:`small_noise`."""
    return f'Small images, nothing pasted: {_sentence("small", results, noise, "the control")}'


def _sentence(row: str, results: Dict[str, dict], limit: Optional[float], where: str) -> str:
    parts = []
    for other, words in OTHERS.items():
        # As the table shows them, so that its readers find the same difference.
        mine, its = (round(results[f'{row}/{key}']['value'], 1) for key in ('rm', other))
        found = round(mine - its, 1)
        place = '' if limit is None else ' (within noise)' if abs(found) <= limit else ' (beyond noise)'
        parts.append(f'{found:+.1f} against {words}{place}')
    if limit is None:
        known = 'A single run tells little: projects/transfer compares several.'
    else:
        known = (
            f'Noise: two single runs of one method differ by up to {limit:.1f} points, 19 times in 20 '
            f'(projects/transfer, {where}).'
        )
    return f'RM has {" and ".join(parts)}. {known}'
