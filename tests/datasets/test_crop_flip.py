"""CIFAR's crop and flip: mmpretrain's own transforms for the same draws, one by one as in whole batches."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from mmpretrain.datasets import BaseDataset
from mmpretrain.datasets.transforms import RandomCrop
from mmpretrain.registry import TRANSFORMS
from torch.utils.data import DataLoader

from mmrm.datasets import RMCropFlip
from mmrm.datasets.crop_flip import crop_flip
from mmrm.datasets.seeding import Draw, SeededDataset, current_seed, sample_uniforms
from mmrm.engine.batched_images import BatchedImages, as_batched_images, takes_batched_images
from mmrm.engine.samplers import make_resumable
from mmrm.models.samples import SampleBatch
from mmrm.utils.errors import UserValueError

init_default_scope('mmpretrain')


class Pictures(BaseDataset):
    METAINFO = dict(classes=('a', 'b', 'c'))

    def __init__(self, number=20, pipeline=None, sizes=(8,)):
        self.number, self.sizes = number, itertools.cycle(sizes)
        super().__init__(
            ann_file='', pipeline=pipeline or [dict(type='RMCropFlip', crop_size=8, padding=2), dict(type='PackInputs')]
        )

    def load_data_list(self):
        rng = np.random.RandomState(0)
        return [
            dict(img=rng.randint(0, 256, (next(self.sizes), 8, 3), np.uint8), gt_label=n % 3)
            for n in range(self.number)
        ]


def test_the_pixels_are_those_of_mmpretrains_transforms_for_the_same_draws(monkeypatch):
    rng = np.random.RandomState(1)
    images = rng.randint(0, 256, (30, 3, 10, 12), dtype=np.uint8)
    draws = np.stack([rng.randint(0, 9, 30), rng.randint(0, 11, 30), rng.randint(0, 2, 30)], 1)
    crop = RandomCrop(10, padding=4)
    for image, (top, left, flip), mine in zip(images, draws, crop_flip(images, draws, 10, 4)):
        monkeypatch.setattr(crop, 'rand_crop_params', lambda _, top=top, left=left: (top, left, 10, 10))
        stock = crop(dict(img=image.transpose(1, 2, 0)))
        stock = TRANSFORMS.build(dict(type='RandomFlip', prob=float(flip), direction='horizontal'))(stock)
        assert np.array_equal(mine, stock['img'].transpose(2, 0, 1))


def test_a_whole_batch_is_what_its_samples_are_one_by_one():
    dataset = Pictures()
    whole, alone = as_batched_images(dataset), SeededDataset(dataset)
    draws = [Draw(index, (3, 1, place)) for place, index in enumerate((4, 0, 19, 4))]
    batch, samples = whole.__getitems__(draws), alone.__getitems__(draws)
    assert torch.equal(batch['inputs'], torch.stack([sample['inputs'] for sample in samples]))
    assert batch['data_samples'].label.tolist() == [int(sample['data_samples'].gt_label) for sample in samples]
    assert not torch.equal(batch['inputs'][0], batch['inputs'][3])  # one picture, two places
    again = pickle.loads(pickle.dumps(whole)).__getitems__(draws)
    assert torch.equal(again['inputs'], batch['inputs'])
    assert current_seed() is None


@pytest.mark.parametrize('workers', [0, 2])
def test_the_loader_gives_whole_batches_whatever_its_workers(workers):
    def epoch(count, first=0):
        loader = DataLoader(Pictures(), batch_size=6, num_workers=count)
        batches = make_resumable(loader, seed=5, batched=True)
        batches.epoch, batches.first = 2, first
        return list(loader)

    found, expected = epoch(workers), epoch(0)
    assert all(isinstance(batch['data_samples'], SampleBatch) for batch in found)
    assert [len(batch['inputs']) for batch in found] == [6, 6, 6, 2]
    for one, other in zip(found, expected):
        assert torch.equal(one['inputs'], other['inputs'])
    assert torch.equal(epoch(workers, first=2)[0]['inputs'], expected[2]['inputs'])


def test_any_other_data_is_loaded_one_by_one_and_another_pipeline_on_the_way_is_noticed():
    crop, pack = dict(type='RMCropFlip', crop_size=8), dict(type='PackInputs')
    assert as_batched_images(Pictures(pipeline=[crop, dict(type='Cutout', shape=4), pack])) is None
    assert as_batched_images(Pictures(pipeline=[pack])) is None and as_batched_images(Pictures(sizes=(8, 9))) is None
    whole = as_batched_images(Pictures())
    assert isinstance(whole.__getitems__([Draw(0, (0, 0, 0))]), dict)
    whole.pipeline = Compose([TRANSFORMS.build(dict(type='PackInputs'))])
    assert isinstance(whole.__getitems__([Draw(0, (0, 0, 0))]), list) and type(whole) is BatchedImages


def test_the_numbers_of_a_seed_are_even_and_stay_what_they_are():
    seeds = np.stack([np.zeros(4000), np.arange(4000) // 1000, np.arange(4000) % 1000], 1)
    found = sample_uniforms(seeds, 3)
    assert found.shape == (4000, 3) and found.min() >= 0 and found.max() < 1
    places = RMCropFlip(padding=4, prob=0.25).draws(found, 32, 32)
    for column in places[:, :2].T:
        counts = np.bincount(column, minlength=9)
        assert len(counts) == 9 and abs(counts - 4000 / 9).max() < 90  # 4.5 standard deviations
    assert abs(places[:, 2].mean() - 0.25) < 0.03
    assert abs(np.corrcoef(found.T) - np.eye(3)).max() < 0.06 and len(np.unique(found)) == 12000
    assert abs(np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]) < 0.06  # neighbours
    # A change here changes what every seed trains on.
    assert sample_uniforms(np.array([[0, 1, 2]]), 2)[0] == pytest.approx(FROZEN, abs=1e-15)


FROZEN = [0.40436124516234584, 0.507130484755419]


@pytest.mark.parametrize('arguments', [dict(crop_size=0), dict(padding=1.5), dict(prob=1.5)])
def test_bad_arguments_are_named(arguments):
    with pytest.raises(UserValueError, match=f'RMCropFlip: {next(iter(arguments))}='):
        RMCropFlip(**arguments)
    with pytest.raises(UserValueError, match='is smaller than a crop of crop_size=32'):
        RMCropFlip().batch(np.zeros((1, 3, 8, 8), np.uint8), np.array([[0, 0, 0]]))


def test_only_models_that_need_no_object_per_image_get_whole_batches():
    from helpers import classifier

    assert takes_batched_images(classifier())
    assert not takes_batched_images(classifier(preprocessor='ClsDataPreprocessor'))
    assert not takes_batched_images(torch.nn.Linear(2, 2))
