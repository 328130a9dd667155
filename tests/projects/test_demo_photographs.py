"""The photographs in the package: what they are, and that the toolboxes read what is written of them."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, init_default_scope

from mmrm.utils.config import read_config
from mmrm.utils.errors import UserFileError, UserValueError
from projects.demo import photographs
from projects.demo.photographs import CLASSES, Cell


@pytest.fixture(scope='module')
def made(tmp_path_factory) -> Path:
    return photographs.make_photographs(tmp_path_factory.mktemp('data') / 'photographs', train=12, val=6)


def test_the_file_is_small_and_carries_its_licence():
    assert photographs.FILE.stat().st_size < 1_000_000
    with zipfile.ZipFile(photographs.FILE) as archive:
        assert archive.testzip() is None
        text = archive.read('LICENSE').decode()
        boxes = json.loads(archive.read('boxes.json'))
        for split, count in photographs.COUNTS.items():
            images = [name for name in archive.namelist() if name.startswith(f'{split}/')]
            assert len(images) == len(boxes[split]) == count
            names = [cell[0] for cells in boxes[split].values() for cell in cells]
            assert set(names) == set(CLASSES) and names.count('Platelets') >= 30
    assert 'Copyright (c) 2017 shenggan' in text and 'Permission is hereby granted' in text
    assert not set(boxes['train']) & set(boxes['val'])


@pytest.mark.parametrize('name, count', [('atss_cells', 12), ('pspnet_cells', 12), ('rm_cells', None)])
def test_the_toolboxes_read_them(made, name, count, monkeypatch):
    monkeypatch.setenv('MMRM_PHOTOGRAPHS', str(made))
    config = read_config(photographs.FILE.parent / 'configs' / f'{name}.py')
    init_default_scope(config.default_scope)
    data = DATASETS.build(config.train_dataloader.dataset)
    sample = data[0]['data_samples']
    assert count is None or len(data) == count
    if name == 'atss_cells':
        content = json.loads((made / 'coco/annotations/train.json').read_text())
        first = [each for each in content['annotations'] if each['image_id'] == content['images'][0]['id']]
        assert data.metainfo['classes'] == CLASSES and sample.img_shape == (96, 128)
        assert (sample.gt_instances.labels + 1).tolist() == [each['category_id'] for each in first]
    elif name == 'pspnet_cells':
        assert set(np.unique(sample.gt_sem_seg.data)) <= set(range(4)) and 1 in sample.gt_sem_seg.data
    else:
        # mmpretrain numbers folders by their names, whatever a config says.
        assert list(data.metainfo['classes']) == sorted(CLASSES)
        assert all(
            Path(data[i]['data_samples'].img_path).parent.name == sorted(CLASSES)[label]
            for i, label in enumerate(data.get_gt_labels())
        )
        assert data[0]['inputs'].shape == (3, 32, 32)


def test_a_map_is_the_ellipses_in_the_boxes_the_rarer_class_on_top():
    found = photographs.label_map([Cell('Platelets', 8, 8, 12, 12), Cell('RBC', 0, 0, 20, 20)], (20, 40))
    assert found.shape == (20, 40) and found.dtype == np.uint8
    assert found[10, 10] == 3 and found[10, 3] == 1 and found[0, 0] == 0 and not found[:, 20:].any()
    assert abs((found > 0).sum() - np.pi * 10**2) < 8
    assert abs((found == 3).sum() - np.pi * 2**2) < 3


def test_a_cell_is_cut_out_from_its_middle_and_the_edge_repeats():
    image = np.zeros((60, 60, 3), np.uint8)
    image[:, :10] = 200
    whole = photographs.cut_out(image, Cell('WBC', 20, 20, 50, 50))
    assert whole.shape == (32, 32, 3) and whole.max() == 0
    edge = photographs.cut_out(image, Cell('WBC', 0, 20, 20, 40))  # a square from -2 to 22 pixels
    assert (edge[:, :14] > 150).all() and (edge[:, 18:] < 50).all()


def test_other_counts_need_another_folder_and_have_a_limit(made, tmp_path):
    with pytest.raises(UserFileError, match='another one'):
        photographs.make_photographs(made, train=11, val=6)
    with pytest.raises(UserValueError, match='train=81 photographs: from 1 to 80'):
        photographs.make_photographs(tmp_path / 'more', train=81)
