"""The measures of the fine-tuning study on a small folder in the layout of the pets, and its tables."""

import json
import re
import shutil

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

import mmrm.models  # noqa: F401
from mmrm.weights.build import build_model
from projects.finetune import batch_norm, measure, protocol, run, table


@pytest.fixture(scope='module')
def pets(tmp_path_factory):
    """Six images of three classes: a white animal on black, its trimap, and a checkpoint with its config."""
    root = tmp_path_factory.mktemp('pets')
    for folder in ('images', 'annotations/trimaps', 'mmrm'):
        (root / folder).mkdir(parents=True)
    for index in range(6):
        trimap = np.full((150, 180 + 10 * index), measure.BACKGROUND, np.uint8)
        trimap[20 : 60 + 10 * index, 40:110] = measure.ANIMAL
        cv2.imwrite(str(root / 'annotations' / 'trimaps' / f'pet_{index}.png'), trimap)
        image = np.repeat(np.uint8(255 * (trimap == measure.ANIMAL))[..., None], 3, 2)
        cv2.imwrite(str(root / 'images' / f'pet_{index}.jpg'), image, [cv2.IMWRITE_JPEG_QUALITY, 100])
    (root / 'mmrm' / 'test.txt').write_text(''.join(f'pet_{index}.jpg {index % 3}\n' for index in range(6)))
    cfg = Config.fromfile(run.HERE / 'configs' / 'pets.py')
    cfg.data_root = cfg.test_dataloader.dataset.data_root = cfg.train_dataloader.dataset.data_root = str(root)
    cfg.train_dataloader.update(batch_size=3)
    cfg.train_dataloader.dataset.ann_file = 'mmrm/test.txt'
    cfg.data_preprocessor.batch_augments = dict(augments=dict(type='RecursiveMix', alpha=0.5))
    cfg.model.backbone = dict(type='ResNet_CIFAR', depth=18, base_channels=8, stem_channels=8)
    cfg.model.head.update(num_classes=3, in_channels=64)
    cfg.data_preprocessor.num_classes = 3
    torch.manual_seed(0)
    checkpoint = dict(state_dict=build_model(cfg).state_dict(), meta=dict(cfg=cfg.pretty_text))
    torch.save(checkpoint, root / 'epoch_1.pth')
    return root, cfg


def test_trimaps_are_cropped_with_their_images(pets):
    images = measure.read_images(pets[1])
    white = images.pixels[:, 0] > 127
    assert images.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert 0.1 < white.float().mean() < 0.9
    assert (white == (images.trimaps == measure.ANIMAL)).float().mean() > 0.97


def test_a_checkpoint_is_measured(pets):
    root, _ = pets
    found = measure.measure(root / 'epoch_1.pth')
    assert set(table.MEASURES) < set(found)
    assert all(0 <= found[name] <= 100 for name in table.MEASURES)
    again = run.measured(root / 'epoch_1.pth', found['top1'])
    assert again == found
    with pytest.raises(run.UserError, match='top-1'):
        run.measured(root / 'epoch_1.pth', found['top1'] + 1)


def test_a_missing_trimap_is_named(pets):
    root, cfg = pets
    file = root / 'annotations' / 'trimaps' / 'pet_5.png'
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(run.UserError, match=r'pet_5\.png'):
        measure.read_images(cfg)
    file.write_bytes(content)


def test_statistics_of_batch_norm_are_those_of_plain_or_mixed_images(pets, tmp_path, monkeypatch, capsys):
    root, seen, fed = pets[0], [], []
    predict, inputs = batch_norm.predict, batch_norm.inputs
    monkeypatch.setattr(
        batch_norm, 'predict', lambda model, pixels: seen.append(model.backbone) or predict(model, pixels)
    )
    monkeypatch.setattr(batch_norm, 'inputs', lambda *args: fed.append(list(inputs(*args))) or fed[-1])
    folder = tmp_path / 'rm' / 'seed0'
    folder.mkdir(parents=True)
    shutil.copy(root / 'epoch_1.pth', folder)
    batch_norm.main([str(folder), '--out', str(tmp_path / 'found.json')])
    ((name, written),) = json.loads((tmp_path / 'found.json').read_text()).items()
    assert name == 'rm/seed0'
    assert written['checkpoint'] == pytest.approx(measure.measure(root / 'epoch_1.pth')['top1'], abs=1e-3)
    assert f'{written["checkpoint"]:.2f}' in capsys.readouterr().out
    checkpoint, *others = seen
    assert not checkpoint.bn1.running_mean.any(), 'the checkpoint was never trained'
    for backbone, batches in zip(others, fed):
        assert not backbone.training
        mean = torch.stack([backbone.conv1(batch).mean((0, 2, 3)) for batch in batches]).mean(0)
        torch.testing.assert_close(backbone.bn1.running_mean, mean, atol=1e-6, rtol=1e-4)
    plain, mixed = fed
    assert torch.equal(plain[0], mixed[0]), 'the first batch has no history'
    assert not torch.equal(plain[1], mixed[1])


def test_the_page_has_the_table_of_the_plain_end(capsys):
    batch_norm.main(['--format', 'markdown'])
    assert capsys.readouterr().out.strip() in (run.HERE / 'README.md').read_text(encoding='utf-8')
    found = json.loads(batch_norm.RESULTS.read_text())
    always, sometimes = (line[-1] for line in batch_norm.lines(found) if line[-1])
    mean, low, high = re.findall(r'[-+][\d.]+', always)
    page = (run.HERE.parents[1] / 'docs' / 'when_rm_helps.md').read_text(encoding='utf-8')
    text = (
        f'cost {mean[1:]} points ({high[1:]} to {low[1:]}), with probability 0.5 none ({sometimes.replace(" (", ", ")}.'
    )
    assert mean[0] == high[0] == '-' and text in page


def test_other_folders_than_those_of_runs_are_refused(tmp_path, capsys):
    for runs in (['rm'], ['a/rm/seed0', 'b/rm/seed0']):
        with pytest.raises(SystemExit):
            batch_norm.main([str(tmp_path / run) for run in runs])
        assert f'{tmp_path / runs[0]}: folders <method>/seed<N>' in capsys.readouterr().err


def test_the_mean_of_an_activation_map_is_the_logit_without_bias():
    features, layer = torch.rand(4, 8, 3, 3), torch.nn.Linear(8, 5)
    weight = layer.weight.detach().abs()
    labels = torch.tensor([0, 4, 2, 1])
    maps = measure.activation_maps(features, weight, labels, 3)
    torch.testing.assert_close(maps.mean((1, 2)), (features.mean((2, 3)) * weight[labels]).sum(1))


def test_localisation_of_known_maps():
    trimap = torch.full((1, 4, 4), measure.BACKGROUND)
    trimap[0, :2, :2], trimap[0, 3] = measure.ANIMAL, 3
    on, off, even = torch.zeros(1, 4, 4), torch.zeros(1, 4, 4), torch.ones(1, 4, 4)
    on[0, 0, 0], off[0, 2, 3] = 1, 1
    border = on.clone()
    border[0, 3, 3] = 5  # does not count
    assert measure.localisation(on, trimap) == measure.localisation(border, trimap) == (100, 100)
    assert measure.localisation(off, trimap) == (0, 0)
    assert measure.localisation(even, trimap)[0] == pytest.approx(100 * 4 / 12)
    assert measure.localisation(torch.cat([on, off]), trimap.repeat(2, 1, 1)) == (50, 50)


def test_calibration_error_of_known_probabilities():
    probabilities = torch.tensor([[0.9, 0.1]] * 10)
    right = torch.tensor([0] * 9 + [1])
    assert measure.calibration_error(probabilities, right) == pytest.approx(0, abs=1e-4)
    assert measure.calibration_error(probabilities, 1 - right) == pytest.approx(80, abs=1e-4)
    both = torch.tensor([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    assert measure.calibration_error(both, torch.zeros(20).long()) == pytest.approx(25, abs=1e-4)


def test_the_smallest_third_has_the_smallest_animals():
    trimaps = torch.full((6, 2, 2), measure.BACKGROUND)
    for index, pixels in enumerate((3, 1, 4, 0, 2, 4)):
        trimaps[index].view(-1)[:pixels] = measure.ANIMAL
    assert measure.smallest_third(trimaps).tolist() == [False, True, False, True, False, False]


def results(gains):
    """A complete deciding cell in which each method gains so much on none, seed by seed with a little noise."""
    return [
        dict(
            cell='50x45',
            method=method,
            setting='lr=1',
            seed=seed,
            top1=70 + gains.get(method, 0) + (seed - 3.5) / 10 * wobble,
        )
        for method, wobble in zip(protocol.METHODS, (1, 1.5, 0.5, 2))
        for seed in protocol.CELLS['50x45'].seeds
    ]


@pytest.mark.parametrize(
    'gains, default',
    [
        ({}, 'none'),
        (dict(rm=-2), 'none'),
        (dict(rm=2), 'rm'),
        (dict(rm=2, cutmix=3), 'cutmix'),
        (dict(rm=0.24), 'none'),
    ],
)
def test_a_method_becomes_the_default_only_if_its_interval_is_above_0(gains, default):
    assert table.decide(results(gains)) == default


def test_decision_needs_all_runs():
    with pytest.raises(run.UserError, match='rm does not have all of its 8 runs'):
        table.decide(results({})[:-1])


def test_the_table_is_printed(tmp_path, capsys):
    file = tmp_path / 'results.jsonl'
    measures = dict.fromkeys([*table.MEASURES, 'even'], 50.0)
    rows = [row for row in run.read_results() if row['cell'] == 'pilot']
    rows += [dict(row, hours=0.1, fingerprint='x', measures=measures) for row in results(dict(rm=2))]
    file.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    table.main(['--results', str(file)])
    out = capsys.readouterr().out
    assert 'The default of `mmrm init`: rm.' in out and '42.9 % in 50x45' in out
