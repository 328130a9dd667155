"""The four detectors of the paper, as mmdet ships them but narrow, with whatever serves mmcv.ops here."""

import pytest
import torch
import torchvision
from mmengine.config import Config
from mmengine.registry import DefaultScope

pytest.importorskip('mmdet')
demo_mm_inputs = pytest.importorskip('mmdet.testing').demo_mm_inputs
MODELS = pytest.importorskip('mmdet.registry').MODELS
pytest.importorskip('mmdet.models')

CLASSES, SIZE = 2, 64
NARROW = dict(
    in_channels={256: 32},
    out_channels={256: 32},
    feat_channels={256: 32},
    conv_out_channels={256: 32},
    fc_out_channels={1024: 64},
    num_classes={80: CLASSES, 183: 3},
    stacked_convs={4: 1},
    num_convs={4: 1},
    nms_pre={1000: 100, 2000: 100},
    max_per_img={1000: 30, 2000: 30, 100: 30},
    num={512: 32},
)


def narrow(node) -> None:
    """Make a model config small in place: widths, depths and numbers of boxes."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, (dict, list)):
            narrow(value)
        elif isinstance(value, int) and value in NARROW.get(key, {}):
            node[key] = NARROW[key][value]


def build(base: str, tmp_path):
    """The model of a shipped config on an 18-layer ResNet with 8 channels in its first stage."""
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = ['mmdet::{base}']")
    model = Config.fromfile(config).model
    narrow(model)
    model.backbone.update(depth=18, base_channels=8, init_cfg=None, zero_init_residual=False)
    model.neck.in_channels = [8, 16, 32, 64]
    (model.test_cfg.get('rcnn') or model.test_cfg).score_thr = 0.0
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(model)
        model.init_weights()
    return model


@pytest.mark.parametrize(
    'base, threshold, masks, stuff',
    [
        ('atss/atss_r50_fpn_1x_coco.py', 0.6, False, False),
        ('gfl/gfl_r50_fpn_1x_coco.py', 0.6, False, False),
        ('mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', 0.5, True, False),
        ('htc/htc_r50_fpn_1x_coco.py', 0.5, True, True),
    ],
)
def test_detector_trains_and_predicts(base, threshold, masks, stuff, tmp_path):
    model = build(base, tmp_path)
    batch = demo_mm_inputs(2, [(3, SIZE, SIZE)] * 2, [2, 2], num_classes=CLASSES, with_mask=masks, with_semantic=stuff)

    model.train()
    data = model.data_preprocessor(batch, training=True)
    loss, logs = model.parse_losses(model(**data, mode='loss'))
    assert loss.isfinite() and len(logs) > 2
    loss.backward()
    idle = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert model.backbone.layer4[-1].conv2.weight.grad.abs().sum() > 0

    model.eval()
    data = model.data_preprocessor(batch, training=False)
    with torch.no_grad():
        results = model(**data, mode='predict')
    for result in results:
        found = result.pred_instances
        assert 0 < len(found) <= 30
        assert torch.equal(found.scores, found.scores.sort(descending=True).values)
        for label in range(CLASSES):
            boxes = found.bboxes[found.labels == label]
            overlap = torchvision.ops.box_iou(boxes, boxes).fill_diagonal_(0)
            assert (overlap <= threshold + 1e-4).all()  # nms has been here; 1e-4: it ran before the boxes were rescaled
        if masks:
            assert found.masks.shape == (len(found), SIZE, SIZE)
