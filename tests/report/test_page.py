"""The report: what stands in the page comes from the logs, and bad input leaves a page that says so."""

import json
import re

import pytest

from mmrm.cli.report import main
from mmrm.report import compare, page
from mmrm.report.collect import collect, curves
from mmrm.utils.errors import UserFileError

from run_logs import epochs, settings, write_run, write_session  # isort: skip


def data_of(html: str) -> dict:
    """The data of the charts, as a browser reads it."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def test_the_page_has_every_value_of_the_log_and_loads_nothing_from_elsewhere(tmp_path):
    write_run(tmp_path / 'rm' / 'seed0', [10.25, 20.5, 30.125], rm_lambda=0.4)
    html = page.build(collect([tmp_path]))
    run = data_of(html)['tasks'][0]['runs'][0]
    assert run['val'] == dict(x=[1, 2, 3], every=1, keys={'accuracy/top1': dict(y=[10.25, 20.5, 30.125])})
    assert run['train']['x'] == [1, 2, 3] and run['train']['keys']['rm_lambda']['y'] == [0.4, 0.4, 0.4]
    assert '30.12' in html and 'finished' in html
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert 'default-src &#39;none&#39;' in policy and policy.count('sha256-') == 2 and 'unsafe' not in policy
    assert not re.search(r'(src|href)="(?!data:|#)', html) and not re.search(r' style="| on\w+="', html)
    assert len(html) < 300_000


def test_names_from_folders_configs_and_logs_are_never_html(tmp_path):
    evil = '<script>alert(1)</script>'
    run = tmp_path / 'a' / evil.replace('/', '_') / 'seed0'
    records = epochs(1, [10.0, 20.0], **{f'loss_{evil}': 0.5})
    write_session(run, '20260101_000000', records, settings(2, more=f'note = {evil!r}\n'))
    write_run(tmp_path / 'b' / 'seed0', [10.0])
    text = run / '20260101_000000' / '20260101_000000.log'
    text.write_text(f'System environment:\n    PyTorch: {evil}\n\nRuntime environment:\n    seed: 5\n-----\n    x: y\n')
    found = collect([tmp_path])
    assert found.runs[0].environment == {'PyTorch': evil, 'seed': '5'}
    html = page.build(found)
    assert '<script>alert' not in html and '&lt;script&gt;alert' in html
    assert html.count('</script>') == 2, 'the data and the script, and no end that a name brings'
    charts = data_of(html)['tasks'][0]['charts']
    assert any(f'loss_{evil}' in chart['keys'] for chart in charts), 'shown, but as text'


def test_a_long_curve_is_thinned_at_the_same_places_for_all_seeds_and_keeps_its_extremes(tmp_path):
    for seed, length in ((0, 6000), (1, 1500)):
        records = [
            dict(lr=0.1, loss=float(step % 7), epoch=(step - 1) // 100 + 1, iter=step, step=step)
            for step in range(1, length + 1)
        ]
        records[999]['loss'] = 99.0
        write_session(tmp_path / f'seed{seed}', '20260101_000000', records, settings(60, seed))
    found = collect([tmp_path])
    drawn, part = (curves(run, points=300)['train'] for run in found.runs)
    loss = drawn['keys']['loss']
    assert len(drawn['x']) == 300 and drawn['every'] == 20 and part['x'] == drawn['x'][: len(part['x'])]
    assert max(loss['high']) == 99.0 and min(loss['low']) == 0.0
    assert loss['y'][0] == pytest.approx(sum(step % 7 for step in range(1, 21)) / 20, abs=1e-4)
    assert 'Long curves are thinned' in page.build(found)


# ------------------------------------------------------------------------------------------------------------ bad input
def test_unreadable_runs_are_named_and_the_others_shown(tmp_path):
    write_run(tmp_path / 'good', [10.0])
    (tmp_path / 'empty').mkdir()
    found = collect([tmp_path / 'good', tmp_path / 'empty'])
    assert len(found.runs) == 1 and 'empty: no log' in found.left_out[0]
    assert 'empty: no log' in page.build(found)
    with pytest.raises(UserFileError, match='no run found'):
        collect([tmp_path / 'empty'])
    with pytest.raises(UserFileError, match='is not an existing folder'):
        collect([tmp_path / 'gone'])
    write_session(tmp_path / 'no config', '20260101_000000', epochs(1, [11.0]))
    write_session(tmp_path / 'no validation', '20260101_000000', epochs(1, [1.0])[:1], settings(3))
    found = collect([tmp_path])
    html = page.build(found)
    assert 'no config in its folder' in html and '11.00' in html and 'not validated yet' in html
    assert len(collect([tmp_path], most=2).runs) == 2
    assert '1 of 3 runs' in collect([tmp_path], most=2).left_out[0]


def test_values_that_are_no_numbers_leave_gaps(tmp_path):
    records = epochs(1, [10.0, float('nan'), 30.0])
    records[2]['loss'] = float('inf')
    records[4]['loss'] = 'text'
    records[4]['time'] = 10**400
    write_session(tmp_path / 'killed', '20260101_000000', records, settings(5), '{"lr": 0.1, "lo')
    found = collect([tmp_path])
    run = found.runs[0]
    assert run.log.state == '3 of 5 epochs' and run.pace == 0.5 and 'its loss is text at iteration 30' in run.notes
    drawn = data_of(page.build(found))['tasks'][0]['runs'][0]
    assert drawn['val']['keys']['accuracy/top1']['y'] == [10, None, 30]
    assert drawn['train']['keys']['loss']['y'] == [1, None, None]


def test_runs_of_different_tasks_stand_apart(tmp_path):
    write_run(tmp_path / 'classifier', [10.0])
    write_run(tmp_path / 'detector', [0.25], key='coco/bbox_mAP')
    write_run(tmp_path / 'segmentor', [40.0], key='mIoU')
    tasks = data_of(page.build(collect([tmp_path])))['tasks']
    assert [task['name'] for task in tasks] == ['Classification', 'Detection', 'Segmentation']
    assert all(len(task['runs']) == 1 for task in tasks)
    assert tasks[1]['runs'][0]['val']['keys']['coco/bbox_mAP']['y'] == [25], 'AP in percent'


# ------------------------------------------------------------------------------------------------------- comparisons
def compared(tmp_path):
    groups = next(iter(collect([tmp_path]).tasks().values()))
    measure = groups['rm'][0].measure
    mine, theirs = ([compare.result_of(run, measure) for run in groups[name]] for name in ('rm', 'baseline'))
    return compare.compare(mine, theirs, measure)


@pytest.mark.parametrize('paired', [True, False])
def test_differences_have_students_interval_paired_by_seed_else_welchs(tmp_path, paired):
    from scipy import stats

    mine, theirs = [52.0, 55.0, 51.0], [50.0, 52.0, 50.0]
    for seed in range(3):
        write_run(tmp_path / 'rm' / f'seed{seed}', [1.0, mine[seed]], seed=seed)
        write_run(tmp_path / 'baseline' / f'seed{seed + (not paired) * 9}', [1.0, theirs[seed]])
    row = compared(tmp_path)
    test = stats.ttest_rel(mine, theirs) if paired else stats.ttest_ind(mine, theirs, equal_var=False)
    assert row.difference.mean == pytest.approx(2.0)
    assert row.how == ('paired by seed, n = 3' if paired else 'seeds differ, 3 and 3 runs')
    assert row.difference[1:3] == pytest.approx(tuple(test.confidence_interval()))


def test_runs_that_are_not_equally_far_are_compared_where_both_have_been(tmp_path):
    write_run(tmp_path / 'rm', [1.0, 5.0], length=4)
    write_run(tmp_path / 'baseline', [1.0, 2.0, 8.0, 9.0])
    row = compared(tmp_path)
    assert (row.step, row.difference.mean, row.difference.low, row.best) == (2, 3.0, None, 3.0)


def test_results_by_class_and_size_come_from_the_log(tmp_path):
    for name, value in (('baseline', 0.25), ('rm', 0.75)):
        more = {'coco/bbox_mAP': value, 'coco/bbox_mAP_s': -1.0, 'coco/bbox_mAP_l': value}
        more['coco/traffic light_precision'] = value / 2
        records = [dict(lr=0.1, loss=1.0, epoch=1, iter=1, step=1), dict(step=1, **more)]
        write_session(tmp_path / name, '20260101_000000', records, settings(1))
    size, by_class = compare.breakdowns(next(iter(collect([tmp_path]).tasks().values())))
    assert size.rows == [('box AP (%)', [25.0, 75.0]), ('box AP, large (%)', [25.0, 75.0])], 'no object is no value'
    assert by_class.rows == [('traffic light', [12.5, 37.5])] and by_class.title == 'box AP by class'


def test_runs_of_shipped_configs_stand_next_to_the_papers_numbers(tmp_path):
    for seed in range(2):
        write_run(tmp_path / 'rm' / 'resnet18_2xb64_cifar100' / f'seed{seed}', [70.0, 80.0], seed=seed)
    (tmp_path / 'rm' / 'resnet18_2xb64_cifar100' / 'seed0' / 'data.json').write_text('{"train": {"samples": 500}}')
    html = page.build(collect([tmp_path]))
    text = ' '.join(html.split())
    assert '<code>train samples</code></th><td data-label="before"><code>50000</code>' in text
    assert '81.36<small> best</small>' in text and '−1.36<small> other settings</small>' in text
    assert 'that decide the result, other than in the shipped config' in text and 'train_cfg.max_epochs' in text
    assert [each['value'] for each in data_of(html)['tasks'][0]['charts'][0]['papers']] == [81.36]


# ---------------------------------------------------------------------------------------------------------- the command
def test_the_command_writes_the_page_and_replaces_only_its_own(tmp_path, capsys):
    write_run(tmp_path / 'run', [10.0])
    out = tmp_path / 'out' / 'report.html'
    main([str(tmp_path / 'run'), '--out', str(out)])
    main([str(tmp_path / 'run'), '--out', str(out)])
    assert 'report.html' in capsys.readouterr().out and page.is_report(out)
    out.write_text('<html>mine</html>')
    for run, name, message in (
        ('run', out, 'already exists'),
        ('gone', tmp_path / 'b.html', 'is not an existing folder'),
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(tmp_path / run), '--out', str(name)])
        assert stop.value.code == 2 and message in capsys.readouterr().err
    assert out.read_text() == '<html>mine</html>'
    main([str(tmp_path / 'run'), '--out', str(out), '--overwrite'])
    assert page.is_report(out)
    lines = []
    assert page.try_report(tmp_path / 'gone', lines.append) is None and 'not written' in lines[0]
