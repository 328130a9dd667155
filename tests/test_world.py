"""The generated world is the same every time, whole or absent, and what the stock dataset classes expect."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope
from world import CLASSES, STUFF, THINGS, make_world

# 4 of 10 scenes: number 3 of 8 has a crowd.
SMALL = dict(classification=(16, 8), scenes=(10, 5), image_size=32, scene_size=(96, 64))


@pytest.fixture(scope='module')
def world(tmp_path_factory) -> Path:
    return make_world(tmp_path_factory.mktemp('data') / 'world', **SMALL)


def contents(root: Path) -> dict:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob('*')) if p.is_file()}


def coco_dataset(world: Path, split: str, **kwargs):
    from mmdet.datasets import CocoDataset

    init_default_scope('mmdet')
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', with_bbox=True, with_mask=True, with_seg=True),
        dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
    ]
    return CocoDataset(
        data_root=str(world / 'coco'),
        ann_file=f'annotations/instances_{split}2017.json',
        data_prefix=dict(img=f'{split}2017/', seg=f'stuffthingmaps/{split}2017/'),
        pipeline=pipeline,
        **kwargs,
    )


def ade_dataset(world: Path, split: str, **kwargs):
    from mmseg.datasets import ADE20KDataset

    init_default_scope('mmseg')
    return ADE20KDataset(
        data_root=str(world / 'ade'),
        data_prefix=dict(img_path=f'images/{split}', seg_map_path=f'annotations/{split}'),
        pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')],
        **kwargs,
    )


# ------------------------------------------------------------------------------------------------ the generator itself
def test_the_same_arguments_give_the_same_bytes(world, tmp_path):
    again = contents(make_world(tmp_path / 'again', **SMALL))
    assert again == contents(world)
    other = contents(make_world(tmp_path / 'other', seed=1, **SMALL))
    assert other.keys() == again.keys()
    images = [name for name in again if name.endswith('.jpg')]
    assert all(other[name] != again[name] for name in images)


def test_an_image_does_not_depend_on_how_many_there_are(world, tmp_path):
    fewer = contents(make_world(tmp_path / 'fewer', **{**SMALL, 'classification': (9, 1), 'scenes': (4, 2)}))
    more = contents(world)
    assert all(data == more[name] for name, data in fewer.items() if name.endswith(('.jpg', '.png')))


# ------------------------------------------------------------------------------------------------ through the toolboxes
def test_mmpretrain_reads_the_folders(world):
    from mmpretrain.datasets import CustomDataset, ImageNet

    init_default_scope('mmpretrain')
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    for split, count in (('train', 16), ('val', 8)):
        dataset = CustomDataset(data_root=str(world / 'classification'), data_prefix=split, pipeline=pipeline)
        assert len(dataset) == count
        assert sorted(dataset.metainfo['classes']) == sorted(name.replace(' ', '_') for name in CLASSES)
        labels = [int(dataset[i]['data_samples'].gt_label) for i in range(count)]
        assert np.bincount(labels).tolist() == [count // 8] * 8
        assert dataset[0]['inputs'].shape == (3, 32, 32)
    classes = sorted(CLASSES)
    dataset = ImageNet(data_root=str(world / 'classification'), data_prefix='val', metainfo=dict(classes=classes))
    assert len(dataset) == 8


def test_names_and_numbers_are_those_of_coco_coco_stuff_and_ade20k(world):
    from mmdet.datasets import CocoDataset
    from mmseg.datasets import ADE20KDataset, COCOStuffDataset

    ade = ADE20KDataset.METAINFO['classes']
    assert all(ade[value - 1] == name for name, (_, value) in {**THINGS, **STUFF}.items())
    stuff = COCOStuffDataset.METAINFO['classes'][80:]  # COCO-Stuff's ids 92 to 182
    assert all(stuff[number - 92].split('-')[0] == name for name, (number, _) in STUFF.items())
    categories = json.loads((world / 'coco/annotations/instances_val2017.json').read_text())['categories']
    assert tuple(c['name'] for c in categories) == CocoDataset.METAINFO['classes']
    numbers = {c['name']: c['id'] for c in categories}
    known = dict(person=1, umbrella=28, bed=65, toilet=70, tv=72, book=84, toothbrush=90)
    assert {name: numbers[name] for name in known} == known
    assert all(numbers[name] == number for name, (number, _) in THINGS.items())


def test_coco_annotations_agree_with_pycocotools(world):
    from pycocotools.coco import COCO

    crowds = 0
    for split, count in (('train', 10), ('val', 5)):
        coco = COCO(world / f'coco/annotations/instances_{split}2017.json')
        assert len(coco.imgs) == count and min(coco.imgs) > 0 and min(coco.anns) > 0
        assert {a['image_id'] for a in coco.anns.values()} == set(coco.imgs)
        for annotation in coco.anns.values():
            mask = coco.annToMask(annotation)
            assert mask.shape == (64, 96)
            assert annotation['area'] == mask.sum() > 0
            y, x = np.nonzero(mask)
            assert annotation['bbox'] == [x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1]
            assert isinstance(annotation['segmentation'], dict if annotation['iscrowd'] else list)
            crowds += annotation['iscrowd']
    assert crowds == 2


def test_mmdet_reads_boxes_masks_and_stuff_maps(world):
    for split, count in (('train', 10), ('val', 5)):
        dataset = coco_dataset(world, split)
        assert len(dataset) == count
        for item in dataset:
            assert item['inputs'].shape == (3, 64, 96)
            sample = item['data_samples']
            instances, seg = sample.gt_instances, sample.gt_sem_seg.sem_seg[0].numpy()
            assert len(instances) >= 1
            ids = {name: number for name, (number, _) in THINGS.items()}
            for label, mask, box in zip(instances.labels, instances.masks.masks, instances.bboxes.tensor.tolist()):
                assert (seg[mask > 0] == ids[dataset.metainfo['classes'][label]] - 1).all()
                y, x = np.nonzero(mask)
                assert box == [x.min(), y.min(), x.max() + 1, y.max() + 1]
            union = np.any(list(instances.masks.masks) + [np.zeros_like(seg)], axis=0)
            background = set(np.unique(seg[~union])) - {ids[name] - 1 for name in CLASSES}  # crowds
            assert background <= {number - 1 for number, _ in STUFF.values()} | {255}
            assert 255 in background and len(background) == 3


def test_mmseg_reads_the_same_scenes(world):
    for split, short, count in (('training', 'train', 10), ('validation', 'val', 5)):
        dataset = ade_dataset(world, split)
        stuff_maps = sorted((world / f'coco/stuffthingmaps/{short}2017').iterdir())
        images = sorted((world / f'coco/{short}2017').iterdir())
        assert len(dataset) == count == len(stuff_maps)
        to_ade = {number - 1: value - 1 for number, value in list(THINGS.values()) + list(STUFF.values())}
        to_ade[255] = 255
        for item, stuff_map, image in zip(dataset, stuff_maps, images):
            found = item['data_samples'].gt_sem_seg.data[0].numpy()
            expected = np.vectorize(to_ade.get)(cv2.imread(str(stuff_map), cv2.IMREAD_UNCHANGED))
            assert (found == expected).all()
            assert Path(item['data_samples'].img_path).read_bytes() == image.read_bytes()


def test_coco_metric_gives_1_for_the_ground_truth(world):
    from mmdet.evaluation import CocoMetric
    from mmdet.structures.mask import encode_mask_results

    dataset = coco_dataset(world, 'train')
    metric = CocoMetric(ann_file=str(world / 'coco/annotations/instances_train2017.json'), metric=['bbox', 'segm'])
    metric.dataset_meta = dataset.metainfo
    for item in dataset:
        sample = item['data_samples']
        truth = sample.gt_instances
        pred = dict(
            bboxes=truth.bboxes.tensor,
            scores=torch.ones(len(truth)),
            labels=truth.labels,
            masks=encode_mask_results(truth.masks.masks.astype(bool)),
        )
        metric.process({}, [dict(pred_instances=pred, img_id=sample.img_id, ori_shape=sample.ori_shape)])
    result = metric.evaluate(size=len(dataset))
    assert result['coco/bbox_mAP'] == result['coco/segm_mAP'] == 1.0


def test_iou_metric_gives_100_for_the_ground_truth(world):
    from mmseg.evaluation import IoUMetric

    dataset = ade_dataset(world, 'training')
    metric = IoUMetric(iou_metrics=['mIoU'])
    metric.dataset_meta = dataset.metainfo
    for item in dataset:
        truth = item['data_samples'].gt_sem_seg.data
        pred = torch.where(truth == 255, 0, truth)  # a segmentor cannot answer "nothing"
        metric.process({}, [dict(pred_sem_seg=dict(data=pred), gt_sem_seg=dict(data=truth))])
    assert metric.evaluate(size=len(dataset))['mIoU'] == 100.0
