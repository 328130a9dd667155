"""Tables filled from hand-made work dirs and from a real run that was stopped and resumed."""

import csv
import io
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from run_logs import epochs, settings, write_run, write_session

from mmrm.report import tables
from mmrm.report.published import TABLES
from mmrm.report.runs import find_runs, read_run
from mmrm.utils.errors import UserFileError, UserValueError

TOOL = Path(__file__).parents[2] / 'tools' / 'tables.py'
R18 = 'resnet18_2xb64_cifar100'


def row_of(table, root, *labels, given=None):
    return next(each for each in tables.fill(TABLES[table], root, given) if each.row.labels == labels)


# ----------------------------------------------------------------------------------------------------------------- runs
def test_a_resumed_session_replaces_what_it_repeats(tmp_path):
    config = settings(length=5)
    write_session(tmp_path, '20260101_000000', epochs(1, [10.0, 20.0, 30.0]), config)
    write_session(tmp_path, '20260102_000000', epochs(3, [31.0, 40.0, 50.0]), config)
    run = read_run(tmp_path)
    assert [run.validations[epoch]['accuracy/top1'] for epoch in range(1, 6)] == [10.0, 20.0, 31.0, 40.0, 50.0]
    assert run.finished and run.state == 'finished'


def test_a_run_started_anew_forgets_the_epochs_of_the_old_one(tmp_path):
    write_session(tmp_path, '20260101_000000', epochs(1, [90.0, 91.0, 92.0]), settings())
    write_session(tmp_path, '20260102_000000', epochs(1, [10.0]), settings())
    run = read_run(tmp_path)
    assert list(run.validations) == [1] and run.state == '1 of 3 epochs'


def test_a_session_that_trained_but_did_not_validate_yet_voids_later_epochs(tmp_path):
    write_session(tmp_path, '20260101_000000', epochs(1, [10.0, 20.0, 30.0]), settings())
    write_session(tmp_path, '20260102_000000', epochs(2, [0.0])[:1], settings())
    run = read_run(tmp_path)
    assert list(run.validations) == [1] and run.trained == 1


def test_the_line_of_a_killed_process_and_validations_without_training_are_skipped(tmp_path):
    records = [{'accuracy/top1': 99.0, 'step': 0}, *epochs(1, [10.0, 20.0])]
    write_session(tmp_path, '20260101_000000', records, settings(), broken='{"accuracy/top1": 9')
    assert list(read_run(tmp_path).validations) == [1, 2]


def test_an_interrupted_iteration_based_run_counts_iterations(tmp_path):
    config = settings(length=80, by_epoch=False)

    def session(first, last):
        train = [dict(lr=0.1, time=1.0, iter=step, step=step) for step in range(first, last + 1, 5)]
        return train + [{'mIoU': float(step), 'step': step} for step in range(first // 20 * 20 + 20, last + 1, 20)]

    write_session(tmp_path, '20260101_000000', session(5, 50), config)
    write_session(tmp_path, '20260102_000000', session(45, 60), config)
    run = read_run(tmp_path)
    assert list(run.validations) == [20, 40, 60] and run.state == '60 of 80 iterations'


def test_best_is_the_first_of_equals_and_ignores_what_is_not_a_number(tmp_path):
    write_run(tmp_path, [10.0, 30.0, float('nan'), 30.0, 20.0])
    run = read_run(tmp_path)
    assert (run.best('accuracy/top1'), run.last('accuracy/top1')) == (2, 5)
    assert run.best('no/such') is None


def test_memory_and_hours_come_from_the_training_records(tmp_path):
    write_run(tmp_path, [10.0, 20.0], memory=5887)
    run = read_run(tmp_path)
    assert run.training['memory'] == 5887
    assert run.training['hours'] == pytest.approx(20 * 0.5 / 3600)  # 20 iterations of half a second


def test_runs_are_found_through_links_and_not_inside_runs(tmp_path):
    write_run(tmp_path / 'disk' / 'run', [1.0])
    root = tmp_path / 'root'
    root.mkdir()
    (root / 'rm').symlink_to(tmp_path / 'disk')
    (tmp_path / 'disk' / 'loop').symlink_to(tmp_path / 'disk')
    assert find_runs(root) == [root / 'rm' / 'run']


def test_a_real_run_that_was_stopped_and_resumed(tmp_path):
    import mmengine
    from mmengine.config import Config
    from mmengine.registry import init_default_scope
    from mmengine.runner import Runner
    from tiny_run import write_run as write_tiny

    measured = {}

    class Keep(mmengine.hooks.Hook):
        def after_val_epoch(self, runner, metrics=None):
            measured[runner.epoch] = metrics['accuracy/top1']

    init_default_scope('mmpretrain')
    for length, resume in ((2, False), (3, True)):
        cfg = Config.fromfile(write_tiny(tmp_path, epochs=length, images=4))
        cfg.update(work_dir=str(tmp_path / 'work'), resume=resume, experiment_name=f'tables{length}{tmp_path.name}')
        runner = Runner.from_cfg(cfg)
        runner._timestamp = f'2026010{length}_000000'
        runner.register_hook(Keep())
        runner.train()
    run = read_run(tmp_path / 'work')
    assert {epoch: metrics['accuracy/top1'] for epoch, metrics in run.validations.items()} == measured
    assert list(measured) == [1, 2, 3] and run.finished and run.seed == 0
    assert run.checkpoint(3, 'last').name == 'epoch_3.pth'
    assert run.checkpoint(run.best('accuracy/top1'), 'best').name.startswith('best_accuracy_top1_epoch_')


# -------------------------------------------------------------------------------------------------------------- filling
def test_seeds_give_mean_and_sample_deviation_of_best_and_last(tmp_path):
    for seed, best in enumerate((81.0, 82.0, 83.0)):
        write_run(tmp_path / 'rm' / R18 / f'seed{seed}', [50.0, best, best - 1], seed=seed)
    filled = row_of('cifar100', tmp_path, 'ResNet-18', '+ RM')
    cell = filled.cells[0]
    assert cell.best == (pytest.approx(18.0), pytest.approx(1.0), 3)
    assert cell.last == (pytest.approx(19.0), pytest.approx(1.0), 3)
    assert cell.difference == pytest.approx(18.0 - 18.64)
    assert filled.state == '3 runs finished, other settings' and not filled.commands
    assert filled.config == f'configs/rm/{R18}.py'


def test_unfinished_runs_are_told_and_do_not_count_beside_finished_ones(tmp_path):
    write_run(tmp_path / 'rm' / R18 / 'seed0', [50.0, 80.0], seed=0)
    write_run(tmp_path / 'rm' / R18 / 'seed1', [10.0], length=2, seed=1)
    filled = row_of('cifar100', tmp_path, 'ResNet-18', '+ RM')
    assert filled.cells[0].best == (20.0, 0.0, 1)
    assert filled.state == '1 finished, 1 of 2 epochs, other settings'
    folder = tmp_path / 'rm' / R18 / 'seed1'
    assert filled.commands == [
        f'tools/dist_train.sh configs/rm/{R18}.py 2 --work-dir {folder} --resume',
        f'tools/dist_train.sh configs/rm/{R18}.py 2 --seed 2',
    ]


def test_an_unfinished_run_alone_is_shown_and_marked(tmp_path):
    write_run(tmp_path / 'rm' / R18, [10.0, 12.0], length=200)
    filled = row_of('cifar100', tmp_path, 'ResNet-18', '+ RM')
    assert filled.state.startswith('2 of 200 epochs') and filled.cells[0].best.mean == 88.0


def test_the_same_seed_in_two_folders_counts_once(tmp_path):
    write_run(tmp_path / 'rm' / R18, [80.0], seed=0)
    write_run(tmp_path / 'rm' / R18 / 'seed0', [81.0], seed=0)
    filled = row_of('cifar100', tmp_path, 'ResNet-18', '+ RM')
    assert filled.cells[0].best.count == 1 and 'left out: the same seed' in filled.notes[0]


def test_a_missing_cell_has_the_command_that_fills_it(tmp_path):
    assert row_of('imagenet', tmp_path, 'ResNet-50', '+ RM').commands == [
        'tools/dist_train.sh configs/rm/resnet50_8xb64_in1k.py 8'
    ]
    assert row_of('cifar10', tmp_path, '+ RM').commands == [
        'for seed in 0 1 2; do python tools/train.py configs/rm/pyramidnet200_1xb64_cifar10.py --seed $seed; done'
    ]
    assert row_of('coco-dense', tmp_path, 'ATSS', 'ResNet-50', '+ RM').commands == [
        'tools/dist_train.sh configs/rm/atss_r50_fpn_1x_coco.py 8'
    ]
    assert row_of('components', tmp_path, '+ RS').commands == [
        'python tools/analysis/sweep.py components --setting cifar100-pyramidnet164 --values rs'
    ]
    assert row_of('fc', tmp_path, 'Shared', 'ImageNet').commands == [
        'python tools/analysis/sweep.py fc --setting in1k-resnet50 --values shared --seeds 0'
    ]


def test_a_command_that_fills_a_cell_is_one_that_the_tools_take(tmp_path):
    from mmrm.cli.train import parser

    for name, table in TABLES.items():
        for filled in tables.fill(table, tmp_path):
            for command in filled.commands:
                words = re.sub(r'for seed in [\d ]+; do (.*) --seed \$seed; done', r'\1 --seed 0', command).split()
                if words[0] == 'tools/dist_train.sh':
                    parser().parse_args([words[1], '--gpus', *words[2:]])
                elif words[1] == 'tools/train.py':
                    parser().parse_args(words[2:])
                else:
                    assert words[1] in ('tools/analysis/sweep.py', 'tools/analysis/efficiency.py'), (name, command)


def test_a_table_tells_which_recipe_a_published_number_had(tmp_path):
    filled = tables.fill(TABLES['imagenet-r50'], tmp_path)
    for form in ('terminal', 'markdown', 'latex', 'csv'):
        text = tables.render('imagenet-r50', filled, form)
        line = next(line for line in text.splitlines() if '+ PuzzleMix' in line)
        assert 'steps' in line and ('batch 256, lr 0.1' in text or form == 'csv'), form
    assert 'Published with' not in tables.render('cifar100', tables.fill(TABLES['cifar100'], tmp_path), 'terminal')


def test_a_run_of_the_peers_recipe_fills_the_row_too(tmp_path):
    write_run(tmp_path / 'cutmix' / 'resnet50_4xb64-steps_in1k', [78.6])
    filled = row_of('imagenet-r50', tmp_path, '+ CutMix')
    assert filled.config == 'configs/cutmix/resnet50_4xb64-steps_in1k.py'
    assert filled.cells[0].best.mean == pytest.approx(21.4)


def test_detection_is_in_percent_and_reports_the_last_epoch(tmp_path):
    folder = tmp_path / 'rm' / 'atss_r50_fpn_1x_coco'
    records = epochs(1, [0.3, 0.42, 0.415], key='coco/bbox_mAP')
    write_session(folder, '20260101_000000', records, settings())
    (folder / 'epoch_3.pth').touch()
    filled = row_of('coco-dense', tmp_path, 'ATSS', 'ResNet-50', '+ RM')
    ap, ap50 = filled.cells[:2]
    assert (ap.best.mean, ap.last.mean) == (pytest.approx(42.0), pytest.approx(41.5))
    assert ap.difference == pytest.approx(0.0) and ap50.last is None
    assert filled.checkpoints == [folder / 'epoch_3.pth']


def test_further_metrics_are_those_of_the_best_epoch(tmp_path):
    folder = tmp_path / 'rm' / 'resnet50_8xb64_in1k'
    records = epochs(1, [79.2, 79.1])
    for record, top5 in zip(records[1::2], (94.0, 95.0)):
        record['accuracy/top5'] = top5
    write_session(folder, '20260101_000000', records, settings(length=2))
    top5 = row_of('imagenet', tmp_path, 'ResNet-50', '+ RM').cells[1]
    assert (top5.best.mean, top5.last.mean) == (pytest.approx(6.0), pytest.approx(5.0))


def test_the_checkpoint_behind_the_number_is_named(tmp_path):
    folder = write_run(tmp_path / 'rm' / R18, [50.0, 80.0, 70.0])
    (folder / 'best_accuracy_top1_epoch_2.pth').touch()
    (folder / 'epoch_3.pth').touch()
    assert row_of('cifar100', tmp_path, 'ResNet-18', '+ RM').checkpoints == [folder / 'best_accuracy_top1_epoch_2.pth']


def test_other_settings_than_the_config_are_told(tmp_path):
    write_run(tmp_path / 'rm' / R18, [50.0, 80.0])
    filled = row_of('cifar100', tmp_path, 'ResNet-18', '+ RM')
    assert len(filled.notes) == 1 and 'other settings than the config' in filled.notes[0]
    assert filled.state == 'finished, other settings'


def test_a_run_with_the_settings_of_the_config_has_no_note(tmp_path):
    from mmengine.config import Config

    from mmrm.utils.paths import find_config

    cfg = Config.fromfile(find_config(f'configs/rm/{R18}.py'))
    cfg.randomness.seed = 1
    cfg.train_dataloader.num_workers = 0
    cfg.train_dataloader.collate_fn = dict(type='default_collate')  # as train.py adds it
    cfg.train_dataloader.dataset.data_root = '/elsewhere'
    write_session(tmp_path / 'rm' / R18, '20260101_000000', epochs(1, [50.0]), cfg.pretty_text)
    filled = row_of('cifar100', tmp_path, 'ResNet-18', '+ RM')
    assert filled.notes == [] and filled.state == '1 of 200 epochs'


def test_ablations_are_filled_by_the_sweep_or_by_the_config_itself(tmp_path):
    for seed in range(3):
        write_run(tmp_path / 'sweep' / 'fc' / 'cifar100-resnet18' / 'shared' / f'seed{seed}', [80.0], seed=seed)
    write_run(tmp_path / 'rm' / R18, [82.0])
    assert row_of('fc', tmp_path, 'Shared', 'CIFAR-100').cells[0].best == (20.0, 0.0, 3)
    assert row_of('fc', tmp_path, 'Unshared', 'CIFAR-100').cells[0].best == (18.0, 0.0, 1)


def test_the_cost_table_takes_parameters_from_the_efficiency_tool(tmp_path):
    write_run(tmp_path / 'rm' / 'resnet50_8xb64_in1k', [79.2], memory=5900)
    measured = dict(flops=4112e6, train_params=27606032, deploy_params=25557032)
    (tmp_path / 'efficiency.json').write_text(json.dumps(dict(configs={'configs/rm/resnet50_8xb64_in1k.py': measured})))
    cells = {cell.metric.header: cell for cell in row_of('efficiency', tmp_path, '+ RM').cells}
    assert cells['#P train (M)'].best.mean == pytest.approx(27.606, abs=1e-3)
    assert cells['Flops (G)'].difference == pytest.approx(-0.008, abs=1e-3)
    assert cells['Memory (MB)'].best.mean == 5900
    (tmp_path / 'efficiency.json').write_text('[]')
    with pytest.raises(UserFileError, match='not a result of tools/analysis/efficiency'):
        row_of('efficiency', tmp_path, '+ RM')


def test_a_run_elsewhere_can_be_given(tmp_path):
    elsewhere = write_run(tmp_path / 'elsewhere', [77.0])
    given = tables.parse_given([f'configs/rm/{R18}.py={elsewhere}'])
    assert row_of('cifar100', tmp_path, 'ResNet-18', '+ RM', given=given).cells[0].best.mean == pytest.approx(23.0)
    with pytest.raises(UserValueError, match='CONFIG=FOLDER is allowed'):
        tables.parse_given(['configs/rm/none.py=x'])
    with pytest.raises(UserFileError, match='holds no log of mmengine'):
        tables.parse_given([f'configs/rm/{R18}.py={tmp_path}'])


# ------------------------------------------------------------------------------------------------------------ rendering
@pytest.fixture
def filled(tmp_path):
    for seed, best in enumerate((81.0, 82.0)):
        folder = write_run(tmp_path / 'rm' / R18 / f'seed{seed}', [50.0, best], seed=seed)
        (folder / 'best_accuracy_top1_epoch_2.pth').touch()
    return tables.fill(TABLES['cifar100'], tmp_path)


def test_csv_has_a_line_for_every_number_and_reads_back(filled):
    lines = list(csv.DictReader(io.StringIO(tables.render('cifar100', filled, 'csv'))))
    assert len(lines) == 20
    line = next(line for line in lines if line['row'] == 'ResNet-18 + RM')
    assert float(line['best']) == 18.5 and float(line['best_deviation']) == pytest.approx(0.7071, abs=1e-4)
    assert line['runs'] == '2' and line['checkpoints'].count('best_accuracy_top1_epoch_2.pth') == 2
    assert 'tools/dist_train.sh' in next(line for line in lines if line['row'] == 'ResNet-18 Baseline')['commands']


def test_markdown_lines_have_the_same_number_of_columns(filled):
    text = tables.render('cifar100', filled, 'markdown')
    lines = [line for line in text.splitlines() if line.startswith('|')]
    assert len(lines) == 22 and {line.count('|') for line in lines} == {lines[0].count('|')}
    assert '18.50 ± 0.71 (n=2)' in text and '-0.14' in text and '```bash' in text


def test_latex_escapes_and_has_as_many_cells_as_columns(filled):
    text = tables.render('cifar100', filled, 'latex')
    shape = re.search(r'\\begin\{tabular\}\{(\w+)\}', text)[1]
    body = [line for line in text.splitlines() if line.endswith(r'\\')]
    assert len(body) == 21 and all(line.count('&') == len(shape) - 1 for line in body)
    assert r'Err (\%)' in text and r'$\pm$' in text


@pytest.mark.parametrize('name', TABLES)
@pytest.mark.parametrize('form', ['terminal', 'markdown', 'csv', 'latex'])
def test_every_table_renders_empty(name, form, tmp_path):
    text = tables.render(name, tables.fill(TABLES[name], tmp_path), form)
    assert all(f'{number:g}' in text for row in TABLES[name].rows for number in row.published[:1])


# ------------------------------------------------------------------------------------------------------------- the tool
def run_tool(monkeypatch, *words):
    monkeypatch.setattr(sys, 'argv', [str(TOOL), *map(str, words)])
    monkeypatch.setattr(sys, 'path', list(sys.path))
    runpy.run_path(str(TOOL), run_name='__main__')


def test_the_tool_prints_a_table(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / 'rm' / R18, [50.0, 82.0])
    run_tool(monkeypatch, 'cifar100', '--work-dir', tmp_path)
    printed = capsys.readouterr().out
    assert re.search(r'ResNet-18 +\+ RM +18\.64 +18\.00 +18\.00 +-0\.64 +finished', printed)
    assert 'To fill the rest:' in printed


@pytest.mark.parametrize(
    'words, message',
    [
        (['cifar1000'], "unknown table 'cifar1000'; allowed: cifar10, "),
        (['--work-dir', '{tmp}/none'], 'none does not exist'),
        (['--work-dir', '{tmp}'], 'holds no log of mmengine'),
        (['--out', '{tmp}/table.docx'], 'must end in .md, .csv, .tex'),
        (['--out', '{tmp}/mine.md'], 'exists and is left as it is'),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    (tmp_path / 'mine.md').write_text('mine')
    with pytest.raises(SystemExit) as stop:
        run_tool(monkeypatch, *(word.format(tmp=tmp_path) for word in words))
    told = capsys.readouterr().err
    assert stop.value.code == 2 and message in told and told.startswith('error: ') and told.count('\n') == 1
    assert (tmp_path / 'mine.md').read_text() == 'mine'


def test_logs_of_another_project_are_named(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / 'yolo' / 'exp1', [1.0], key='coco/bbox_mAP')
    run_tool(monkeypatch, 'cifar10', '--work-dir', tmp_path)
    told = capsys.readouterr().err
    assert 'none of the 1 runs' in told and 'exp1' in told and '--run CONFIG=FOLDER' in told


def test_a_log_of_another_project_at_the_place_of_a_row_is_told(tmp_path):
    write_run(tmp_path / 'rm' / R18, [0.4], key='coco/bbox_mAP')
    filled = row_of('cifar100', tmp_path, 'ResNet-18', '+ RM')
    assert filled.cells[0].best is None
    assert any('no accuracy/top1 in its log, but coco/bbox_mAP' in note for note in filled.notes)


def test_the_tool_writes_files_by_their_ending(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / 'rm' / R18, [50.0, 82.0])
    out = tmp_path / 'all.csv'
    run_tool(monkeypatch, 'cifar100', 'imagenet', '--work-dir', tmp_path, '--out', out)
    lines = list(csv.DictReader(out.open()))
    assert {line['table'] for line in lines} == {'cifar100', 'imagenet'} and len(lines) == 20 + 16
