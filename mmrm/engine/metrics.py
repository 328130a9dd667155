"""Metrics by class, as numbers in the log: mmdet has a switch for them (``classwise``), mmseg only prints a table."""

from typing import Dict

from mmengine.registry import METRICS

IOU_OF_CLASS = 'IoU/'  # and the name of the class


@METRICS.register_module()
def ClasswiseIoUMetric(**settings):
    """mmseg's ``IoUMetric`` that also gives the IoU of every class in percent, as ``IoU/<class>``.

    A class that neither the truth nor a prediction has is NaN. It is a function so that mmrm does not import mmseg
    before it is used.

    Args:
        **settings: Those of ``IoUMetric``.
    """
    from mmseg.evaluation import IoUMetric

    class Classwise(IoUMetric):
        def compute_metrics(self, results: list) -> Dict[str, float]:
            metrics = super().compute_metrics(results)
            if not self.format_only:
                intersect, union = (sum(areas).double() for areas in list(zip(*results))[:2])
                for name, share in zip(self.dataset_meta['classes'], (100 * intersect / union).tolist()):
                    metrics[f'{IOU_OF_CLASS}{name}'] = round(share, 2)
            return metrics

    return Classwise(**settings)
