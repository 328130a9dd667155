"""The figure tools as commands: they write what they are asked for, and tell a mistake in one line."""

import runpy
import sys
from pathlib import Path

import pytest
from run_logs import write_run as write_log
from tiny_run import write_trained

from tools.analysis import when_rm_helps

TOOLS = Path(__file__).parents[2] / 'tools' / 'analysis'


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a tool in this process; returns (exit code, stdout, stderr)."""

    def call(name, *words):
        monkeypatch.setattr(sys, 'argv', [name, *map(str, words)])
        monkeypatch.setattr(sys, 'path', list(sys.path))
        code = 0
        try:
            runpy.run_path(str(TOOLS / name if (TOOLS / name).is_file() else TOOLS.parent / name), run_name='__main__')
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_mixed_batches_and_cut_or_resize(run, tmp_path):
    config, _ = write_trained(tmp_path)
    out = tmp_path / 'a.svg'
    code, printed, _ = run('mixed_batches.py', config, out, '--iterations', 2)
    assert code == 0 and str(out) in printed and out.stat().st_size > 1000
    code, _, told = run('mixed_batches.py', config, out)
    assert code == 2 and 'already exists' in told
    assert run('cut_or_resize.py', config, tmp_path / 'a.png', '--iterations', 3)[0] == 0
    assert (tmp_path / 'a.png').stat().st_size > 1000


def test_effective_classes(run, tmp_path):
    words = ('--runs', 1, '--iterations', 2, '--size', 32, '--batch', 2)
    code, printed, _ = run('effective_classes.py', tmp_path / 'a.png', *words)
    assert code == 0 and 'baseline: 1.00 above 0.1' in printed and (tmp_path / 'a.png').exists()


def test_when_rm_helps_draws_every_row_of_the_page(run, tmp_path):
    assert run('when_rm_helps.py', tmp_path / 'a.png')[0] == 0 and (tmp_path / 'a.png').stat().st_size > 1000
    page = when_rm_helps.PAGE.read_text(encoding='utf-8')
    rows = when_rm_helps.read_rows(page)
    sources = [line.split('|')[-2] for line in page.splitlines() if line.startswith('|')][2:]
    assert len(rows) == len(sources) > 0
    for row, source in zip(rows, sources):
        assert {len(value) for value in row.values} == ({1} if 'published' in source else {3})
    table = ['| where | a | b | source |', '|---|---|---|---|', '| net, data | +1.50 | -0.9 (-2.3 to +0.5) | x-2 |']
    assert when_rm_helps.read_rows('\n'.join(table)) == [('net, data', ((1.5,), (-0.9, -2.3, 0.5)))]


def test_scale_sensitivity(run, tmp_path):
    config, checkpoint = write_trained(tmp_path)
    words = ('--model', 'RM', config, checkpoint, '--scales', 1, 0.5, '--table', tmp_path / 'a.csv', '--device', 'cpu')
    code, _, told = run('scale_sensitivity.py', tmp_path / 'a.png', *words)
    assert code == 0 and len((tmp_path / 'a.csv').read_text().splitlines()) == 5 and (tmp_path / 'a.png').exists()
    assert told == 'note: the test data has 8 images, fewer than 1000; all are used\n'
    code, _, told = run('scale_sensitivity.py', tmp_path / 'b.png')
    assert code == 2 and told.startswith('error: there is no model') and not (tmp_path / 'b.png').exists()


def test_cam(run, tmp_path):
    pytest.importorskip('pytorch_grad_cam')
    model = ('--model', 'RM', *write_trained(tmp_path), '--device', 'cpu')
    image = next((tmp_path / 'data').rglob('*.png'))
    assert run('cam.py', tmp_path / 'natural.png', *model, '--images', f'{image}=class0')[0] == 0
    assert (tmp_path / 'natural.png').exists()
    code, _, told = run('cam.py', tmp_path / 'c.png', *model)
    assert code == 2 and 'either --images or --mixed' in told


def test_sweep_curves(run, tmp_path):
    write_log(tmp_path / 'mine-compare' / 'rm_alpha=0.5' / 'seed0', [60.0])
    code, printed, _ = run('sweep_curves.py', tmp_path / 'a.png', tmp_path / 'mine-compare')
    assert code == 0 and '40.00' in printed and (tmp_path / 'a.png').exists()
    code, _, told = run('sweep_curves.py', tmp_path / 'b.png', tmp_path / 'none')
    assert code == 2 and 'no results. They come from: mmrm compare' in told


def test_efficiency(run, tmp_path):
    config, _ = write_trained(tmp_path)
    words = (config, '--size', 32, '--rounds', 1, '--timing-batch', 2, '--no-memory', '--device', 'cpu')
    code, _, _ = run('efficiency.py', *words, '--out', tmp_path / 'a.md', '--json', tmp_path / 'a.json')
    text = (tmp_path / 'a.md').read_text()
    assert code == 0 and text.startswith('| Config | Memory (MB) |') and '1.000 [1.000, 1.000]' in text
    code, _, told = run('efficiency.py', 'configs/rm/none.py')
    assert code == 2 and 'does not exist' in told
