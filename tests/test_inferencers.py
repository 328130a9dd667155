"""The toolboxes' own Inferencers take the shipped configs and checkpoints as mmengine writes them."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import save_checkpoint

from mmrm.utils.paths import shipped


@pytest.fixture
def restore_scope():
    yield
    init_default_scope('mmpretrain')


def checkpoint(config, folder, **meta):
    """A checkpoint of an untrained model, with what a Runner puts into its meta."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    from mmengine.registry import MODELS

    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    path = folder / 'epoch_1.pth'
    save_checkpoint(dict(meta=dict(dataset_meta=meta, cfg=cfg.pretty_text), state_dict=model.state_dict()), str(path))
    return str(path), model.eval()


def shrink(inferencer):
    """The configs' test sizes (1333 x 800, 2048 x 512) take long on a CPU."""
    for transform in inferencer.pipeline.transforms:
        if hasattr(transform, 'scale'):
            transform.scale = (64, 64)


def test_mmpretrain(tmp_path, restore_scope):
    from mmpretrain import ImageClassificationInferencer

    config = shipped() / 'configs/rm/resnet18_2xb64_cifar10.py'
    path, model = checkpoint(config, tmp_path, classes=[f'class {n}' for n in range(10)])
    inferencer = ImageClassificationInferencer(str(config), pretrained=path, device='cpu')
    image = np.random.RandomState(0).randint(0, 256, (32, 32, 3), np.uint8)
    result = inferencer(image)[0]
    assert result['pred_scores'].shape == (10,) and np.isclose(result['pred_scores'].sum(), 1, atol=1e-5)
    weights = inferencer.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    'name', ['atss_r50_fpn_1x_coco', pytest.param('atss_pvtv2-b1_fpn_1x_coco', marks=pytest.mark.slow)]
)
def test_mmdet(name, tmp_path, restore_scope):
    pytest.importorskip('mmdet')
    from mmdet.apis import DetInferencer

    config = shipped() / f'configs/rm/{name}.py'
    path, model = checkpoint(config, tmp_path, CLASSES=('thing',) * 80, PALETTE='random')
    inferencer = DetInferencer(model=str(config), weights=path, device='cpu', show_progress=False)
    weights = inferencer.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    image = np.random.RandomState(0).randint(0, 256, (48, 64, 3), np.uint8)
    shrink(inferencer)
    inferencer.model.bbox_head.test_cfg.score_thr = 0.0
    predictions = inferencer(image, return_datasamples=True)['predictions'][0]
    assert predictions.pred_instances.bboxes.shape[1] == 4


def test_mmseg(tmp_path, restore_scope):
    pytest.importorskip('mmseg')
    from mmseg.apis import MMSegInferencer

    config = shipped() / 'configs/rm/pspnet_r50_8xb2-80k_ade20k-512x512.py'
    path, model = checkpoint(
        config, tmp_path, classes=[f'class {n}' for n in range(150)], palette=[[n, n, n] for n in range(150)]
    )
    inferencer = MMSegInferencer(str(config), weights=path, device='cpu')
    weights = inferencer.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    image = np.random.RandomState(0).randint(0, 256, (64, 64, 3), np.uint8)
    shrink(inferencer)
    result = inferencer(image)['predictions']
    assert result.shape == (64, 64)
