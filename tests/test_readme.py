"""What README shows runs: the loops on a small network, the config for two steps. So does data.md's unpacking."""

import re
import subprocess
import tarfile
from pathlib import Path

import torch
from helpers import batch, step
from mmengine.config import Config
from mmpretrain.registry import MODELS
from torchvision.models import resnet18

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / 'README.md').read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```python\n(.*?)^```', README, re.M | re.S)


def loop(number):
    torch.manual_seed(0)
    names = dict(net=resnet18(num_classes=3), images=torch.rand(2, 3, 32, 32), labels=torch.tensor([0, 2]))
    exec(BLOCKS[number], names)
    return names


def test_readme_has_at_most_900_words():
    assert len(README.split()) <= 900


def test_wrapper_and_its_state():
    names = loop(0)
    assert names['loss'].requires_grad and names['model'].module is names['net']
    model = names['model']
    exec(BLOCKS[3], state := dict(model=model, epoch=95, epochs=100))
    assert not model.enabled and set(state['state']) == {'model', 'rm'}
    model.rm.load_state_dict(state['state']['rm'])


def test_step_of_lightning():
    names = loop(0)
    exec(BLOCKS[2], names)
    assert (
        names['training_step'](type('Module', (), dict(model=names['model'])), (names['images'], names['labels']), 0)
        > 0
    )


def test_config_of_mmpretrain_trains(tmp_path):
    (tmp_path / 'mine.py').write_text(BLOCKS[4])
    config = Config.fromfile(tmp_path / 'mine.py')
    config.model.backbone.update(depth=18, base_channels=8, stem_channels=8)
    config.model.head.in_channels = 64
    config.model.data_preprocessor = config.data_preprocessor
    model = MODELS.build(config.model)
    for _ in range(2):
        losses = step(model, batch(2, (64, 64), num_classes=1000))
    assert losses['rm_lambda'] > 0 and losses['rm_kl'] > 0
    assert [hook.type for hook in config.custom_hooks] == ['ResetHistoryHook', 'RandomStateHook']


def test_archives_of_imagenet_unpack_as_data_md_says(tmp_path):
    (tmp_path / 'n01440764_1.JPEG').touch()
    (tmp_path / 'ILSVRC2012_val_00000001.JPEG').touch()
    for archive, name in (
        ('n01440764.tar', 'n01440764_1.JPEG'),
        ('ILSVRC2012_img_train.tar', 'n01440764.tar'),
        ('ILSVRC2012_img_val.tar', 'ILSVRC2012_val_00000001.JPEG'),
    ):
        with tarfile.open(tmp_path / archive, 'w') as tar:
            tar.add(tmp_path / name, name)
    blocks = re.findall(r'^```bash\n(.*?)^```', (ROOT / 'docs' / 'data.md').read_text(encoding='utf-8'), re.M | re.S)
    (commands,) = [block for block in blocks if 'ILSVRC2012' in block]
    subprocess.run(['bash', '-e', '-c', commands], cwd=tmp_path, check=True)
    found = {str(path.relative_to(tmp_path / 'data' / 'imagenet')) for path in (tmp_path / 'data').rglob('*.*')}
    assert found == {'train/n01440764/n01440764_1.JPEG', 'val/ILSVRC2012_val_00000001.JPEG'}
