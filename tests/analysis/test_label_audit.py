"""The label audit: numbers known in closed form, and the published table from its results."""

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from mmrm.core import RecursiveMix
from tools.analysis import label_audit
from tools.analysis.classifiers import seeded

ROOT = Path(__file__).resolve().parents[2]
FULL, LEFT, RIGHT = torch.ones(8, 8), torch.zeros(8, 8), torch.zeros(8, 8)
LEFT[:, :4], RIGHT[:, 4:] = 1, 1


def run(*words):
    """The command; returns its exit code."""
    try:
        label_audit.main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code
    return 0


def half(way):
    """An augment that fills the left half of each image from the other one of the pair."""

    def augment(images, scores):
        mixed, other = images.clone(), images.flip(0)
        mixed[..., :4] = other[..., :4] if way == 'cut' else other[..., ::2]
        return mixed, (scores + scores.flip(0)) / 2

    return augment


@pytest.mark.parametrize(
    'way, masks, expected',
    [
        ('cut', (FULL, FULL), (0, 0)),
        ('resize', (FULL, FULL), (0, 0)),
        ('cut', (RIGHT, RIGHT), (50, 100)),  # own object whole, of the partner's nothing
        ('cut', (LEFT, LEFT), (50, 100)),  # the reverse
        ('resize', (RIGHT, RIGHT), (100 / 6, 0)),  # 32 pixels beside 16: 2/3 and 1/3 instead of 1/2 and 1/2
        ('resize', (LEFT, LEFT), (50, 100)),  # the box covers the own object
    ],
)
def test_cut_and_resized_halves(way, masks, expected):
    found = label_audit.compare(*label_audit.trace_pairs(half(way), torch.stack(masks)))
    assert found == pytest.approx(expected, abs=1e-4)


def test_an_image_that_shows_no_object_is_off_by_all_of_it():
    labels, visible = label_audit.trace_pairs(half('cut'), torch.stack([LEFT, RIGHT]))
    assert label_audit.compare(labels[:1], visible[:1]) == (100, 100)


def test_mixup_of_a_whole_and_a_half_object_has_the_mean_of_its_integral():
    """The label is off by l(1-l)/(1+l) for a share l of the whole object: 3/2 - 2 ln 2 for uniform l."""
    batches = torch.stack([FULL, LEFT]).expand(4000, 2, 8, 8)
    with seeded(0):
        off, missing = label_audit.compare(*label_audit.trace('Mixup', batches))
    assert off == pytest.approx(100 * (1.5 - 2 * math.log(2)), abs=0.3) and missing == 0


def test_objects_below_the_least_size_count_as_not_shown():
    labels, visible = torch.tensor([[0.5, 0.5]]), torch.tensor([[30.0, 10.0]])
    assert label_audit.compare(labels, visible) == (25, 0)
    assert label_audit.compare(labels, visible, least=16) == (50, 100)


def test_rm_label_of_whole_objects_is_exact_at_any_depth():
    with seeded(0):
        labels, visible = label_audit.trace_history(RecursiveMix(), torch.ones(10, 4, 64, 64), first=1)
    assert labels.shape == (36, 10) and torch.allclose(visible.sum(1), torch.tensor(64.0**2))
    off, _ = label_audit.compare(labels, visible)
    assert 0 < off < 0.5  # the rounding of pixels
    assert (labels[-1] > 1e-6).sum() > 5


def test_every_method_runs_on_a_folder_of_masks(tmp_path, capsys):
    for folder in ('images', 'masks'):
        (tmp_path / folder).mkdir()
    for index in range(8):
        mask = np.zeros((40, 50), np.uint8)
        cv2.circle(mask, (25, 20), 8 + index, 255, -1)
        cv2.imwrite(str(tmp_path / 'masks' / f'{index}.png'), mask)
        cv2.imwrite(str(tmp_path / 'images' / f'{index}.jpg'), mask[..., None] // np.array([1, 2, 3], np.uint8))
    words = (tmp_path, '--masks', 'masks', '--values', 255, '--count', 40, '--seeds', 2, '--size', 16)
    assert run(*words, '--figure', tmp_path / 'a.png', '--results', tmp_path / 'a.json') == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ('no mixing', 'ResizeMix', 'RM, α 0.25')) and 'nan' not in printed
    assert (tmp_path / 'a.png').stat().st_size > 1000
    assert run(tmp_path / 'a.json') == 0
    assert capsys.readouterr().out.splitlines() == printed.splitlines()[2:]
    assert run(*words[:3], '--values', 7) == 2 and 'has a pixel of the values [7]' in capsys.readouterr().err


def test_missing_data_names_the_command_that_gets_it(tmp_path, capsys):
    assert run(tmp_path) == 2 and 'OxfordIIITPet' in capsys.readouterr().err


@pytest.mark.parametrize('name, words', [('crops', ''), ('whole', 'no random crop'), ('border', "the trimap's border")])
def test_published_numbers_come_from_the_results(name, words, capsys):
    """All rows of the main table, and those of the others that the page shows."""
    assert run(ROOT / 'docs' / 'label_audit' / f'{name}.json', '--format', 'markdown') == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if '---' not in line]
    numbers = {row.split(' | ')[0][2:]: row.split(' | ')[1:3] for row in rows}
    page = (ROOT / 'docs' / 'label_audit.md').read_text()
    if not words:
        assert len(rows) == 14 and not [row for row in rows if row not in page.splitlines()]
        off, missing = zip(*([cell.split(' ')[0] for cell in numbers[each]] for each in ('CutMix', 'ResizeMix', 'RM')))
        readme = (ROOT / 'README.md').read_text()
        assert '{} % with CutMix, {} % with ResizeMix and {} % with RM'.format(*off) in readme
        assert 'In {}, {} and {} % of the mixed images'.format(*missing) in readme
    else:
        (line,) = [line for line in page.splitlines() if line.startswith(f'| {words}')]
        assert line.split(' | ')[1:] == [
            *(', '.join(numbers[each]) for each in ('CutMix', 'ResizeMix')),
            ', '.join(numbers['RM']) + ' |',
        ]
