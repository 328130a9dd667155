"""Metrics by class in the log."""

import math

import pytest
import torch
from mmengine.registry import METRICS, DefaultScope, init_default_scope

import mmrm.models  # noqa: F401 (registers)


@pytest.fixture
def metric():
    DefaultScope._instance_dict.clear()
    init_default_scope('mmseg')
    metric = METRICS.build(dict(type='ClasswiseIoUMetric', iou_metrics=['mIoU']))
    metric.dataset_meta = dict(classes=('wall', 'traffic light', 'sea'))
    return metric


def areas(predicted, truth):
    """What IoUMetric keeps of one image."""
    from mmseg.evaluation import IoUMetric

    return IoUMetric.intersect_and_union(torch.tensor(predicted), torch.tensor(truth), 3, 255)


def test_the_iou_of_every_class_is_a_number_beside_the_mean(metric):
    images = [areas([[0, 0], [1, 1]], [[0, 1], [1, 1]]), areas([[0, 0], [1, 2]], [[0, 0], [1, 2]])]
    found = metric.compute_metrics(images)
    assert found['IoU/wall'] == 75.0 and found['IoU/traffic light'] == 75.0 and found['IoU/sea'] == 100.0
    assert found['mIoU'] == pytest.approx(83.33) and {'mAcc', 'aAcc'} <= set(found)


def test_the_iou_of_an_absent_class_is_nan_and_not_in_the_mean(metric):
    found = metric.compute_metrics([areas([[0, 1]], [[0, 1]])])
    assert math.isnan(found['IoU/sea']) and found['mIoU'] == 100.0
