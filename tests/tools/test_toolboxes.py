"""The toolboxes' own train.py takes the configs: what a run needs is in the config, not in the tools here."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmrm.utils.paths import shipped
from projects.demo.photographs import make_photographs


@pytest.fixture(scope='module')
def photographs(tmp_path_factory):
    return make_photographs(tmp_path_factory.mktemp('data') / 'photographs', train=8, val=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    'toolbox, config', [('mmpretrain', 'rm_cells'), ('mmdet', 'atss_cells'), ('mmseg', 'pspnet_cells')]
)
def test_a_config_trains_under_the_toolboxes_own_tool(toolbox, config, photographs, tmp_path):
    tool = Path(importlib.util.find_spec(toolbox).origin).parent / '.mim' / 'tools' / 'train.py'
    if not tool.is_file():
        pytest.skip(f'{toolbox} is installed without its tools')
    done = subprocess.run(
        [
            sys.executable,
            str(tool),
            str(shipped() / f'projects/demo/configs/{config}.py'),
            '--work-dir',
            str(tmp_path / 'run'),
            '--cfg-options',
            'train_cfg.max_epochs=1',
            'train_cfg.val_interval=1',
            'model.init_cfg=None',
        ],
        env={**os.environ, 'MMRM_PHOTOGRAPHS': str(photographs), 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / 'run' / 'epoch_1.pth').is_file()
