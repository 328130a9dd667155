"""The label audit: numbers known in closed form, and the published table from its results."""

import json
import math
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmpretrain.registry import BATCH_AUGMENTS
from PIL import Image

from mmrm.core import RecursiveMix
from mmrm.report.intervals import difference
from mmrm.utils.errors import UserValueError
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


def discs(number, steps=None):
    """Masks of discs, shape ``(number, 12, 12)`` or ``(steps, number, 12, 12)``."""
    y, x = np.mgrid[:12, :12]
    rng = np.random.RandomState(0)
    masks = [
        np.hypot(x - rng.randint(12), y - rng.randint(12)) < rng.randint(2, 6) for _ in range(number * (steps or 1))
    ]
    return np.stack(masks).reshape((steps, number, 12, 12) if steps else (number, 12, 12)).astype(int)


def count_by_hand(names, sources):
    """Visible pixels of each source in pictures of source names (0: background), pixel by pixel."""
    found = np.zeros((len(names), sources))
    for row, picture in zip(found, names):
        for name in picture.flat:
            if name:
                row[name - 1] += 1
    return found


def compare_by_hand(labels, visible):
    off = missing = 0
    for label, pixels in zip(labels, visible):
        total = sum(pixels)
        shares = [each / total for each in pixels] if total else [0] * len(pixels)
        off += sum(abs(a - b) for a, b in zip(label, shares)) / 2 + (0 if total else 0.5)
        missing += any(a > 0.05 and b == 0 for a, b in zip(label, pixels))
    return 100 * off / len(labels), 100 * missing / len(labels)


@pytest.mark.parametrize('seed', range(5))
def test_cutmix_agrees_with_a_count_pixel_by_pixel(seed, monkeypatch):
    drawn, masks = {}, discs(6)
    augment = label_audit.METHODS['CutMix'][0]()
    draw_box, permute = augment.cutmix_bbox_and_lam, torch.randperm
    monkeypatch.setattr(augment, 'cutmix_bbox_and_lam', lambda *args: drawn.setdefault('box', draw_box(*args)))
    monkeypatch.setattr(torch, 'randperm', lambda *args: drawn.setdefault('order', permute(*args)))
    with seeded(seed):
        labels, visible = label_audit.trace_pairs(augment, torch.from_numpy(masks).float())
    ((top, bottom, left, right), _), order = drawn['box'], drawn['order'].tolist()
    names, wanted = np.zeros_like(masks), np.zeros((6, 6))
    for index, partner in enumerate(order):
        for y in range(12):
            for x in range(12):
                source = partner if top <= y < bottom and left <= x < right else index
                wanted[index, source] += 1 / 144
                names[index, y, x] = masks[source, y, x] * (source + 1)
    counted = count_by_hand(names, 6)
    assert np.allclose(labels, wanted, atol=1e-6) and (visible.numpy() == counted).all()
    assert label_audit.compare(labels, visible) == pytest.approx(compare_by_hand(wanted, counted), abs=1e-4)


@pytest.mark.parametrize('seed', range(5))
def test_rm_agrees_with_a_count_pixel_by_pixel(seed, monkeypatch):
    boxes, steps, masks = [], 5, discs(3, steps=5)
    augment = RecursiveMix(alpha=1.0)
    mix = augment.mix

    def recorded(*args):
        mixed = mix(*args)
        boxes.append(mixed[2].box)
        return mixed

    monkeypatch.setattr(augment, 'mix', recorded)
    with seeded(seed):
        labels, visible = label_audit.trace_history(augment, torch.from_numpy(masks).float(), first=2)
    wanted, counted = [], []
    names, label = np.zeros((3, 12, 12), int), np.zeros((3, steps))
    for step, (batch, box) in enumerate(zip(masks, boxes)):
        past, names, share = names, batch * (step + 1), box.area / 144
        height, width = box.y2 - box.y1, box.x2 - box.x1
        for y in range(height):
            for x in range(width):
                names[:, box.y1 + y, box.x1 + x] = past[:, y * 12 // height, x * 12 // width]
        label = share * label + (1 - share) * np.eye(steps)[[step] * 3]
        if step >= 2:
            wanted.append(label)
            counted.append(count_by_hand(names, steps))
    wanted, counted = np.concatenate(wanted), np.concatenate(counted)
    assert np.allclose(labels, wanted, atol=1e-6) and (visible.numpy() == counted).all()
    assert label_audit.compare(labels, visible) == pytest.approx(compare_by_hand(wanted, counted), abs=1e-4)


@pytest.fixture
def folder(tmp_path):
    """Eight masks in masks/ and their photographs in images/."""
    for name in ('images', 'masks'):
        (tmp_path / name).mkdir()
    for index in range(8):
        mask = np.zeros((40, 50), np.uint8)
        cv2.circle(mask, (25, 20), 8 + index, 255, -1)
        cv2.imwrite(str(tmp_path / 'masks' / f'{index}.png'), mask)
        suffix = 'jpg' if index % 2 else 'PNG'
        cv2.imwrite(str(tmp_path / 'images' / f'{index}.{suffix}'), mask[..., None] // np.array([1, 2, 3], np.uint8))
        (tmp_path / 'images' / f'{index}.txt').touch()
    return tmp_path


def test_every_method_runs_on_a_folder_of_masks(folder, tmp_path, capsys):
    words = (folder, '--masks', 'masks', '--values', 255, '--count', 40, '--seeds', 2, '--size', 16)
    assert run(*words, '--figure', tmp_path / 'a.png', '--results', tmp_path / 'a.json') == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ('no mixing', 'ResizeMix', 'RM, α 0.25')) and 'nan' not in printed
    assert (tmp_path / 'a.png').stat().st_size > 1000
    assert run(tmp_path / 'a.json') == 0
    assert capsys.readouterr().out.splitlines() == printed.splitlines()[2:]
    assert run(*words[:3], '--values', 7) == 2 and 'has a pixel of the values [7]' in capsys.readouterr().err


def test_bad_photographs_are_named_before_anything_is_measured(folder, monkeypatch, capsys):
    monkeypatch.setattr(label_audit, 'audit', None)
    words = (folder, '--masks', 'masks', '--values', 255, '--figure', folder / 'a.png')
    (folder / 'images' / '1.jpg').unlink()
    assert run(*words) == 2 and '1.jpg cannot be read. --images names' in capsys.readouterr().err
    cv2.imwrite(str(folder / 'images' / '1.jpg'), np.zeros((50, 40, 3), np.uint8))
    assert run(*words) == 2 and '1.jpg has 40 x 50 pixels; its mask' in capsys.readouterr().err


def test_bad_masks_and_counts_are_named(folder, capsys):
    words = (folder, '--masks', 'masks', '--values', 255)
    (folder / 'trainval.txt').write_text('# names\n0 1\n\n1\n \n2\n9\n')
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert f'9.png, which {folder / "trainval.txt"} names, does not exist;' in error and 'OxfordIIITPet' not in error
    (folder / 'trainval.txt').write_text('0')
    assert run(*words) == 2 and 'trainval.txt names 1 masks' in capsys.readouterr().err
    (folder / 'trainval.txt').unlink()
    cv2.imwrite(str(folder / 'masks' / '3.png'), np.zeros((8, 8, 3), np.uint8))
    assert run(*words) == 2
    assert '3.png has 3 channels; a mask has one channel or a palette.\n' in capsys.readouterr().err
    (folder / 'masks' / '3.png').write_bytes((folder / 'masks' / '2.png').read_bytes()[:80])
    assert run(*words) == 2 and '3.png is cut short' in capsys.readouterr().err
    assert run(folder, '--masks', 'images') == 2  # four are .PNG, four .jpg
    assert capsys.readouterr().err.endswith(
        f'{folder / "images"} has 0 masks; --masks names a folder in DATA with at least 4 masks (.png).\n'
    )
    assert run(folder, '--masks', 'none') == 2
    error = capsys.readouterr().err
    assert f'{folder / "none"} does not exist; --masks names' in error and 'OxfordIIITPet' not in error
    alone = [label_audit.Source(None, np.ones((8, 8), bool))] * 4
    with pytest.raises(UserValueError, match='CutMix mixed no image; raise count'):
        label_audit.audit(alone, ['CutMix'], count=1, seeds=40, size=8)


@pytest.mark.parametrize(
    'text', ['[', '[]', '{}', '{"settings": {"least_pixels": 1}, "methods": {"RM": [[1], [1, 2]]}}']
)
def test_files_that_are_not_results_are_refused(text, tmp_path, capsys):
    (tmp_path / 'a.json').write_text(text)
    assert run(tmp_path / 'a.json') == 2 and 'a.json is not a file that --results wrote' in capsys.readouterr().err


def test_results_say_what_they_were_measured_on():
    """The settings of the three files differ as the commands on the page do."""
    usual = dict(count=20000, seeds=5, size=64, least_crop=0.08, least_pixels=16, masks=3680, values=[1])
    for name, other in (('crops', {}), ('whole', dict(least_crop=1.0)), ('border', dict(values=[1, 3]))):
        found = json.loads((ROOT / 'docs' / 'label_audit' / f'{name}.json').read_text())
        assert found['settings'] == {**usual, **other}


def test_missing_data_names_the_command_that_gets_it(tmp_path, capsys):
    assert run(tmp_path) == 2 and 'OxfordIIITPet' in capsys.readouterr().err
    (tmp_path / 'annotations' / 'trimaps').mkdir(parents=True)
    (tmp_path / 'annotations' / 'trainval.txt').write_text('a\nb\nc\nd')
    assert run(tmp_path) == 2
    error = capsys.readouterr().err
    assert 'a.png, which' in error and 'does not exist' in error and 'OxfordIIITPet' in error
    (tmp_path / 'annotations' / 'trainval.txt').write_bytes(b'a\xff\nb\nc\nd')  # not UTF-8
    assert run(tmp_path) == 2 and '.png, which' in capsys.readouterr().err


def test_masks_with_a_palette_give_their_indices(folder):
    sources = label_audit.read_sources(folder, 'images', 'masks', [255], 64)
    for index in range(8):
        path = folder / 'masks' / f'{index}.png'
        mask = Image.fromarray(np.array(Image.open(path)) // 255 * 2)
        mask.putpalette([255, 255, 255, 0, 0, 0, 128, 0, 0])
        assert mask.mode == 'P'
        mask.save(path)
    found = label_audit.read_sources(folder, 'images', 'masks', [2], 64)
    assert all((one.mask == other.mask).all() and one.mask.any() for one, other in zip(sources, found, strict=True))


def test_a_file_of_results_takes_no_option_of_a_measurement(tmp_path, capsys):
    published = ROOT / 'docs' / 'label_audit' / 'crops.json'
    for option in label_audit.MEASURING:
        for words in ((option, 3), (f'{option}=3',)):  # also where it is the default
            assert run(published, *words) == 2 and f'not allowed: {option}.' in capsys.readouterr().err
    assert run('--help') == 0
    options = set(re.findall(r'^ +(--[\w-]+)', capsys.readouterr().out, re.M))
    assert options - set(label_audit.MEASURING) == {'--trust', '--format', '--out', '--overwrite'}
    assert run(tmp_path / 'none.json') == 2 and 'none.json does not exist.' in capsys.readouterr().err


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
        smaller = numbers["CutMix, RM's λ"][0].split(' ')[0]
        cut = f"{off[0]} % with CutMix (with RM's smaller λ: {smaller} %)"
        assert f'{cut}, {off[1]} % with ResizeMix, {off[2]} % with RM.' in readme
        assert '{} % (CutMix), {} % (ResizeMix), {} % (RM) of mixed images'.format(*missing) in readme
    else:
        (line,) = [line for line in page.splitlines() if line.startswith(f'| {words}')]
        assert line.split(' | ')[1:] == [
            *(', '.join(numbers[each]) for each in ('CutMix', 'ResizeMix')),
            ', '.join(numbers['RM']) + ' |',
        ]


def test_sentences_of_the_page_come_from_the_results():
    seeds = {}
    for name in ('crops', 'whole', 'border'):
        found = json.loads((ROOT / 'docs' / 'label_audit' / f'{name}.json').read_text())['methods']
        seeds[name] = {row: [dict(enumerate(values)) for values in zip(*runs)] for row, runs in found.items()}
    crops, whole, border = (
        {row: [np.mean(list(values.values())) for values in columns] for row, columns in each.items()}
        for each in seeds.values()
    )
    rm, cut, puzzle = crops['RM'], crops["CutMix, RM's λ"], 'PuzzleMix, masks as saliency'
    off, specks = (
        difference(*(seeds['crops'][name][column] for name in ('RM', 'RM, history of 1'))) for column in (0, 3)
    )
    page = (ROOT / 'docs' / 'label_audit.md').read_text()
    for words in (
        f"missing in {crops['CutMix'][1]:.1f} % of CutMix's images and {rm[1]:.1f} % of RM's,",
        f'without the random crop in {whole["CutMix"][1]:.1f} and {whole["RM"][1]:.1f} %.',
        f'Mixup ({crops["Mixup"][1]:.1f} %) and PuzzleMix with known masks ({crops[puzzle][1]:.1f} %)',
        f'off by {rm[0]:.1f} %, cutting with the same λ by {cut[0]:.1f} %.',
        f'PuzzleMix with known masks is closer still ({crops[puzzle][0]:.1f} %)',
        f'off by {whole[puzzle][0]:.1f} % without the random crop, more than RM, '
        f'and by {border[puzzle][0]:.1f} % with the border, less than RM:',
        f'{specks.mean:.1f} points ({specks.low:.1f} to {specks.high:.1f}) more images show fewer than 16 pixels',
        f'off by {off.mean:.1f} ({off.low:.1f} to {off.high:.1f}) more.',
    ):
        assert words in page
    assert whole[puzzle][0] > whole['RM'][0] and border[puzzle][0] < border['RM'][0] and crops[puzzle][0] < rm[0]
    for each in (crops, whole, border):
        cutmix, resized, ours = (each[name] for name in ('CutMix', 'ResizeMix', 'RM'))
        assert cutmix[0] > resized[0] > ours[0] and cutmix[1] > resized[1] > ours[1]


def test_every_augment_is_measured_or_named_as_left_out():
    page = (ROOT / 'docs' / 'label_audit.md').read_text()
    (left_out,) = [line for line in page.splitlines() if line.startswith('Left out:')]
    measured = {type(make()).__name__ for make, _ in label_audit.METHODS.values()} | {'PuzzleMix'}
    assert set(BATCH_AUGMENTS.module_dict) - measured == set(re.findall(r'`(\w+)`', left_out))
