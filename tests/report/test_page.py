"""The report: what stands in the page comes from the logs, and bad input leaves a page that says so."""

import importlib.util
import json
import re
import sys

import pytest

from mmrm.cli.report import main
from mmrm.report import collect as collecting
from mmrm.report import compare, page
from mmrm.report.collect import collect, curves
from mmrm.utils.errors import UserFileError

from run_logs import epochs, settings, write_run, write_session  # isort: skip


def data_of(html: str) -> dict:
    """The data of the charts, as a browser reads it."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def test_the_page_has_every_value_of_the_log(tmp_path):
    write_run(tmp_path / 'rm' / 'seed0', [10.25, 20.5, 30.125], rm_lambda=0.4)
    html = page.build(collect([tmp_path]))
    run = data_of(html)['tasks'][0]['runs'][0]
    assert run['val'] == dict(x=[1, 2, 3], every=1, keys={'accuracy/top1': dict(y=[10.25, 20.5, 30.125])})
    assert run['train']['x'] == [1, 2, 3] and run['train']['keys']['rm_lambda']['y'] == [0.4, 0.4, 0.4]
    assert '30.12' in html and 'finished' in html


def test_nothing_is_loaded_from_elsewhere_and_scripts_are_named_by_their_hash(tmp_path):
    write_run(tmp_path / 'run', [10.0])
    html = page.build(collect([tmp_path]))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert 'default-src &#39;none&#39;' in policy and policy.count('sha256-') == 2 and 'unsafe' not in policy
    assert not re.search(r'(src|href)="(?!data:|#)', html) and not re.search(r' style="| on\w+="', html)
    assert len(html) < 300_000


def test_names_from_folders_configs_and_logs_are_never_html(tmp_path):
    evil = '<script>alert(1)</script>'
    run = tmp_path / 'a' / evil.replace('/', '_') / 'seed0'
    records = epochs(1, [10.0, 20.0], **{f'loss_{evil}': 0.5})
    config = settings(2, more=f'note = {evil!r}\n')
    write_session(run, '20260101_000000', records, config)
    write_run(tmp_path / 'b' / 'seed0', [10.0])
    text = run / '20260101_000000' / '20260101_000000.log'
    text.write_text(f'System environment:\n    PyTorch: {evil}\n-----\n')
    html = page.build(collect([tmp_path]))
    assert '<script>alert' not in html and '&lt;script&gt;alert' in html
    assert html.count('</script>') == 2, 'the data and the script, and no end that a name brings'
    charts = data_of(html)['tasks'][0]['charts']
    assert any(f'loss_{evil}' in chart['keys'] for chart in charts), 'shown, but as text'


def test_a_long_curve_is_thinned_and_keeps_its_extremes(tmp_path):
    records = [
        dict(lr=0.1, loss=float(step % 7), epoch=step // 100 + 1, iter=step, step=step) for step in range(1, 6001)
    ]
    records[2999]['loss'] = 99.0
    write_session(tmp_path / 'run', '20260101_000000', records, settings(60))
    run = collect([tmp_path]).runs[0]
    found = curves(run, points=300)['train']
    loss = found['keys']['loss']
    assert len(found['x']) == 300 and found['every'] == 20
    assert max(loss['high']) == 99.0 and min(loss['low']) == 0.0
    assert loss['y'][0] == pytest.approx(sum(step % 7 for step in range(1, 21)) / 20, abs=1e-4)
    html = page.build(collect([tmp_path]))
    assert 'Long curves are thinned' in html


def test_seeds_that_are_not_equally_far_are_thinned_at_the_same_places(tmp_path):
    for seed, length in ((0, 6000), (1, 1500)):
        records = [dict(lr=0.1, loss=1.0, epoch=(s - 1) // 100 + 1, iter=s, step=s) for s in range(1, length + 1)]
        write_session(tmp_path / f'seed{seed}', '20260101_000000', records, settings(60, seed))
    whole, part = (curves(run, points=300)['train']['x'] for run in collect([tmp_path]).runs)
    assert part == whole[: len(part)]


def test_ten_runs_of_many_lines_are_below_three_megabytes(tmp_path):
    for number in range(10):
        records = []
        for epoch in range(1, 201):
            for step in range(epoch * 10 - 9, epoch * 10 + 1):
                more = {f'loss_{k}': 1.23456789 / (step + k) for k in range(8)}
                records.append(
                    dict(lr=0.1 / step, loss=3.3 / step, time=0.123456, epoch=epoch, iter=step, step=step, **more)
                )
            records.append({'accuracy/top1': epoch / 3, 'accuracy/top5': epoch / 2.1, 'step': epoch})
        write_session(tmp_path / f'method{number}', '20260101_000000', records, settings(200))
    assert len(page.build(collect([tmp_path])).encode()) < 3_000_000


# ------------------------------------------------------------------------------------------------------------ bad input
def test_a_run_without_a_log_is_named_and_the_others_are_shown(tmp_path):
    write_run(tmp_path / 'good', [10.0])
    (tmp_path / 'empty').mkdir()
    found = collect([tmp_path / 'good', tmp_path / 'empty'])
    assert len(found.runs) == 1 and 'empty: no log' in found.left_out[0]
    assert 'empty: no log' in page.build(found)


def test_no_run_at_all_is_an_error_that_names_the_folder(tmp_path):
    with pytest.raises(UserFileError, match='no run to show'):
        collect([tmp_path])
    with pytest.raises(UserFileError, match='does not exist'):
        collect([tmp_path / 'gone'])


def test_a_half_written_last_line_is_left_away_and_the_run_counts_as_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, 'QUIET', -1)
    write_session(tmp_path / 'killed', '20260101_000000', epochs(1, [10.0, 20.0]), settings(5), '{"lr": 0.1, "lo')
    run = collect([tmp_path]).runs[0]
    assert run.status == 'stopped' and run.log.state == '2 of 5 epochs' and run.progress == 0.4
    assert 'stopped' in page.build(collect([tmp_path]))


def test_values_that_are_no_numbers_leave_gaps(tmp_path):
    records = epochs(1, [10.0, float('nan'), 30.0])
    records[2]['loss'] = float('inf')
    records[4]['loss'] = 'text'
    write_session(tmp_path / 'run', '20260101_000000', records, settings(3))
    run = data_of(page.build(collect([tmp_path])))['tasks'][0]['runs'][0]
    assert run['val']['keys']['accuracy/top1']['y'] == [10, None, 30]
    assert run['train']['keys']['loss']['y'] == [1, None, None]


def test_runs_of_different_tasks_stand_apart(tmp_path):
    write_run(tmp_path / 'classifier', [10.0])
    write_run(tmp_path / 'detector', [0.25], key='coco/bbox_mAP')
    write_run(tmp_path / 'segmentor', [40.0], key='mIoU')
    tasks = data_of(page.build(collect([tmp_path])))['tasks']
    assert [task['name'] for task in tasks] == ['Classification', 'Detection', 'Segmentation']
    assert all(len(task['runs']) == 1 for task in tasks)
    assert tasks[1]['runs'][0]['val']['keys']['coco/bbox_mAP']['y'] == [25], 'AP in percent'


def test_more_runs_than_a_page_holds_are_counted_and_the_newest_kept(tmp_path):
    for number in range(6):
        write_run(tmp_path / f'run{number}', [10.0 + number])
    found = collect([tmp_path], most=4)
    assert len(found.runs) == 4 and '2 of 6 runs' in found.left_out[0]


def test_a_run_that_is_not_validated_yet_still_has_its_loss(tmp_path):
    write_session(tmp_path / 'run', '20260101_000000', epochs(1, [1.0])[:1], settings(3))
    html = page.build(collect([tmp_path]))
    assert 'not validated yet' in html and data_of(html)['tasks'][0]['charts']


def test_a_run_without_a_config_is_shown_with_a_note(tmp_path):
    write_session(tmp_path / 'run', '20260101_000000', epochs(1, [10.0]))
    html = page.build(collect([tmp_path]))
    assert 'no config in its folder' in html and '10.00' in html


# ------------------------------------------------------------------------------------------------------- comparisons
def groups_of(tmp_path) -> dict:
    return next(iter(collect([tmp_path]).tasks().values()))


def test_differences_are_paired_by_seed_with_students_interval(tmp_path):
    from scipy import stats

    mine, theirs = [52.0, 55.0, 51.0], [50.0, 52.0, 50.0]
    for seed in range(3):
        write_run(tmp_path / 'rm' / f'seed{seed}', [1.0, mine[seed]], seed=seed)
        write_run(tmp_path / 'baseline' / f'seed{seed}', [1.0, theirs[seed]], seed=seed)
    groups = groups_of(tmp_path)
    (row,), left_out = compare.compare(groups, 'baseline', groups['rm'][0].measure)
    test = stats.ttest_rel(mine, theirs).confidence_interval()
    assert row.difference.mean == pytest.approx(2.0) and row.how == 'paired by seed, n = 3' and not left_out
    assert (row.difference.low, row.difference.high) == pytest.approx((test.low, test.high))


def test_without_common_seeds_the_interval_is_welchs(tmp_path):
    from scipy import stats

    mine, theirs = [52.0, 55.0, 51.0], [50.0, 52.0]
    for seed, value in enumerate(mine):
        write_run(tmp_path / 'rm' / f'seed{seed}', [value], seed=seed)
    for seed, value in enumerate(theirs, 10):
        write_run(tmp_path / 'baseline' / f'seed{seed}', [value], seed=seed)
    groups = groups_of(tmp_path)
    (row,), _ = compare.compare(groups, 'baseline', groups['rm'][0].measure)
    test = stats.ttest_ind(mine, theirs, equal_var=False).confidence_interval()
    assert (row.difference.low, row.difference.high) == pytest.approx((test.low, test.high)) and 'differ' in row.how


def test_runs_that_are_not_equally_far_are_compared_where_both_have_been(tmp_path):
    write_run(tmp_path / 'rm', [1.0, 5.0], length=4)
    write_run(tmp_path / 'baseline', [1.0, 2.0, 8.0, 9.0])
    groups = groups_of(tmp_path)
    (row,), _ = compare.compare(groups, 'baseline', groups['rm'][0].measure)
    assert (row.step, row.difference.mean, row.difference.low) == (2, 3.0, None)
    assert 'Ahead at epoch 2, the last epoch that all have: rm' in page.build(collect([tmp_path]))


def test_results_by_class_and_size_come_from_the_log(tmp_path):
    for name, value in (('baseline', 0.25), ('rm', 0.75)):
        more = {'coco/bbox_mAP': value, 'coco/bbox_mAP_s': -1.0, 'coco/traffic light_precision': value / 2}
        records = [dict(lr=0.1, loss=1.0, epoch=1, iter=1, step=1), dict(step=1, **more)]
        write_session(tmp_path / name, '20260101_000000', records, settings(1))
    size, by_class = compare.breakdowns(groups_of(tmp_path))
    assert size.rows == [('box AP (%)', [25.0, 75.0])], 'no object of a size is no value, not -100'
    assert by_class.rows == [('traffic light', [12.5, 37.5])] and by_class.title == 'box AP by class'


def test_a_run_of_a_shipped_config_stands_beside_the_papers_number(tmp_path):
    folder = tmp_path / 'rm' / 'resnet18_2xb64_cifar100' / 'seed0'
    write_run(folder, [70.0, 80.0])
    html = page.build(collect([tmp_path]))
    run = page.view_of(collect([tmp_path]), {})['tasks'][0]['groups'][0]['runs'][0]
    assert run['paper'].value == pytest.approx(100 - 18.64) and run['to_paper'] == pytest.approx(80 - 81.36)
    assert run['other'], 'its few settings are not those of the config'
    assert 'CIFAR-100, several networks' in html and '18.64' in html and '20.00' in html


def test_the_authors_curve_is_drawn_behind_their_config(tmp_path):
    write_run(tmp_path / 'rm' / 'pyramidnet200_1xb64_cifar10', [50.0, 64.0])
    found = data_of(page.build(collect([tmp_path])))['tasks'][0]['charts'][0]
    assert found['authors'][0]['x'] == [1, 2] and found['authors'][0]['low'][0] <= 49.11


def test_the_summary_says_which_epochs_of_the_authors_it_compares_with(tmp_path):
    folder = tmp_path / 'rm'
    write_run(folder / 'pyramidnet200_1xb64_cifar10', [50.0, 64.0])
    write_run(folder / 'atss_r50_fpn_1x_coco', [0.2, 0.26], length=12, key='coco/bbox_mAP')
    write_run(folder / 'upernet_r50_8xb2-80k_ade20k-512x512', [70.0], key='aAcc')  # not what the authors' logs have
    views = page.view_of(collect([tmp_path]), {})['tasks']
    found = {run['name']: run['authors'] for task in views for group in task['groups'] for run in group['runs']}
    cifar, atss, upernet = (next(found[name] for name in found if part in name) for part in ('pyramid', 'atss', 'uper'))
    assert (cifar['mine'], cifar['around']) == (64.0, 'epochs 1 to 4')
    assert (atss['mine'], atss['around'], atss['low']) == (pytest.approx(26.0), '', pytest.approx(26.6))
    assert upernet is None
    text = ' '.join(page.build(collect([tmp_path])).split())
    assert '64.0<small> epoch 2</small>, theirs 49.1 to 72.9<small> epochs 1 to 4</small>' in text


# ---------------------------------------------------------------------------------------------------------- the command
def test_the_command_writes_the_page_and_replaces_only_its_own(tmp_path, capsys):
    write_run(tmp_path / 'run', [10.0])
    out = tmp_path / 'out' / 'report.html'
    main([str(tmp_path / 'run'), '--out', str(out)])
    main([str(tmp_path / 'run'), '--out', str(out)])
    assert 'report.html' in capsys.readouterr().out and page.is_report(out)
    out.write_text('<html>mine</html>')
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / 'run'), '--out', str(out)])
    assert stop.value.code == 2 and 'exists and is left' in capsys.readouterr().err
    assert out.read_text() == '<html>mine</html>'
    main([str(tmp_path / 'run'), '--out', str(out), '--overwrite'])
    assert page.is_report(out)


@pytest.mark.parametrize('arguments, told', [(['gone'], 'does not exist'), (['.', '--port', '99999'], 'not a port')])
def test_a_mistake_is_one_line(tmp_path, capsys, arguments, told, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and told in capsys.readouterr().err


def test_a_report_that_fails_is_told_and_not_raised(tmp_path, monkeypatch):
    told = []
    assert page.beside(tmp_path, told.append) is None and 'not written' in told[0]
    write_run(tmp_path / 'run', [10.0])
    monkeypatch.setattr(page, 'build', lambda *_: 1 / 0)
    assert page.beside(tmp_path, told.append) is None and 'division' in told[1]


def test_the_benchmark_runs_in_small(capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location(
        'report_benchmark', page.FOLDER.parents[1] / 'benchmarks' / 'report.py'
    )
    monkeypatch.setattr(sys, 'path', list(sys.path))  # the script puts the checkout first
    monkeypatch.setattr(sys, 'argv', ['report.py', '--runs', '5', '--epochs', '3'])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    assert re.search(r'5 runs of 3 epochs: [\d.]+ s, 0\.\d+ MB', capsys.readouterr().out)
