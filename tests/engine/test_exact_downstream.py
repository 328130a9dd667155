"""Detectors and segmentors through the tools: resumed in mid-epoch is, bit for bit, never stopped."""

import pytest
import torch

from mmrm.cli import train
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.paths import find_config
from projects.demo.photographs import make_photographs

CASES = {
    'atss_cells': 'train_cfg = dict(max_epochs=2)',
    'pspnet_cells': """
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=8, val_interval=4)
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))
log_processor = dict(by_epoch=False)
""",
}
OPTIONS = [
    'train_dataloader.batch_size=4',
    'default_hooks.checkpoint.by_epoch=False',
    'default_hooks.checkpoint.interval=3',
    'default_hooks.checkpoint.max_keep_ckpts=-1',
]


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_mmdet_and_mmseg_runs_resume_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.setenv('MMRM_PHOTOGRAPHS', str(make_photographs(tmp_path / 'photographs', train=16, val=4)))
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.setattr('logging.raiseExceptions', True)
    config = tmp_path / f'{name}.py'
    config.write_text(f'_base_ = [{str(find_config(f"projects/demo/configs/{name}.py"))!r}]\n{CASES[name]}\n')

    def run(folder, *more, workers=0):
        options = [*more, '--cfg-options', *OPTIONS, f'train_dataloader.num_workers={workers}']
        train.main([str(config), '--work-dir', str(tmp_path / folder), '--device', 'cpu', *options])

    run('whole')
    run('parts', '--resume', str(tmp_path / 'whole' / 'iter_3.pth'), workers=2)
    one, other = (read_checkpoint(tmp_path / folder / 'iter_8.pth') for folder in ('whole', 'parts'))
    assert one['state_dict'].keys() == other['state_dict'].keys()
    for key, value in one['state_dict'].items():
        assert torch.equal(value, other['state_dict'][key]), key
    for state, again in zip(one['optimizer']['state'].values(), other['optimizer']['state'].values()):
        assert all(torch.equal(state[key], again[key]) for key in state if torch.is_tensor(state[key]))
    assert one['message_hub']['log_scalars']['train/loss'].data[0].tolist() == (
        other['message_hub']['log_scalars']['train/loss'].data[0].tolist()
    )
