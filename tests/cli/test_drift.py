"""--resume with other settings: the log lists them, and training goes on."""

import re
import shutil
from pathlib import Path

import pytest
from tiny_run import write_run

from mmrm.cli import train
from mmrm.utils.checkpoints import read_checkpoint

TOOLS = Path(__file__).parents[2] / 'tools'


pytestmark = pytest.mark.usefixtures('environment')


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run of one epoch: (config, work dir)."""
    folder = tmp_path_factory.mktemp('trained')
    config, work = write_run(folder, epochs=1), folder / 'work'
    train.main([str(config), '--work-dir', str(work), '--device', 'cpu'])
    return config, work


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained[1], tmp_path / 'work')
    return trained[0], tmp_path / 'work'


def resumed(config, work, *options) -> str:
    """The log of a run that goes on for a second epoch."""
    options = ('train_cfg.max_epochs=2', *options)
    train.main([str(config), '--work-dir', str(work), '--resume', '--cfg-options', *options])
    return max(work.glob('*/*.log'), key=lambda path: path.stat().st_mtime).read_text()


def test_a_resume_with_other_settings_lists_them_and_goes_on(run):
    log = resumed(
        *run,
        'train_dataloader.batch_size=4',
        'optim_wrapper.optimizer.lr=0.7',
        'model.head.omega=0.1',
        'train_dataloader.num_workers=0',
        'default_hooks.logger.interval=2',
    )
    listed = log.partition('was trained with other settings')[2].partition('Training goes on')[0]
    assert re.findall(r'^  (\S+: \S+ -> \S+)', listed, re.M) == [
        'model.head.omega: 0.5 -> 0.1',
        'train_dataloader.batch_size: 2 -> 4',
        'optim_wrapper.optimizer.lr: 0.01 -> 0.7',
    ]
    # What is said to have no effect has none, and the other settings have theirs: 12 images, 4 at a time.
    assert 'lr: 0.01 -> 0.7 (no effect' in listed
    steps = re.findall(r'Epoch\(train\) +\[2\]\[ *\d+/(\d+)\] +lr: (\S+)', log)
    assert steps and {(number, float(lr)) for number, lr in steps} == {('3', 0.01)}


def test_a_longer_run_with_the_same_settings_is_not_warned_of(run):
    assert 'other settings' not in resumed(*run)
    remembered = read_checkpoint(run[1] / 'epoch_2.pth')['meta']['mmrm_run']
    assert remembered['processes'] == 1 and remembered['settings']['train_dataloader']['batch_size'] == 2
