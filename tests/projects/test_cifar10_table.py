"""The experiment's table against scipy's own paired test, and its figure, from hand-made results."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel
from zoo_run import call_main

from mmrm.report import grids
from mmrm.utils.errors import UserFileError
from projects.cifar10 import table as experiment
from projects.cifar10.run import read_results

PROJECT = Path(experiment.__file__).parent

BASE, RM = [60.1, 61.4, 59.0, 60.8, 62.0], [62.0, 62.5, 62.2, 61.9, 64.4]


def result(method, seed, last, best=0.0, epochs=20):
    train = dict(loss=list(np.linspace(2, 0.1, epochs)))
    if method.startswith('rm'):
        train['lambda'] = [0.19] * epochs
    if method == 'rm':
        train.update(kl=[0.2] * epochs, kl_blind=[0.9] * epochs, consistency=[0.01] * epochs)
    test = {10: max(best, last - 1), epochs: last}
    named = dict(method=method, seed=seed, fingerprint=f'{method}{seed}')
    return dict(named, epochs=epochs, test=test, train=train, hours=0.5, settings={})


@pytest.fixture
def results():
    return [
        *(result('baseline', seed, value, best=62.5) for seed, value in enumerate(BASE)),
        *(result('rm', seed, value) for seed, value in enumerate(RM)),
        result('cutmix', 3, 61.0),
    ]


def test_differences_are_paired_by_seed(results):
    methods = experiment.by_method(results)
    found = experiment.difference(methods['rm'], methods['baseline'], experiment.last)
    expected = ttest_rel(RM, BASE).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert found.mean == pytest.approx(np.mean(np.subtract(RM, BASE))) and found.n == 5
    single = experiment.difference(methods['cutmix'], methods['baseline'], experiment.last)
    assert single == (pytest.approx(0.2), None, None, 1)
    assert experiment.difference(methods['cutmix'], {}) is None


def test_the_table_has_mean_deviation_count_and_difference(results):
    lines = {line[0]: line[1:] for line in experiment.table_lines(results)}
    assert list(lines) == ['baseline', 'CutMix', 'RM']
    assert lines['baseline'][:4] == ['5', f'{np.mean(BASE):.2f} ± {np.std(BASE, ddof=1):.2f}', '', '62.50 ± 0.00']
    assert lines['RM'][2].startswith('+1.94 (') and lines['CutMix'][:3] == ['1 of 5', '61.00', '+0.20']
    assert experiment.comparisons(results) == ['RM to CutMix: +0.90 (1 seed)']


def test_results_of_different_protocols_do_not_share_a_table(results):
    with pytest.raises(UserFileError, match='20 epochs and 30 epochs'):
        experiment.table_lines([*results, result('mixup', 0, 1.0, epochs=30)])
    with pytest.raises(UserFileError, match=r"20 epochs and 20 epochs \{'optim_wrapper.type'"):
        experiment.table_lines([*results, dict(result('mixup', 0, 1.0), settings={'optim_wrapper.type': 'Other'})])
    with pytest.raises(UserFileError, match='there are no results'):
        experiment.table_lines([])


def test_a_follow_up_stands_beside_the_same_seeds_of_the_protocol(results):
    values = [('rm', 1, 64.0), ('rm', 2, 63.0), ('cutmix', 2, 62.5)]
    longer = [dict(result(*each, epochs=40), settings={'a.b': 1}) for each in values]
    rows = experiment.follow_up_lines(results, {'longer': longer})
    assert len(rows[0]) == len(experiment.FOLLOW_UP_HEADERS)
    # CutMix has no seed 2 in the protocol; RM has both, and CutMix beside it in one.
    assert rows[0] == ['longer', 'CutMix', '2', '62.50', '', '', '0.100']
    expected = ttest_rel([64.0, 63.0], RM[1:3]).confidence_interval(0.95)
    interval = f'+1.15 ({expected.low:+.2f} to {expected.high:+.2f})'
    assert rows[1] == ['longer', 'RM', '1, 2', '63.50 ± 0.71', interval, '+0.50', '0.100']
    with pytest.raises(UserFileError, match='same have no settings of their own'):
        experiment.follow_up_lines(results, {'same': results[:1]})


def test_the_figure_shows_all_methods_and_the_mechanism(results):
    accuracy, loss, consistency, share = experiment.draw(results).axes
    legend = [text.get_text() for text in accuracy.get_legend().get_texts()]
    assert legend == ['baseline, n = 5', 'CutMix, n = 1', 'RM, n = 5']
    assert accuracy.lines[-1].get_ydata()[-1] == pytest.approx(np.mean(RM))
    assert len(loss.lines) == 3
    assert [line.get_ydata()[0] for line in consistency.lines] == [0.2, 0.9]
    assert share.lines[0].get_ydata()[0] == 0.19


@pytest.fixture
def tool(capsys):
    return functools.partial(call_main, experiment.main, capsys)


@pytest.fixture
def file(results, tmp_path):
    path = tmp_path / 'r.jsonl'
    path.write_text(''.join(json.dumps(each) + '\n' for each in results))
    return path


def test_the_tool_prints_writes_and_draws_and_overwrites_nothing(file, tmp_path, tool):
    code, printed, _ = tool(file, '--figure', tmp_path / 'f.png')
    assert code == 0 and '+1.94' in printed and 'RM to CutMix' in printed
    assert (tmp_path / 'f.png').stat().st_size > 10000
    assert tool(file, '--out', tmp_path / 't.md')[0] == 0
    assert (tmp_path / 't.md').read_text().startswith('| method | n |')
    code, _, error = tool(file, '--out', tmp_path / 't.md')
    assert code == 2 and 'already exists' in error


def test_the_tool_prints_follow_ups_after_the_table(file, tmp_path, tool):
    other, none = tmp_path / 'omega-1.jsonl', tmp_path / 'none.jsonl'
    other.write_text(json.dumps(dict(result('rm', 0, 63.5), settings={'model.head.omega': 1.0})))
    code, printed, _ = tool(file, '--follow-ups', other, '--format', 'markdown')
    assert code == 0 and printed.index('| RM | 5 |') < printed.index('| omega-1 | RM | 0 | 63.50 | +1.50 |')
    for words, message in (
        ((none,), f'no file of results {none}'),
        ((file, '--follow-ups', file, none), f'no file of results {none}'),
        ((file, '--follow-ups', other, other), 'two files have the same name'),
        ((file, '--follow-ups', other, '--format', 'csv'), 'csv holds one'),
    ):
        code, _, error = tool(*words)
        assert code == 2 and message in error


def test_published_tables_are_those_of_the_files():
    page = (PROJECT / 'README.md').read_text().splitlines()
    results = read_results(PROJECT / 'experiment.jsonl')
    others = {path.stem: read_results(path) for path in sorted(PROJECT.glob('follow_ups/*.jsonl'))}
    tables = (
        (experiment.HEADERS, experiment.table_lines(results)),
        (experiment.FOLLOW_UP_HEADERS, experiment.follow_up_lines(results, others)),
    )
    wanted = [line for table in tables for line in grids.render('markdown', *table) if '---' not in line]
    for sentence in experiment.comparisons(results):
        names, difference, seeds = re.fullmatch(r'(.*): (.*) \((\d+) seeds\)', sentence).groups()
        if names.startswith('RM to '):
            wanted.append(f'| {names[6:]} | {difference} | {seeds} |')
    assert len(wanted) == 16 and not [line for line in wanted if line not in page]
