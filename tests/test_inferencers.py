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


def classifier(config, path):
    from mmpretrain import ImageClassificationInferencer

    inferencer = ImageClassificationInferencer(config, pretrained=path, device='cpu')
    scores = inferencer(image())[0]['pred_scores']
    assert scores.shape == (10,) and np.isclose(scores.sum(), 1, atol=1e-5)
    return inferencer


def detector(config, path):
    from mmdet.apis import DetInferencer

    inferencer = DetInferencer(model=config, weights=path, device='cpu', show_progress=False)
    shrink(inferencer)
    inferencer.model.bbox_head.test_cfg.score_thr = 0.0
    found = inferencer(image(), return_datasamples=True)['predictions'][0]
    assert found.pred_instances.bboxes.shape[1] == 4
    return inferencer


def segmentor(config, path):
    from mmseg.apis import MMSegInferencer

    inferencer = MMSegInferencer(config, weights=path, device='cpu')
    shrink(inferencer)
    assert inferencer(image())['predictions'].shape == (64, 64)
    return inferencer


def image():
    return np.random.RandomState(0).randint(0, 256, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    'toolbox, run, name, classes',
    [
        ('mmpretrain', classifier, 'resnet18_2xb64_cifar10', 10),
        ('mmdet', detector, 'atss_r50_fpn_1x_coco', 80),
        pytest.param('mmdet', detector, 'atss_pvtv2-b1_fpn_1x_coco', 80, marks=pytest.mark.slow),
        ('mmseg', segmentor, 'pspnet_r50_8xb2-80k_ade20k-512x512', 150),
    ],
)
def test_an_inferencer_predicts_with_the_weights_of_the_checkpoint(
    toolbox, run, name, classes, tmp_path, restore_scope
):
    pytest.importorskip(toolbox)
    config = shipped() / f'configs/rm/{name}.py'
    names = [f'class {n}' for n in range(classes)]
    meta = dict(CLASSES=tuple(names), PALETTE='random') if toolbox == 'mmdet' else dict(classes=names)
    palette = dict(palette=[[n, n, n] for n in range(classes)]) if toolbox == 'mmseg' else {}
    path, model = checkpoint(config, tmp_path, **meta, **palette)
    weights = run(str(config), path).model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
