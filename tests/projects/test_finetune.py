"""The protocol of the fine-tuning study: what the pilots try, what is chosen, what a run is asked for."""

import argparse
import json
import re
import statistics

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmrm.cli import compare, options
from mmrm.cli.init import NETWORKS, ImageFolder, choose_recipe, config_text
from mmrm.core import RecursiveMix
from projects.finetune import prepare, protocol, run, table
from projects.finetune.protocol import CELLS, METHODS, PILOT, Cell, name


def all_pilots(method, score):
    """Every pilot of a method, in the order in which they come, if a setting's accuracy is ``score(setting)``."""
    found = {}
    while True:
        waiting = [setting for setting in protocol.pilots(method, found) if name(setting) not in found]
        if not waiting:
            return found
        found.update({name(setting): score(setting) for setting in waiting})


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('sign', [1, -1])
def test_every_method_has_six_pilots_and_the_best_is_chosen(method, sign):
    found = all_pilots(method, lambda setting: sign * sum(setting.values()))
    assert len(found) == 6
    assert found[name(protocol.chosen(method, found))] == max(found.values())


def test_a_change_that_makes_rm_worse_is_not_kept():
    def score(setting):
        return -abs(setting['lr'] - 0.015) - (setting['prob'] < 1) + (setting['omega'] > 0.1)

    found = all_pilots('rm', score)
    assert protocol.chosen('rm', found) == dict(lr=0.015, prob=1, omega=0.5)


@pytest.mark.parametrize('method', METHODS)
def test_mmrm_compare_takes_every_setting(method, tmp_path):
    args = compare.build_parser().parse_args
    setting = dict(protocol.START[method], lr=0.015, **({} if method == 'none' else dict(plain_end=1)))
    for cell in (PILOT, CELLS['50x45']):
        parsed = args(['config.py', *protocol.arguments(method, setting, cell)])
        cfg = Config.fromfile(run.HERE / 'configs' / 'pets.py')
        cfg.merge_from_dict(parsed.cfg_options)
        compare.set_method(cfg, parsed.methods[0])
        schedule = [hook.last_epochs for hook in cfg.custom_hooks if hook.type == 'MixScheduleHook']
        assert schedule == ([] if method == 'none' else [2 if cell is PILOT else 5])
        assert cfg.param_scheduler[1].end == cfg.train_cfg.max_epochs == cell.epochs
        assert ('pilot' in cfg.train_dataloader.dataset.ann_file) == (cell is PILOT)


def test_test_runs_need_all_pilots(tmp_path, capsys):
    file = tmp_path / 'results.jsonl'
    rows = [
        dict(cell='pilot', method=method, setting=setting, seed=seed, top1=top1, hours=0.1, fingerprint='x')
        for method in METHODS[:-1]
        for setting, top1 in all_pilots(method, lambda setting: sum(setting.values())).items()
        for seed in PILOT.seeds
    ]
    file.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    with pytest.raises(SystemExit):
        run.main(['test', '--results', str(file)])
    assert 'rm: not all pilots are done' in capsys.readouterr().err


def test_later_runs_have_the_learning_rate_of_none_and_are_marked_in_cells(monkeypatch):
    asked = {}

    def train(cell_name, cell, method, setting, args, later):
        asked[cell_name, method] = (setting, later)

    monkeypatch.setattr(run, 'train', train)
    run.main(['rate', '--cells', '50x45'])
    settings = {method: protocol.chosen(method, run.pilot_means(run.read_results(), method)) for method in METHODS}
    rate = settings['none']['lr']
    for method, setting in settings.items():
        assert asked.pop(('pilot', method)) == (dict(setting, lr=rate), False)
        assert asked.pop(('50x45', method)) == (dict(setting, lr=rate), method != 'none')  # none's are the tests' own
    assert not asked


def written_config(folder, network, method, scratch=False):
    """The text of a config that `mmrm init` writes for 370 images."""
    network = NETWORKS[network]
    recipe = dict(choose_recipe(370, network.adamw, scratch, method), size=112, method=method)
    found = ImageFolder(folder, ('a', 'b'), dict(train={}, val={}), dict(train='train', val='val'), [])
    weights = '' if scratch else str(folder / 'weights.pth')
    return config_text(found, network, weights, recipe, folder / 'photos.py', 'photos')


@pytest.mark.parametrize('method', METHODS)
def test_init_writes_the_schedule_of_the_study_and_what_the_pilots_chose(method, tmp_path):
    setting = protocol.chosen(method, run.pilot_means(run.read_results(), method))
    parsed = compare.build_parser().parse_args(['pets.py', *protocol.arguments(method, setting, CELLS['50x45'])])
    study = Config.fromfile(run.HERE / 'configs' / 'pets.py')
    study.merge_from_dict(parsed.cfg_options)
    compare.set_method(study, parsed.methods[0])
    recipes = [choose_recipe(images, False, False, method) for images in (370, 1850)]
    assert [(recipe['batch'], recipe['epochs']) for recipe in recipes] == 2 * [(protocol.BATCH, 45)]
    written = written_config(tmp_path, 'resnet18', method)
    if method in ('none', 'rm'):  # the command in the config's comment trains the same
        command = next(line for line in written.splitlines() if 'mmrm compare' in line).split('    does')[0].split()
        compared = {each.name: each.options for each in compare.build_parser().parse_args(command[3:]).methods}
        assert compared[method] == parsed.methods[0].options
    written = Config.fromstring(written.replace("_base_ = ['mmpretrain::_base_/default_runtime.py']", ''), '.py')
    study.optim_wrapper.optimizer.lr = protocol.chosen('none', run.pilot_means(run.read_results(), 'none'))['lr']
    assert written.optim_wrapper.optimizer == study.optim_wrapper.optimizer
    crops = [cfg.train_dataloader.dataset.pipeline[1].crop_ratio_range for cfg in (written, study)]
    assert crops[0] == crops[1]
    mixing = [cfg.data_preprocessor.batch_augments for cfg in (written.model, study)]
    if method == 'rm':  # both mean the same: the history stays, too, where a batch is not mixed
        mixing[1].probs = mixing[1].augments.pop('prob')
    assert mixing[0] == mixing[1]
    assert written.model.head.omega == study.model.head.omega
    schedules = [[hook for hook in cfg.custom_hooks if hook.type == 'MixScheduleHook'] for cfg in (written, study)]
    assert schedules[0] == schedules[1]


def test_init_follows_the_decision_and_its_config_has_the_numbers(tmp_path):
    known = run.read_results()
    assert table.decide(known) == options.METHOD
    means = {method: statistics.fmean(table.by_seed(known, protocol.DECIDING, method).values()) for method in METHODS}
    numbers = ', '.join(f'{table.NAMES[method]} {mean:.1f}' for method, mean in means.items())
    tuned, *others = (
        written_config(tmp_path, network, 'none', scratch)
        for network, scratch in (('resnet18', False), ('resnet18', True), ('pvtv2-b1', False))
    )
    later = statistics.fmean(table.by_seed(known, protocol.DECIDING, 'rm', later=True).values())
    numbers += f", each at its own learning rate; RM at none's {later:.1f}"
    assert f'(docs/when_rm_helps.md):\n#   {numbers}\n_base_' in tuned
    assert not any(numbers in text for text in others)  # the study says nothing of these


def test_the_page_has_the_pilots_numbers():
    page = (run.HERE / 'README.md').read_text(encoding='utf-8').split('## Result')[1].split('\nTests: ')[0]
    means = {method: run.pilot_means(run.read_results(), method) for method in METHODS}
    numbers = {f'{mean:.2f}' for found in means.values() for mean in found.values()}
    assert numbers >= set(re.findall(r'\b\d\d\.\d\d\b', page))
    for method, found in means.items():
        best = name(protocol.chosen(method, found))
        assert f'| {table.NAMES[method]} | `{best}` | {found[best]:.2f} |' in page


def test_the_page_has_the_tables_of_the_tests():
    page = (run.HERE / 'README.md').read_text(encoding='utf-8')
    parts = table.page_parts(run.read_results(), 'markdown')
    assert [part for part in parts if part not in page] == []
    (short,) = re.findall(r'\*\*In short\*\*.*', page)
    shown = set(re.findall(r'[-+]\d+\.\d\b', short))
    assert len(shown) > 3 and shown <= {
        f'{float(number):+.1f}' for number in re.findall(r'[-+]\d+\.\d\d', ''.join(parts))
    }


@pytest.mark.parametrize('cell', CELLS)
def test_the_dose_counts_the_batches_that_rm_mixes(cell):
    setting = protocol.chosen('rm', run.pilot_means(run.read_results(), 'rm'))
    images, epochs, _ = CELLS[cell]
    batches, rng, mixed = -(-images * 37 // protocol.BATCH), np.random.RandomState(0), 0
    repeats = -(-8000 // (epochs * batches))
    augment = RecursiveMix(num_classes=2, rng=rng)
    for epoch in repeats * list(range(epochs)):
        augment.reset()
        for _ in range(batches if epoch < epochs - -(-epochs // 10) else 0):
            if rng.random() < setting['prob']:
                mixed += augment.mix(torch.zeros(1, 1, 112, 112), torch.zeros(1, dtype=torch.long))[2].lam > 0
    assert mixed / (repeats * epochs * batches) == pytest.approx(table.dose(cell, setting), abs=0.02)


def test_published_results_belong_to_the_protocol():
    for row in run.read_results():
        cell = PILOT if row['cell'] == 'pilot' else CELLS[row['cell']]
        assert row['seed'] in cell.seeds


def test_a_folder_of_pets_is_prepared_and_a_run_is_trained_and_measured_once(tmp_path, monkeypatch, capfd):
    timm = pytest.importorskip('timm')
    root, rng = tmp_path / 'data' / 'oxford-iiit-pet', np.random.default_rng(0)
    for folder in ('images', 'annotations/trimaps'):
        (root / folder).mkdir(parents=True)
    for part, numbers in (('trainval', (0, 1)), ('test', (2,))):
        pets = [(f'pet{label}_{number}', label + 1) for label in range(prepare.CLASSES) for number in numbers]
        for pet, _ in pets:
            cv2.imwrite(str(root / 'images' / f'{pet}.jpg'), rng.integers(0, 256, (130, 150, 3), np.uint8))
            cv2.imwrite(str(root / 'annotations' / 'trimaps' / f'{pet}.png'), rng.integers(1, 4, (130, 150), np.uint8))
        (root / 'annotations' / f'{part}.txt').write_text(''.join(f'{pet} {label} 1 1\n' for pet, label in pets))
    network = timm.create_model('tf_efficientnet_lite0').state_dict()
    torch.save({f'{n}.{key.rpartition(".")[2]}': network[key] for n, key in enumerate(network)}, tmp_path / 'lite0.pth')
    prepare.main([str(root), str(tmp_path / 'lite0.pth')])
    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(results=tmp_path / 'results.jsonl', work_dir='work', jobs=1, device='cpu')
    for _ in range(2):
        run.train('10x15', Cell(2, 2, (0,)), 'rm', dict(lr=0.01, prob=1, omega=0.1, plain_end=1), args)
    (row,) = run.read_results(args.results)
    assert row['measures']['top1'] == pytest.approx(row['top1'], abs=0.1)
    assert capfd.readouterr().out.count(': seeds [0]') == 1
