"""The demo: its audit, runs that wait for each other, and tables that stand on the pages."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from stand_in import starts, use_stand_in

from mmrm.report import grids
from mmrm.report.page import is_report
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserError
from projects.demo import run as demo
from projects.demo.photographs import cell_sources

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv('MMRM_PHOTOGRAPHS', 'photographs')
    monkeypatch.setenv('MMRM_BACKBONE', 'random')
    return demo.plan(tmp_path / 'demo', quick=True)


def test_masks_of_single_cells_are_the_ellipses_in_their_boxes():
    sources = list(cell_sources(size=32))
    assert len(sources) == 405 and sources[0][0].shape == (32, 32, 3)
    shares = [mask.mean() for _, mask in sources]
    assert min(shares) > 0.1 and max(shares) < 0.7 and np.mean([mask[16, 16] for _, mask in sources]) > 0.99


def test_the_audit_has_a_picture_and_a_row_for_each_method(tmp_path):
    headers, rows, _ = demo.audit(tmp_path, 200)
    assert [row[0] for row in rows] == ['Mixup', 'CutMix', 'ResizeMix', 'RM'] and len(rows[0]) == len(headers)
    assert cv2.imread(str(tmp_path / 'label_audit.png')).std() > 10


def test_measured_tables_stand_on_their_pages():
    (audit, transfer) = demo.measured().values()
    page = (ROOT / 'docs' / 'label_audit.md').read_text()
    assert all(line in page for line in grids.render('markdown', *audit)[2:])
    page = (ROOT / 'projects' / 'transfer' / 'README.md').read_text()
    rows = [line.split(' | ') for line in page.splitlines() if line.startswith('| ')]
    wanted = [[row[0][2:], *row[6:8]] for row in rows if len(row) == 9 and row[1] in ('', 'frozen')]
    assert transfer[1] == wanted and len(wanted) == 5


def test_tables_fit_in_100_columns():
    for table in demo.measured().values():
        assert max(map(len, grids.render('terminal', *table))) <= 100


def test_detector_and_segmentor_start_from_the_cells_run(runs, tmp_path, monkeypatch):
    assert len({run.fingerprint for run in runs}) == 3
    for run in runs[1:]:
        run.metric = runs[0].metric  # what the stand-in logs
    use_stand_in(tmp_path, monkeypatch)
    (tmp_path / 'fail-demo').write_text('2')
    with pytest.raises(UserError, match='not finished'):
        demo.train(runs, 2)
    assert starts(runs[0]) == [0] and not runs[1].work_dir.exists()
    (tmp_path / 'fail-demo').unlink()
    demo.train(runs, 2)
    assert read_config(runs[1].config).model.init_cfg == dict(type='StrictPretrained', checkpoint=str(runs[0].work_dir))
    headers, rows, _ = demo.results_table(runs)
    assert [row[1] for row in rows] == ['10.0', '1000.0', '10.0'] and len(headers) == 3


@pytest.mark.slow
def test_the_quick_demo_end_to_end_and_what_is_done_stays(tmp_path):
    work = tmp_path / 'a folder, with a comma' / 'demo'
    command = [sys.executable, Path(demo.__file__), '--quick', '--work-dir', work]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    tables = (work / 'tables.md').read_text()
    assert '| RM, single cells: top-1 |' in tables and f'## {demo.ONE_RUN}\n' in tables
    assert 'StrictPretrained: backbone <- ' in (work / 'detector/console.log').read_text()
    for name in ('label_audit.png', 'detector/*/vis_data/vis_image/*.png'):
        assert all(str(path) in first.stdout for path in work.glob(name)) and len(list(work.glob(name))) == 1
    assert is_report(work / 'report.html')
    written = {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
    second = subprocess.run(command, cwd='/', capture_output=True, text=True)
    assert second.returncode == 0 and written == {path: path.stat().st_mtime_ns for path in work.rglob('*.p[nt][gh]')}
    assert json.loads((work / 'cells' / 'run.json').read_text())['epochs'] == 1
