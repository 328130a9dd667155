"""The notebook that reproduces a row: its text by what the package knows, and a run of it at small scale."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from stand_in import starts, use_stand_in

from mmrm.cli import jobs
from mmrm.report.published import TABLES
from mmrm.report.results import read_results
from mmrm.report.runs import read_run, sessions
from mmrm.utils.errors import UserFileError
from tools.analysis import efficiency

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / 'notebooks' / 'reproduce_cifar100.ipynb'
ROW = 'resnet18_2xb64_cifar100'
# In the place of CIFAR-100, whose files have known checksums.
TINY = """
import numpy as np
from mmengine.dataset import BaseDataset
from mmpretrain.datasets.categories import CIFAR100_CATEGORIES
from mmpretrain.registry import DATASETS

@DATASETS.register_module()
class TinyCIFAR100(BaseDataset):
    METAINFO = dict(classes=CIFAR100_CATEGORIES)

    def __init__(self, split='train', **kwargs):
        super().__init__(ann_file='', **kwargs)

    def load_data_list(self):
        images = np.random.RandomState(0).randint(0, 256, (8, 32, 32, 3), np.uint8)
        return [dict(img=image, gt_label=label) for label, image in enumerate(images)]

    def get_gt_labels(self):
        return np.arange(len(self))
"""


def cells():
    return [dict(cell, source=''.join(cell['source'])) for cell in json.loads(NOTEBOOK.read_text())['cells']]


def cell_with(words):
    (source,) = [cell['source'] for cell in cells() if cell['cell_type'] == 'code' and words in cell['source']]
    return source


def parameters():
    """The variables of the cell of parameters."""
    names = {}
    exec(cell_with('METHODS ='), names)
    return names


def test_notebook_is_valid():
    nbformat = pytest.importorskip('nbformat')
    nbformat.validate(nbformat.read(NOTEBOOK, 4))
    assert not any(cell.get('outputs') or cell.get('execution_count') for cell in cells())


def test_notebook_names_the_published_numbers():
    published = {
        row.configs[0].split('/')[1]: row.published[0]
        for row in TABLES['cifar100'].rows
        if row.configs and row.configs[0].endswith(f'/{ROW}.py')
    }
    text = cells()[0]['source']
    assert all(f'**{published[method]:.2f}**' in text for method in ('baseline', 'cutmix', 'rm'))


def test_estimates_come_from_counted_operations_and_parameters():
    config = f'configs/rm/{ROW}.py'
    measured = efficiency.measure([config], rounds=0, memory=False)[config]
    multiply_adds, size = measured.flops, 8 * measured.train_params  # of a checkpoint: weights and momentum
    operations = 2 * multiply_adds * 200 * (3 * 50_000 + 10_000)
    t4, a100 = (operations / (peak / 3) / 3600 for peak in (8.1e12, 19.5e12))
    text, readme = cells()[0]['source'], (ROOT / 'README.md').read_text()
    assert f'{t4:.1f} hours per run on a T4, {a100:.1f} on an A100' in text
    assert f'{operations:.1e}'.replace('+', '') in text and f'{multiply_adds / 1e9:.2f} G multiply-adds' in text
    assert f"notebooks/reproduce_cifar100.ipynb) trains CIFAR-100's, an estimated {t4:.1f} T4 hours per run" in readme
    every = parameters()['OPTIONS']['default_hooks.checkpoint.interval']
    count = 200 // every
    assert f'at most {every} epochs are repeated, an estimated {t4 / count * 60:.0f} minutes on a T4' in text
    assert f'a checkpoint has {size / 1e6:.0f} MB. A run writes one every {every} epochs, {count} in all' in text
    assert f'{size * count / 1e9:.1f} GB per run in all, {size * count * 9 / 1e9:.1f} GB for nine runs' in text


@pytest.fixture
def set_up(tmp_path, monkeypatch):
    """The cell that sets up, run in a folder with other settings; returns its variables."""
    source = cell_with('if not REPOSITORY')
    monkeypatch.setattr(sys, 'path', [*sys.path])
    monkeypatch.delitem(sys.modules, 'google.colab', raising=False)

    def run(**settings):
        monkeypatch.chdir(tmp_path)
        names = dict(dict(REPOSITORY='', FOLDER='work_dirs', INSTALL=False), **settings)
        exec(source, names)
        return names

    return run


def test_set_up_clones_what_repository_names(set_up, tmp_path):
    with pytest.raises(SystemExit, match='set REPOSITORY'):
        set_up()
    (tmp_path / 'source' / 'tools').mkdir(parents=True)
    (tmp_path / 'source' / 'tools' / 'train.py').touch()
    git = ['git', '-C', str(tmp_path / 'source'), '-c', 'user.name=a', '-c', 'user.email=a@b.c']
    for words in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'all']):
        subprocess.run([*git, *words], check=True)
    names = set_up(REPOSITORY=str(tmp_path / 'source'))
    assert Path.cwd() == names['code'] == tmp_path / 'mmrm' and (names['code'] / 'tools' / 'train.py').is_file()
    assert set_up()['code'] == tmp_path / 'mmrm'  # again, in the same runtime


def test_on_colab_the_drive_is_mounted_or_a_folder_that_is_lost_is_named(set_up, tmp_path, monkeypatch, capsys):
    mounted = []
    drive = SimpleNamespace(mount=mounted.append)
    monkeypatch.setitem(sys.modules, 'google', SimpleNamespace())
    monkeypatch.setitem(sys.modules, 'google.colab', SimpleNamespace(drive=drive))
    (tmp_path / 'mmrm' / 'tools').mkdir(parents=True)
    (tmp_path / 'mmrm' / 'tools' / 'train.py').touch()
    set_up(FOLDER='/content/drive/MyDrive/mmrm')
    assert mounted == ['/content/drive'] and not capsys.readouterr().out
    set_up(FOLDER='work_dirs')
    assert 'work_dirs is lost when this runtime ends' in capsys.readouterr().out


@pytest.fixture
def train(tmp_path, monkeypatch):
    """The cell that trains, run with the notebook's parameters or others; returns the jobs."""

    def run(**settings):
        monkeypatch.chdir(ROOT)
        names = dict(parameters(), Path=Path, FOLDER=tmp_path / 'runs', SEEDS=[0], **settings)
        exec(cell_with('run_all'), names)
        return names['runs']

    return run


def test_finished_runs_are_skipped_and_interrupted_ones_resume(train, tmp_path, monkeypatch):
    use_stand_in(tmp_path, monkeypatch, interval=20)
    interrupted = tmp_path / 'runs' / 'rm' / ROW / 'seed0'
    interrupted.mkdir(parents=True)
    (interrupted / 'epoch_60.pth').touch()
    for _ in range(2):  # the second time nothing is trained
        runs = train(METHODS=['baseline', 'rm'])
        assert [starts(run) for run in runs] == [[0], [60]] and runs[1].work_dir == interrupted
    (tmp_path / 'runs' / 'cutmix').mkdir()
    (tmp_path / 'runs' / 'cutmix' / f'fail-{ROW}').write_text('2 no GPU')
    with pytest.raises(SystemExit, match='Not all are finished'):
        train(METHODS=['cutmix', 'rm'])


def test_runs_with_other_options_in_the_folder_are_refused(train, tmp_path, monkeypatch):
    use_stand_in(tmp_path, monkeypatch, interval=20)
    (run,) = train(METHODS=['rm'])
    assert run.options['train_dataloader.batch_size'] == 128
    for other in (dict(OPTIONS={**run.options, 'train_dataloader.batch_size': 64}), dict(ARGUMENTS=['--amp'])):
        with pytest.raises(UserFileError, match='seed0 holds a run with other settings'):
            train(METHODS=['cutmix', 'rm'], **other)
    assert starts(run) == [0] and not (tmp_path / 'runs' / 'cutmix').exists()  # before the first run starts


@pytest.mark.slow
def test_notebook_resumes_a_killed_run_and_writes_the_results(train, tmp_path, monkeypatch):
    nbformat = pytest.importorskip('nbformat')
    from nbclient import NotebookClient

    (tmp_path / 'tiny_cifar.py').write_text(TINY)
    data = tmp_path / 'data' / 'cifar100' / 'cifar-100-python'
    data.mkdir(parents=True)
    (data / 'train').touch()
    monkeypatch.setenv('MMRM_DATA', str(tmp_path / 'data'))
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')]))
    options = {**parameters()['OPTIONS'], 'default_hooks.checkpoint.interval': 1, 'train_dataloader.batch_size': 4}
    options.update({f'{part}_dataloader.dataset.type': 'tiny_cifar.TinyCIFAR100' for part in ('train', 'val', 'test')})
    for part in ('train', 'val'):
        options.update({f'{part}_dataloader.num_workers': 0, f'{part}_dataloader.persistent_workers': False})
    options.update({'train_cfg.max_epochs': 2, 'model.head.in_channels': 64})
    options.update({'model.backbone.stem_channels': 8, 'model.backbone.base_channels': 8})
    settings = dict(METHODS=['baseline', 'rm'], OPTIONS=options, ARGUMENTS=['--device', 'cpu'])
    with monkeypatch.context() as patch:  # the jobs alone, none of them started
        patch.setattr(jobs, 'run_all', lambda runs: {run.name: 'finished' for run in runs})
        _, interrupted = train(**settings)
    folder = interrupted.work_dir
    killed = jobs.begin(interrupted)
    while not (folder / 'epoch_1.pth').exists():
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()

    notebook = nbformat.read(NOTEBOOK, 4)
    (place,) = [n for n, cell in enumerate(notebook.cells) if 'parameters' in cell.metadata.get('tags', [])]
    settings.update(FOLDER=str(tmp_path / 'runs'), SEEDS=[0], NAME='mine', INSTALL=False)
    source = '\n'.join(f'{name} = {value!r}' for name, value in settings.items())
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(source))
    # The table leaves runs of other data out, by the number of samples.
    forget = "[path.unlink() for path in FOLDER.rglob('data.json')]"
    notebook.cells.insert(-2, nbformat.v4.new_code_cell(forget))
    client = NotebookClient(notebook, timeout=900, resources=dict(metadata=dict(path=str(NOTEBOOK.parent))))
    client.execute()
    shown = ''.join(output.get('text', '') for output in notebook.cells[-2].outputs)
    assert '18.64' in shown and '2 of 200' not in shown
    runs = read_results(tmp_path / 'runs' / 'mine.json')
    assert {config.split('/')[1] for config in runs} == {'baseline', 'rm'}
    assert read_run(folder).finished and sorted(read_run(folder).validations) == [1, 2]
    assert len(sessions(folder)) == 2  # the killed one and the one that resumed it
    assert sorted(path.name for path in folder.glob('*.pth')) == ['epoch_1.pth', 'epoch_2.pth']  # and no best one
    assert json.loads((tmp_path / 'runs' / 'mine.json').read_text())['runs'][0]['length'] == 2
