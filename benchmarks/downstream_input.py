"""Where the time of a COCO and of an ADE20K training sample goes: milliseconds of each transform.

    python benchmarks/downstream_input.py

The pipelines are those of the shipped configs. Images, boxes, polygons and label maps are generated in the data sets'
usual sizes: COCO 640 x 480 with 7 objects, ADE20K 683 x 512. One thread; each transform runs on what the one before it
gave.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import TRANSFORMS, init_default_scope

from benchmarks.common import make_parser, show
from benchmarks.input_speed import make_jpegs
from mmrm.utils.paths import find_config
from tools.analysis.timing import interleaved

CONFIGS = {
    'COCO, ATSS': 'rm/atss_r50_fpn_1x_coco.py',
    'COCO, Mask R-CNN': 'rm/mask-rcnn_r50_fpn_1x_coco.py',
    'ADE20K, UperNet': 'rm/upernet_r50_8xb2-80k_ade20k-512x512.py',
}


def coco_samples(folder: Path, number: int) -> list:
    """Images with 7 polygons of 30 corners each, as the data set hands them to the pipeline."""
    rng, samples = np.random.RandomState(0), []
    for path in make_jpegs(folder, number, (640, 480), 160):
        instances = []
        for label in range(7):
            angles = np.sort(rng.uniform(0, 2 * np.pi, 30))
            centre, radius = rng.uniform([100, 100], [540, 380]), rng.uniform(20, 95)
            points = centre + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
            box = [*points.min(0), *points.max(0)]
            instances.append(dict(bbox=box, bbox_label=label, ignore_flag=0, mask=[points.flatten().tolist()]))
        samples.append(dict(img_path=str(path), img_id=0, height=480, width=640, instances=instances))
    return samples


def ade_samples(folder: Path, number: int) -> list:
    """Images with label maps of some ten classes."""
    rng, samples = np.random.RandomState(0), []
    for index, path in enumerate(make_jpegs(folder, number, (683, 512), 160)):
        labels = cv2.resize(rng.randint(0, 151, (4, 5)).astype(np.uint8), (683, 512), interpolation=cv2.INTER_NEAREST)
        cv2.imwrite(str(folder / f'{index}.png'), labels)
        samples.append(
            dict(
                img_path=str(path),
                seg_map_path=str(folder / f'{index}.png'),
                label_map=None,
                reduce_zero_label=True,
                seg_fields=[],
            )
        )
    return samples


def stages(cfg: Config, samples: list, rounds: int) -> dict:
    """Milliseconds of each transform."""
    init_default_scope(cfg.default_scope)
    inputs, found = samples, {}
    for settings in cfg.train_dataloader.dataset.pipeline:
        transform = TRANSFORMS.build(settings)

        def run(transform=transform, given=inputs):
            return [transform({key: copy_of(value) for key, value in sample.items()}) for sample in given]

        def copying(given=inputs):
            return [{key: copy_of(value) for key, value in sample.items()} for sample in given]

        seconds = interleaved({'run': run, 'copying': copying}, rounds)
        milliseconds = 1000 * (np.median(seconds['run']) - np.median(seconds['copying'])) / len(inputs)
        found[type(transform).__name__] = max(milliseconds, 0.0)
        inputs = run()
    return found


def copy_of(value):
    """Transforms may change an image in place; boxes and masks are made anew by each."""
    return value.copy() if isinstance(value, (np.ndarray, list)) else value


def main() -> None:
    parser = make_parser(__doc__, rounds=10)
    parser.add_argument('--images', type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    np.random.seed(0)
    rows = []
    for name, config in CONFIGS.items():
        cfg = Config.fromfile(find_config(config))
        with tempfile.TemporaryDirectory() as folder:
            make = ade_samples if 'ADE' in name else coco_samples
            found = stages(cfg, make(Path(folder), args.images), args.rounds)
        for transform, milliseconds in found.items():
            share = milliseconds / sum(found.values())
            rows.append([name, transform, f'{milliseconds:.2f}', f'{100 * share:.0f} %'])
        rows.append([name, 'all', f'{sum(found.values()):.2f}', ''])
    show(f'OpenCV {cv2.__version__}', ('data', 'transform', 'ms an image', 'share'), rows)


if __name__ == '__main__':
    main()
