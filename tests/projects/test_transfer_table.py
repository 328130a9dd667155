"""Every number of README.md's tables comes from the shipped file of results."""

from pathlib import Path

import mmdet
import pytest

from mmrm.report import grids
from projects.transfer import protocol as transfer
from projects.transfer import table as analysis

PAGE = Path(__file__).resolve().parents[2] / 'projects' / 'transfer' / 'README.md'
TABLES = {
    'downstream': (analysis.HEADERS, analysis.table_lines),
    'by size': (analysis.SIZE_HEADERS, analysis.size_lines),
    'alone': (analysis.ALONE_HEADERS, analysis.alone_lines),
}


@pytest.mark.parametrize('name', list(TABLES))
def test_the_published_tables_are_those_of_the_file(name):
    headers, make = TABLES[name]
    lines = grids.render('markdown', headers, make(analysis.shipped_results()))
    page = PAGE.read_text().splitlines()
    assert len(lines) > 2
    for line in [lines[0], *lines[2:]]:
        assert line in page, f'projects/transfer/README.md lacks: {line}'


@pytest.mark.skipif(mmdet.__version__ != '3.3.0', reason='the runs are on configs of mmdet 3.3.0')
@pytest.mark.parametrize('task, mode, method', [('atss-bccd', 'frozen', 'rm'), ('pspnet-scenes', 'tuned', 'baseline')])
def test_a_published_run_is_of_the_present_protocol(task, mode, method, tmp_path):
    trials = transfer.pretrainings([method], [0], tmp_path, 'cpu')
    [run] = transfer.plan(trials, [task], [mode], tmp_path, {})
    assert analysis.cell(analysis.shipped_results(), task, mode, method)[0]['fingerprint'] == run.fingerprint


@pytest.mark.slow
@pytest.mark.skipif(mmdet.__version__ != '3.3.0', reason='the runs are on configs of mmdet 3.3.0')
def test_the_published_runs_are_of_the_present_protocol(tmp_path):
    """A config that is changed after its runs is another protocol, and its results must go."""
    published = analysis.shipped_results()
    # One seed of each method: the seeds differ in nothing else, or the file would not be read.
    for method, seed in {result['method']: result['seed'] for result in published}.items():
        trials = transfer.pretrainings([method], [seed], tmp_path, 'cpu')
        runs = transfer.plan(trials, list(transfer.TASKS), list(transfer.MODES), tmp_path, {})
        left = transfer.unknown(runs, transfer.RESULTS)  # raises if a result is of other settings
        assert len(runs) - len(left) == sum((row['method'], row['seed']) == (method, seed) for row in published)


def test_the_command_prints_the_published_table_where_there_is_no_other(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(analysis, 'home', lambda: tmp_path)
    analysis.main(['--format', 'markdown'])
    assert capsys.readouterr().out.splitlines()[2] in PAGE.read_text().splitlines()
