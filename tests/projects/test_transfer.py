"""Scenes, the matrix of fine-tunings, and the tables made of their results."""

import json
import statistics
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS

from mmrm.cli import jobs
from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.utils.paths import find_config
from mmrm.weights.export import export_backbone
from projects.cifar10 import run as cifar10
from projects.transfer import camvid, scenes
from projects.transfer import protocol as transfer
from projects.transfer import run as command
from projects.transfer import table as analysis


@pytest.fixture
def pictures():
    """Ten flat images, one per class: a pixel is its class."""
    colours = np.arange(10)[:, None, None, None] * np.array([20, 10, 5]) + 30
    return np.broadcast_to(colours, (10, 32, 32, 3)).astype(np.uint8), np.arange(10)


@pytest.fixture
def data(tmp_path, pictures, monkeypatch):
    """A data folder with few scenes."""
    monkeypatch.setattr(scenes, '_read', lambda cifar10, split, per_class: pictures)
    monkeypatch.setattr(scenes, 'COUNTS', {'train': 16, 'pilot': 2, 'val': 4})
    (tmp_path / 'data' / 'cifar10').mkdir(parents=True)
    scenes.make_scenes(tmp_path / 'data' / 'scenes', tmp_path / 'data' / 'cifar10')
    monkeypatch.setenv('MMRM_DATA', str(tmp_path / 'data'))
    return tmp_path / 'data'


def test_every_object_of_a_scene_is_where_its_box_says_and_mostly_to_be_seen(pictures):
    for seed in range(30):
        picture, items = scenes.compose(*pictures, np.random.RandomState(seed))
        owner = np.full((scenes.SIDE, scenes.SIDE), -1)
        for number, item in enumerate(items):
            owner[item.y : item.y + item.side, item.x : item.x + item.side] = number
        assert 1 <= len(items) <= 6
        for number, item in enumerate(items):
            own = owner == number
            assert scenes.SIZES[0] <= item.side <= scenes.SIZES[1]
            assert own.sum() >= scenes.VISIBLE * item.side**2
            assert (picture[own] == pictures[0][item.label, 0, 0]).all()


def test_labels_and_boxes_of_a_scene_agree(data):
    annotations = json.loads((data / 'scenes/coco/annotations/val.json').read_text())
    boxes = [box for box in annotations['annotations'] if box['image_id'] == 3]
    mask = cv2.imread(str(data / 'scenes/ade/annotations/val/val_00003.png'), cv2.IMREAD_UNCHANGED)
    x, y, side, _ = boxes[-1]['bbox']  # the one in front is whole
    assert (mask[y : y + side, x : x + side] == boxes[-1]['category_id']).all()
    assert set(np.unique(mask)) == {box['category_id'] for box in boxes} | {scenes.BACKGROUND}


def test_the_parts_have_no_image_in_common_with_each_other_or_a_pretraining():
    taken = [set(range(*per_class)) for split, per_class in scenes.PARTS.values() if split == 'train']
    taken += [
        set(range(250 * seed, 250 * (seed + 1))) for seed in range(max(m.seeds for m in cifar10.METHODS.values()))
    ]
    assert sum(map(len, taken)) == len(set().union(*taken))
    assert scenes.PARTS['val'][0] == 'test'


def test_a_seed_whose_images_the_scenes_show_is_refused(tmp_path, data):
    [further] = transfer.pretrainings(['rm'], [5], tmp_path, 'cpu')
    with pytest.raises(UserValueError, match=r'images 1250 to 1499 .* from 1250 on. Allowed .*seeds 0 to 4'):
        transfer.plan([further], ['pspnet-scenes'], ['frozen'], tmp_path, {})
    with pytest.raises(SystemExit):
        command.main(['--seeds', '5', '--tasks', 'pspnet-scenes', '--methods', 'rm', '--dry-run'])
    assert transfer.plan([further], ['atss-bccd'], ['frozen'], tmp_path, {})
    [longer] = transfer.pretrainings(['rm'], [0], tmp_path, 'cpu', {cifar10.PART: [0, 2000]})
    with pytest.raises(UserValueError, match='images 0 to 1999'):
        transfer.plan([longer], ['atss-scenes'], ['frozen'], tmp_path, {})


def test_missing_data_is_named_with_the_way_to_get_it(tmp_path):
    with pytest.raises(UserFileError, match=r'cifar10 \(python tools/get_cifar10.py .*camvid'):
        transfer.check_data(['pspnet-scenes', 'pspnet-camvid'], tmp_path)
    for part in ('ImageSets/Main', 'Annotations'):
        (tmp_path / 'bccd' / part).mkdir(parents=True)
    with pytest.raises(UserFileError, match=r'JPEGImages \(the folder BCCD of https'):
        transfer.check_data(['atss-bccd'], tmp_path)


def test_camvid_is_made_of_the_tutorials_folder_once(tmp_path, monkeypatch):
    """The SegNet tutorial has PNG files of 480 x 360, a map beside each."""
    monkeypatch.setenv('MMRM_DATA', str(tmp_path))
    given = np.zeros((360, 480), np.uint8)
    given[:, 241:] = 9  # a border between two pixels of the small map
    for part in camvid.PARTS:
        (tmp_path / camvid.SOURCE / part).mkdir(parents=True)
        picture = given if part.endswith('annot') else np.stack([given * 20] * 3, axis=-1)
        cv2.imwrite(str(tmp_path / camvid.SOURCE / part / 'frame.png'), picture)
    transfer.check_data(['pspnet-camvid'], tmp_path)
    assert not (tmp_path / 'camvid').exists()  # a check writes nothing
    transfer.prepare_data(['pspnet-camvid'], tmp_path)
    cfg = Config.fromfile(find_config('projects/transfer/configs/pspnet_camvid.py'))
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        (sample,) = DATASETS.build(dict(loader.dataset, pipeline=[], _scope_='mmseg'))
        labels, picture = cv2.imread(sample['seg_map_path'], cv2.IMREAD_UNCHANGED), cv2.imread(sample['img_path'])
        assert labels.shape == picture.shape[:2] == (180, 240)
        assert (labels[:, :120] == 0).all() and (labels[:, 121:] == 9).all()
        assert set(np.unique(labels)) == {0, 9}  # no class in between
        assert abs(picture[90, 180].astype(int) - 20 * 9).max() < 5
    made = tmp_path / 'camvid' / 'train' / 'frame.jpg'
    before = made.stat().st_mtime_ns
    transfer.prepare_data(['pspnet-camvid'], tmp_path)
    assert made.stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize('task', list(transfer.TASKS))
def test_a_frozen_backbone_stays_and_the_rest_learns(task, data):
    cfg = Config.fromfile(find_config(f'projects/transfer/configs/{transfer.TASKS[task].config}.py'))
    cfg.merge_from_dict(transfer.MODES['frozen'])
    model = MODELS.build(dict(cfg.model, _scope_=cfg.default_scope))
    model.train()
    learns = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learns and not any(name.startswith('backbone.') for name in learns)
    assert not any(module.training for module in model.backbone.modules() if isinstance(module, torch.nn.BatchNorm2d))
    assert sum(p.numel() for p in model.backbone.parameters()) == 701466 - 10 * 128 - 10  # without the classifier


def trial(tmp_path, method='rm', seed=0):
    [found] = transfer.pretrainings([method], [seed], tmp_path, 'cpu')
    return found


def write_backbone(tmp_path, method='rm', seed=0):
    """A backbone as if it were pretrained: the shipped one."""
    (tmp_path / 'backbones').mkdir(exist_ok=True)
    export_backbone(transfer.shipped_weights(method), transfer.backbone_file(trial(tmp_path, method, seed)))


def result(**other):
    metrics = dict(bbox_mAP=30.0, bbox_mAP_s=10.0, bbox_mAP_m=20.0, bbox_mAP_l=30.0)
    usual = dict(task='atss-scenes', mode='tuned', method='rm', seed=0, value=30.0, fingerprint='f')
    return {**usual, 'metrics': metrics, **other}


def test_another_seed_under_another_protocol_is_refused_not_mixed(tmp_path, data):
    """Each seed has a fingerprint of its own, so that the settings have to be compared."""
    file = tmp_path / 'results.jsonl'
    transfer.add_result(file, result(seed=1, settings={}))

    def runs(options=None, pretraining=None):
        [longer] = transfer.pretrainings(['rm'], [0], tmp_path, 'cpu', pretraining)
        return transfer.plan([longer], ['atss-scenes'], ['tuned'], tmp_path, options or {})

    same = runs()
    assert transfer.unknown(same, file) == same
    for other in (runs(options={'train_cfg.max_epochs': 2}), runs(pretraining={'train_cfg.max_epochs': 200})):
        assert other[0].fingerprint != same[0].fingerprint
        with pytest.raises(UserFileError, match=r'do not go into one file.*max_epochs'):
            transfer.unknown(other, file)
    lines = [result(seed=seed, settings={}, pretraining={'train_cfg.max_epochs': 100 * seed}) for seed in (1, 2)]
    file.write_text('\n'.join(map(json.dumps, lines)))
    with pytest.raises(UserFileError, match='a file of its own'):
        transfer.read_results(file)
    # Another task would stand in another line, but its pretraining in the same.
    lines = [result(settings={}), result(task='atss-bccd', settings={}, pretraining={'train_cfg.max_epochs': 200})]
    file.write_text('\n'.join(map(json.dumps, lines)))
    with pytest.raises(UserFileError, match=r'has pretraining \{\}, atss-bccd.*max_epochs": 200'):
        transfer.read_results(file)


def test_differences_are_paired_by_the_pretraining_seed():
    values = {'baseline': [10.0, 20.0, 30.0], 'rm': [12.0, 23.0, 31.0], 'cutmix': [11.0, 20.0]}
    results = [
        result(method=method, seed=seed, value=value)
        for method, found in values.items()
        for seed, value in enumerate(found)
    ]
    found = analysis.compare(results, 'atss-scenes', 'tuned', 'rm', 'baseline')
    assert (found.mean, found.n) == (pytest.approx(2.0), 3)
    half = 4.302653 * statistics.stdev([2.0, 3.0, 1.0]) / 3**0.5  # Student's t, two degrees of freedom
    assert found.high - found.mean == pytest.approx(half, abs=1e-5)
    assert analysis.compare(results, 'atss-scenes', 'tuned', 'rm', 'cutmix').n == 2
    [line] = analysis.table_lines(results)
    assert line[2].startswith('20.00 ± 10.00 (3)') and line[-3].startswith('+2.00')
    assert [line[2] for line in analysis.size_lines(results)] == ['small', 'medium', 'large']
    left, right = analysis.draw(results).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ['ATSS, composed scenes, tuned']
    assert left.get_legend_handles_labels()[1] == ['to baseline', 'to CutMix']
    assert not right.containers  # no whole images here
    # Two single runs differ by t (five degrees of freedom) times the root of twice the pooled variance.
    pooled = (2 * 100 + statistics.variance([12, 23, 31]) * 2 + 40.5) / 5
    cells = [analysis.cell(results, 'atss-scenes', 'tuned', method) for method in analysis.METHODS]
    noise = analysis.noise_of(cells)
    assert noise == pytest.approx(2.570582 * (2 * pooled) ** 0.5) and line[-1] == f'{noise:.2f}'
    assert analysis.noise_of([{0: results[0]}]) is None


@pytest.mark.slow
def test_with_shipped_backbones_nothing_is_pretrained(tmp_path, data, monkeypatch):
    started = []
    monkeypatch.setattr(command.jobs, 'run_all', lambda runs, *args, **kwargs: started.append(runs) or {})
    monkeypatch.setattr(command, 'measure_alone', lambda trial: started.append([trial]))
    words = ['--tasks', 'pspnet-scenes', '--modes', 'tuned', '--methods', 'rm', 'baseline', '--seeds', '0']
    command.main([*words, '--shipped', '--work-dir', str(tmp_path / 'run')])
    [runs] = started
    assert [type(run) for run in runs] == [transfer.Transfer] * 2
    assert all(run.backbone.is_file() and run.backbone.name.endswith('-shipped.pth') for run in runs)
    # What is known of the user's own pretraining is not told of the shipped one.
    found = {}
    for shipped in (False, True):
        [run] = transfer.plan(
            [trial(tmp_path / 'run')], ['pspnet-scenes'], ['tuned'], tmp_path / 'run', {}, shipped=shipped
        )
        transfer.backbone_file(run.pretraining).parent.mkdir(exist_ok=True)
        transfer.backbone_file(run.pretraining).write_bytes(run.backbone.read_bytes() if shipped else b'')
        transfer.alone_file(run.pretraining).write_text('{"16": 50.0}')
        found[shipped] = run
    monkeypatch.setattr(type(found[True].pretraining), 'validations', lambda self: {self.epochs: 69.0})
    monkeypatch.setattr(transfer.Transfer, 'validations', lambda self: {self.epochs: 20.0})
    logged = SimpleNamespace(validations={5: {'mIoU': 20.0}}, training={})
    monkeypatch.setattr(transfer, 'read_run', lambda folder: logged)
    own, taken = transfer.result_of(found[False]), transfer.result_of(found[True])
    assert (own['pretrained'], own['alone'], own.get('shipped')) == (69.0, {'16': 50.0}, None)
    assert (taken['pretrained'], taken['alone'], taken['shipped']) == (None, {}, True)


@pytest.mark.slow
def test_a_fine_tuning_waits_for_its_own_backbone_only(tmp_path, data, monkeypatch):
    """Nothing idles: what is pretrained is fine-tuned beside the pretrainings that are left."""
    queued, given = [], {}

    def run_all(runs, jobs, cpu, log, finished, ready):
        queued.extend(runs)
        given.update(ready=ready)
        return {}

    monkeypatch.setattr(command.jobs, 'run_all', run_all)
    words = ['--tasks', 'pspnet-scenes', '--modes', 'tuned', '--methods', 'rm', 'cutmix', '--seeds', '1', '2']
    command.main([*words, '--work-dir', str(tmp_path)])
    begin = [run.name for run in queued if given['ready'](run)]
    assert begin == ['rm seed 1', 'cutmix seed 1', 'rm seed 2', 'cutmix seed 2'] and len(queued) == 8
    write_backbone(tmp_path, 'rm', seed=1)
    assert 'pspnet-scenes tuned rm seed 1' in [run.name for run in queued if given['ready'](run)]
    queued.clear()
    command.main([*words, '--work-dir', str(tmp_path)])
    assert [run.name for run in queued][:2] == ['cutmix seed 1', 'pspnet-scenes tuned rm seed 1']
    # A result of another protocol is found before the first seed is trained.
    queued.clear()
    transfer.add_result(tmp_path / 'results.jsonl', result(task='pspnet-scenes', seed=2, settings={}))
    with pytest.raises(SystemExit):
        command.main([*words, '--work-dir', str(tmp_path)])
    assert queued == []


@pytest.mark.slow
@pytest.mark.parametrize('task', ['atss-scenes', 'pspnet-scenes'])
def test_a_fine_tuning_runs_to_its_result(task, tmp_path, data, monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    write_backbone(tmp_path)
    options = {'train_cfg.max_epochs': 1, 'train_cfg.val_interval': 1, 'train_dataloader.batch_size': 4}
    [run] = transfer.plan([trial(tmp_path)], [task], ['tuned'], tmp_path, options)
    assert jobs.run_all([run]) == {run.name: 'finished'}
    found = transfer.result_of(run)
    assert np.isfinite(found['value']) and found['metrics']
    transfer.add_result(tmp_path / 'results.jsonl', found)
    assert transfer.unknown([run], tmp_path / 'results.jsonl') == []
