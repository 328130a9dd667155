"""Tables filled from hand-made work dirs."""

import csv
import io
import json
import re

import pytest
from run_logs import epochs, settings, write_run, write_session

from mmrm.cli.tables import main
from mmrm.report import tables
from mmrm.report.published import TABLES
from mmrm.utils.errors import UserFileError, UserValueError

R18 = 'resnet18_2xb64_cifar100'


def row_of(table, root, *labels, given=None):
    return next(each for each in tables.fill(TABLES[table], root, given) if each.row.labels == labels)


def rm_row(root):
    return row_of('cifar100', root, 'ResNet-18', '+ RM')


# -------------------------------------------------------------------------------------------------------------- filling
def test_seeds_give_mean_and_sample_deviation_of_best_and_last(tmp_path):
    for seed, best in enumerate((81.0, 82.0, 83.0)):
        folder = write_run(tmp_path / 'rm' / R18 / f'seed{seed}', [50.0, best, best - 1], seed=seed)
        (folder / 'best_accuracy_top1_epoch_2.pth').touch()
        (folder / 'epoch_3.pth').touch()
    filled = rm_row(tmp_path)
    cell = filled.cells[0]
    assert cell.best == (pytest.approx(18.0), pytest.approx(1.0), 3)
    assert cell.last == (pytest.approx(19.0), pytest.approx(1.0), 3)
    assert cell.difference == pytest.approx(18.0 - 18.64)
    assert filled.state == '3 runs finished, other settings' and not filled.commands
    assert filled.config == f'configs/rm/{R18}.py' and 'other settings than the config' in filled.notes[0]
    assert {path.name for path in filled.checkpoints} == {'best_accuracy_top1_epoch_2.pth'}


def test_unfinished_runs_do_not_count_where_there_are_finished_ones(tmp_path):
    folder = write_run(tmp_path / 'rm' / R18 / 'seed1', [10.0, 12.0], length=200, seed=1)
    filled = rm_row(tmp_path)
    assert filled.state.startswith('2 of 200 epochs') and filled.cells[0].best.mean == 88.0
    write_run(tmp_path / 'rm' / R18, [50.0, 79.0])
    write_run(tmp_path / 'rm' / R18 / 'seed0', [50.0, 80.0], seed=0)
    filled = rm_row(tmp_path)
    assert filled.cells[0].best == (20.0, 0.0, 1) and 'left out: the same seed' in filled.notes[0]
    assert filled.state == '1 finished, 2 of 200 epochs, other settings'
    assert filled.commands == [
        f'tools/dist_train.sh configs/rm/{R18}.py 2 --work-dir {folder} --resume',
        f'tools/dist_train.sh configs/rm/{R18}.py 2 --seed 2',
    ]


COMMANDS = {
    ('imagenet', 'ResNet-50', '+ RM'): 'tools/dist_train.sh configs/rm/resnet50_8xb64_in1k.py 8',
    ('coco-dense', 'ATSS', 'ResNet-50', '+ RM'): 'tools/dist_train.sh configs/rm/atss_r50_fpn_1x_coco.py 8',
    ('components', '+ RS + HIS'): (
        'mmrm compare configs/rm/pyramidnet164_2xb64_cifar100.py --methods rm:omega=0 --seeds 0 1 2 --gpus 2'
    ),
    ('fc', 'Shared', 'ImageNet'): (
        'mmrm compare configs/rm/resnet50_8xb64_in1k.py --methods rm:share_fc=true --seeds 0 --gpus 8'
    ),
}


@pytest.mark.parametrize('row', COMMANDS, ids=' '.join)
def test_a_missing_cell_has_the_command_that_fills_it(tmp_path, row):
    table, *labels = row
    assert row_of(table, tmp_path, *labels).commands == [COMMANDS[row]]


def test_each_missing_seed_has_a_command_that_the_tools_take(tmp_path):
    from mmrm.cli.compare import build_parser
    from mmrm.cli.train import parser

    start = 'python tools/train.py configs/rm/pyramidnet200_1xb64_cifar10.py --seed'
    assert row_of('cifar10', tmp_path, '+ RM').commands == [f'{start} {seed}' for seed in range(3)]
    for name, table in TABLES.items():
        for filled in tables.fill(table, tmp_path):
            for command in filled.commands:
                words = command.split()
                if words[0] == 'tools/dist_train.sh':
                    parser().parse_args([words[1], '--gpus', *words[2:]])
                elif words[1] == 'tools/train.py':
                    parser().parse_args(words[2:])
                elif words[1] == 'compare':
                    build_parser().parse_args(words[2:])
                else:
                    assert words[1] == 'tools/analysis/efficiency.py', (name, command)


def test_a_table_names_the_recipe_of_a_published_number_and_counts_runs_of_that_recipe(tmp_path):
    write_run(tmp_path / 'cutmix' / 'resnet50_4xb64-steps_in1k', [78.6])
    filled = tables.fill(TABLES['imagenet-r50'], tmp_path)
    for form in ('terminal', 'markdown', 'latex', 'csv'):
        text = tables.render('imagenet-r50', filled, form)
        line = next(line for line in text.splitlines() if '+ PuzzleMix' in line)
        assert 'steps' in line and ('batch 256, lr 0.1' in text or form == 'csv'), form
    assert 'Published with' not in tables.render('cifar100', tables.fill(TABLES['cifar100'], tmp_path), 'terminal')
    row = row_of('imagenet-r50', tmp_path, '+ CutMix')
    assert row.config == 'configs/cutmix/resnet50_4xb64-steps_in1k.py'
    assert row.cells[0].best.mean == pytest.approx(21.4)


def test_detection_is_in_percent_and_reports_the_last_epoch(tmp_path):
    folder = tmp_path / 'rm' / 'atss_r50_fpn_1x_coco'
    write_session(folder, '20260101_000000', epochs(1, [0.3, 0.42, 0.415], key='coco/bbox_mAP'), settings())
    (folder / 'epoch_3.pth').touch()
    filled = row_of('coco-dense', tmp_path, 'ATSS', 'ResNet-50', '+ RM')
    ap, ap50 = filled.cells[:2]
    assert (ap.best.mean, ap.last.mean) == (pytest.approx(42.0), pytest.approx(41.5))
    assert ap.difference == pytest.approx(0.0) and ap50.last is None
    assert filled.checkpoints == [folder / 'epoch_3.pth']


def test_further_metrics_are_those_of_the_best_epoch_and_costs_come_from_their_files(tmp_path):
    records = epochs(1, [79.2, 79.1], memory=5900)
    for record, top5 in zip(records[1::2], (94.0, 95.0)):
        record['accuracy/top5'] = top5
    write_session(tmp_path / 'rm' / 'resnet50_8xb64_in1k', '20260101_000000', records, settings(length=2))
    top5 = row_of('imagenet', tmp_path, 'ResNet-50', '+ RM').cells[1]
    assert (top5.best.mean, top5.last.mean) == (pytest.approx(6.0), pytest.approx(5.0))
    file = tmp_path / 'efficiency.json'
    measured = dict(flops=4112e6, train_params=27606032, deploy_params=25557032)
    file.write_text(json.dumps(dict(configs={'configs/rm/resnet50_8xb64_in1k.py': measured})))
    cells = {cell.metric.header: cell for cell in row_of('efficiency', tmp_path, '+ RM').cells}
    assert cells['#P train (M)'].best.mean == pytest.approx(27.606, abs=1e-3)
    assert cells['Flops (G)'].difference == pytest.approx(-0.008, abs=1e-3)
    assert cells['Memory (MB)'].best.mean == 5900
    file.write_text('[]')
    with pytest.raises(UserFileError, match='not a result of tools/analysis/efficiency'):
        row_of('efficiency', tmp_path, '+ RM')


def test_a_run_with_the_settings_of_the_config_has_no_note(tmp_path):
    from mmengine.config import Config

    from mmrm.utils.paths import find_config

    cfg = Config.fromfile(find_config(f'configs/rm/{R18}.py'))
    cfg.randomness.seed = 1
    cfg.train_dataloader.num_workers = 0
    cfg.train_dataloader.collate_fn = dict(type='default_collate')  # as train.py adds it
    cfg.train_dataloader.dataset.data_root = '/elsewhere'
    folder = write_session(tmp_path / 'rm' / R18, '20260101_000000', epochs(1, [50.0]), cfg.pretty_text)
    write_data(folder)
    filled = rm_row(tmp_path)
    assert filled.notes == [] and filled.state == '1 of 200 epochs'
    cfg.model.head.share_fc = True
    folder = tmp_path / f'rm/{R18}-compare/rm_share_fc=true/seed1'
    write_session(folder, '20260101_000000', epochs(1, [50.0]), cfg.pretty_text)
    write_data(folder)
    assert row_of('fc', tmp_path, 'Shared', 'CIFAR-100').notes == []
    cfg.val_evaluator.topk = (3,)
    write_session(folder, '20260102_000000', epochs(1, [50.0]), cfg.pretty_text)
    assert 'val_evaluator.topk=[3] instead of [1, 5]' in row_of('fc', tmp_path, 'Shared', 'CIFAR-100').notes[0]


def write_data(folder, train=50_000, val=10_000):
    """What a run writes down of its data."""
    parts = dict(train=dict(samples=train, sha256='0'), val=dict(samples=val, sha256='0'))
    (folder / 'data.json').write_text(json.dumps(parts))


def test_run_on_part_of_the_data_is_left_out(tmp_path):
    part, whole = (write_run(tmp_path / 'rm' / R18 / f'seed{seed}', [90.0], seed=seed) for seed in range(2))
    write_data(part, train=5_000)
    filled = rm_row(tmp_path)
    assert filled.cells[0].best.count == 1 and 'its number of samples is not known' in filled.notes[-1]
    write_data(whole, val=1_000)
    filled = rm_row(tmp_path)
    assert filled.runs == [] and filled.cells[0].best is None and filled.state == 'missing, other data left out'
    told = [note.partition(' left out, other data: ')[2] for note in filled.notes]
    assert told == ['5000 train samples instead of 50000', '1000 val samples instead of 10000']
    assert '5000 train samples instead of 50000' in tables.render('cifar100', [filled], 'terminal')
    (whole / 'data.json').write_text('{"train": ' + '[' * 100_000)
    with pytest.raises(UserFileError, match=r'data\.json does not name the data of the run'):
        rm_row(tmp_path)


def test_ablations_are_filled_by_mmrm_compare_or_by_the_config_itself_and_by_runs_elsewhere(tmp_path):
    for seed in range(3):
        write_run(tmp_path / 'rm' / f'{R18}-compare' / 'rm_share_fc=true' / f'seed{seed}', [80.0], seed=seed)
    assert row_of('fc', tmp_path, 'Shared', 'CIFAR-100').cells[0].best == (20.0, 0.0, 3)
    given = tables.parse_given([f'configs/rm/{R18}.py={write_run(tmp_path / "elsewhere", [82.0])}'])
    for table, labels in (('fc', ('Unshared', 'CIFAR-100')), ('cifar100', ('ResNet-18', '+ RM'))):
        assert row_of(table, tmp_path, *labels, given=given).cells[0].best == (18.0, 0.0, 1)
    with pytest.raises(UserValueError, match='CONFIG=FOLDER is allowed'):
        tables.parse_given(['configs/rm/none.py=x'])
    with pytest.raises(UserFileError, match='holds no log of mmengine'):
        tables.parse_given([f'configs/rm/{R18}.py={tmp_path}'])


# ------------------------------------------------------------------------------------------------------------ rendering
def test_every_format_has_every_row(tmp_path):
    for seed, best in enumerate((81.0, 82.0)):
        folder = write_run(tmp_path / 'rm' / R18 / f'seed{seed}', [50.0, best], seed=seed)
        (folder / 'best_accuracy_top1_epoch_2.pth').touch()
    filled = tables.fill(TABLES['cifar100'], tmp_path)
    lines = list(csv.DictReader(io.StringIO(tables.render('cifar100', filled, 'csv'))))
    line = next(line for line in lines if line['row'] == 'ResNet-18 + RM')
    assert len(lines) == 20 and line['runs'] == '2' and line['checkpoints'].count('best_accuracy_top1_epoch_2.pth') == 2
    assert float(line['best']) == 18.5 and float(line['best_deviation']) == pytest.approx(0.7071, abs=1e-4)
    assert 'tools/dist_train.sh' in next(line for line in lines if line['row'] == 'ResNet-18 Baseline')['commands']
    text = tables.render('cifar100', filled, 'markdown')
    lines = [line for line in text.splitlines() if line.startswith('|')]
    assert len(lines) == 22 and {line.count('|') for line in lines} == {lines[0].count('|')}
    assert '18.50 ± 0.71 (n=2)' in text and '-0.14' in text
    text = tables.render('cifar100', filled, 'latex')
    shape = re.search(r'\\begin\{tabular\}\{(\w+)\}', text)[1]
    body = [line for line in text.splitlines() if line.endswith(r'\\')]
    assert len(body) == 21 and all(line.count('&') == len(shape) - 1 for line in body)
    assert r'Err (\%)' in text and r'$\pm$' in text
    assert all(line.startswith(('%', '\\')) or line in body for line in text.splitlines())


@pytest.mark.parametrize('form', ['terminal', 'markdown', 'csv', 'latex'])
def test_every_table_renders_empty(form, tmp_path):
    for name, table in TABLES.items():
        text = tables.render(name, tables.fill(table, tmp_path), form)
        assert all(f'{number:g}' in text for row in table.rows for number in row.published[:1]), name


# ---------------------------------------------------------------------------------------------------------- the command
def test_the_command_prints_tables_and_writes_files_by_their_ending(tmp_path, capsys):
    write_run(tmp_path / 'rm' / R18, [50.0, 82.0])
    main(['cifar100', '--work-dir', str(tmp_path)])
    printed = capsys.readouterr().out
    assert re.search(r'ResNet-18 +\+ RM +18\.64 +18\.00 +18\.00 +-0\.64 +finished', printed)
    assert 'To fill the rest:' in printed
    main(['cifar100', 'imagenet', '--work-dir', str(tmp_path), '--out', str(tmp_path / 'all.csv')])
    lines = list(csv.DictReader((tmp_path / 'all.csv').open()))
    assert {line['table'] for line in lines} == {'cifar100', 'imagenet'} and len(lines) == 20 + 16


@pytest.mark.parametrize(
    'words, message',
    [
        (['cifar1000'], 'table: cifar1000 is unknown; did you mean cifar10'),
        (['--work-dir', '{tmp}'], 'holds no log of mmengine'),
        (['--out', '{tmp}/table.docx'], 'must end in .md, .csv, .tex'),
        (['--out', '{tmp}/mine.md'], 'already exists'),
        (['--format', 'html'], "invalid choice: 'html'"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(words, message, tmp_path, capsys):
    (tmp_path / 'mine.md').write_text('mine')
    with pytest.raises(SystemExit) as stop:
        main([word.format(tmp=tmp_path) for word in words])
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and message in printed and printed.startswith('error: ') and printed.count('\n') == 1
    assert (tmp_path / 'mine.md').read_text() == 'mine'


def test_names_in_foreign_runs_do_not_reach_the_terminal_raw(tmp_path, capsys):
    from mmrm.cli import report

    evil = '\x1b]0;evil\x07\x1b[31m'
    write_run(tmp_path / evil, [1.0])
    write_run(tmp_path / 'rm' / R18, [1.0], key=evil)
    (tmp_path / f'empty{evil}').mkdir()
    main(['cifar100', '--work-dir', str(tmp_path)])
    report.main([str(tmp_path), str(tmp_path / f'empty{evil}'), '--out', str(tmp_path / 'a.html')])
    printed = ''.join(capsys.readouterr())
    assert 'evil' in printed and '\x1b' not in printed and '\x07' not in printed


def test_logs_of_another_project_are_named(tmp_path, capsys):
    write_run(tmp_path / 'yolo' / 'exp1', [1.0], key='coco/bbox_mAP')
    main(['cifar10', '--work-dir', str(tmp_path)])
    printed = capsys.readouterr().err
    assert '1 of the 1 runs' in printed and 'exp1' in printed and '--run CONFIG=FOLDER' in printed
    write_run(tmp_path / 'rm' / R18, [0.4], key='coco/bbox_mAP')
    filled = rm_row(tmp_path)
    assert filled.cells[0].best is None
    assert any('no accuracy/top1 in its log, but coco/bbox_mAP' in note for note in filled.notes)
