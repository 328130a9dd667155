"""COCO's average precision with size ranges of one's own: those of COCO (32 and 96 pixels) do not fit small scenes."""

from typing import Sequence

from mmdet.evaluation.metrics import CocoMetric, coco_metric
from mmdet.registry import METRICS

from mmrm.utils.errors import UserValueError


@METRICS.register_module()
class SizedCocoMetric(CocoMetric):
    """mmdet's CocoMetric, whose ``bbox_mAP_s``, ``_m`` and ``_l`` divide at the given sides.

    Args:
        sides (Sequence[int]): Two sides of a square in pixels: where medium begins, and where large begins.
        **kwargs: As for :class:`mmdet.evaluation.CocoMetric`.
    """

    def __init__(self, sides: Sequence[int] = (32, 96), **kwargs):
        super().__init__(**kwargs)
        if len(sides) != 2 or not 0 < sides[0] < sides[1]:
            raise UserValueError(f'sides={sides!r} must be two rising lengths in pixels, such as (32, 96).')
        first, second = (side**2 for side in sides)
        self.ranges = [[0, 1e10], [0, first], [first, second], [second, 1e10]]

    def compute_metrics(self, results: list) -> dict:
        ranges = self.ranges

        class Sized(coco_metric.COCOeval):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.params.areaRng = ranges

        # mmdet has no setting for the ranges and makes its evaluator of this name.
        coco_metric.COCOeval, usual = Sized, coco_metric.COCOeval
        try:
            return super().compute_metrics(results)
        finally:
            coco_metric.COCOeval = usual
