"""A config's classifier is the one that mmengine's Runner would build."""

import pytest
import torch
from mmengine.runner import Runner
from tiny_run import BESIDE, write_run

from mmrm.utils.config import number_of_classes
from tools.analysis import classifiers


@pytest.mark.parametrize('more', ['', BESIDE], ids=['preprocessor inside the model', 'preprocessor beside the model'])
def test_the_preprocessor_is_the_runners(more, tmp_path):
    own = "model['data_preprocessor']['batch_augments']['augments']['alpha'] = 0.3\nmodel['head'].pop('num_classes')\n"
    config = write_run(tmp_path, images=4, more=own + more)
    cfg = classifiers.load_config(config, {'work_dir': str(tmp_path / 'work'), 'model.head.num_classes': 2})
    found, wanted = classifiers.build_model(cfg).data_preprocessor, Runner.from_cfg(cfg).model.data_preprocessor
    assert type(found) is type(wanted) and found.batch_augments.augments[0].alpha == 0.3
    assert torch.equal(found.mean, wanted.mean) and torch.equal(found.std, wanted.std)
    assert torch.equal(classifiers.build_preprocessor(cfg).mean, wanted.mean)
    augment, own = classifiers.recursive_mix_of(cfg)
    assert own and augment.alpha == 0.3
    assert number_of_classes(classifiers.load_config(config)) == 2  # the preprocessor says so
