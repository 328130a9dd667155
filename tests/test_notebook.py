"""The notebook that reproduces a row: its text by what the package knows, and a run of it at small scale."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmrm.report.published import TABLES
from mmrm.report.results import read_results
from mmrm.report.runs import read_run, sessions

nbformat = pytest.importorskip('nbformat')
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


def test_notebook_is_valid_and_names_the_published_numbers():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert not any(cell.get('outputs') or cell.get('execution_count') for cell in notebook.cells)
    published = {
        row.configs[0].split('/')[1]: row.published[0]
        for row in TABLES['cifar100'].rows
        if row.configs and row.configs[0].endswith(f'/{ROW}.py')
    }
    text = notebook.cells[0].source
    assert all(f'**{published[method]:.2f}**' in text for method in ('baseline', 'cutmix', 'rm'))
    readme = (ROOT / 'README.md').read_text()
    assert 'notebooks/reproduce_cifar100.ipynb' in readme


@pytest.mark.slow
def test_notebook_resumes_a_killed_run_and_writes_the_results(tmp_path, monkeypatch):
    from nbclient import NotebookClient

    (tmp_path / 'tiny_cifar.py').write_text(TINY)
    data = tmp_path / 'data' / 'cifar100' / 'cifar-100-python'
    data.mkdir(parents=True)
    (data / 'train').touch()
    monkeypatch.setenv('MMRM_DATA', str(tmp_path / 'data'))
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')]))
    options = [
        *(f'{part}_dataloader.dataset.type=tiny_cifar.TinyCIFAR100' for part in ('train', 'val', 'test')),
        *('train_dataloader.batch_size=4', 'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0'),
        *('train_dataloader.persistent_workers=False', 'val_dataloader.persistent_workers=False'),
        *('train_cfg.max_epochs=2', 'model.backbone.stem_channels=8', 'model.backbone.base_channels=8'),
        'model.head.in_channels=64',
    ]
    folder = tmp_path / 'runs' / 'rm' / ROW / 'seed0'
    command = [sys.executable, 'tools/train.py', f'configs/rm/{ROW}.py', '--work-dir', folder, '--seed', '0']
    killed = subprocess.Popen([*command, '--device', 'cpu', '--cfg-options', *options], cwd=ROOT)
    while not (folder / 'epoch_1.pth').exists():
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()

    notebook = nbformat.read(NOTEBOOK, 4)
    (place,) = [n for n, cell in enumerate(notebook.cells) if 'parameters' in cell.metadata.get('tags', [])]
    settings = dict(
        FOLDER=str(tmp_path / 'runs'),
        METHODS=['baseline', 'rm'],
        SEEDS=[0],
        NAME=str(tmp_path / 'mine'),
        INSTALL=False,
        OPTIONS=options,
        ARGUMENTS=['--device', 'cpu'],
    )
    source = '\n'.join(f'{name} = {value!r}' for name, value in settings.items())
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(source))
    # The table leaves runs of other data out, by the number of samples.
    forget = "[path.unlink() for path in FOLDER.rglob('data.json')]"
    notebook.cells.insert(-2, nbformat.v4.new_code_cell(forget))
    client = NotebookClient(notebook, timeout=900, resources=dict(metadata=dict(path=str(NOTEBOOK.parent))))
    client.execute()
    shown = ''.join(output.get('text', '') for output in notebook.cells[-2].outputs)
    assert '18.64' in shown and '2 of 200' not in shown
    runs = read_results(tmp_path / 'mine.json')
    assert {config.split('/')[1] for config in runs} == {'baseline', 'rm'}
    assert read_run(folder).finished and sorted(read_run(folder).validations) == [1, 2]
    assert len(sessions(folder)) == 2  # the killed one and the one that resumed it
    assert json.loads((tmp_path / 'mine.json').read_text())['runs'][0]['length'] == 2
