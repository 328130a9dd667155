"""Colours drawn in the pipeline and applied by the preprocessor are the authors', who work on floats and never clip."""

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, default_collate, pseudo_collate
from mmpretrain.models import ClsDataPreprocessor
from mmpretrain.registry import TRANSFORMS
from mmpretrain.structures import DataSample

import mmrm.models  # noqa: F401
from mmrm.datasets import colors
from mmrm.datasets.transforms import EIGENVALUES, EIGENVECTORS, RMColors, RMCutout
from mmrm.models.check_parts import check_drawn_colors
from mmrm.models.data_preprocessor import RMDataPreprocessor
from mmrm.utils.errors import UserValueError
from mmrm.utils.paths import find_config

NORMAL = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
SETTINGS = dict(brightness=0.4, contrast=0.4, saturation=0.4, lighting=0.1)


def literally(image, jitter, alpha):
    """The authors' steps on one RGB image ``(3, H, W)``, from 0 to 1, one after the other, and the normalisation."""
    x = image.double()

    def grey(x):
        return (0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]).expand(3, -1, -1)

    for name, factor in jitter:
        if name == 'brightness':
            x = x * factor
        elif name == 'contrast':
            x = factor * x + (1 - factor) * grey(x).mean()
        else:
            x = factor * x + (1 - factor) * grey(x)
    shift = sum(EIGENVECTORS[:, k] * alpha[k] * EIGENVALUES[k] for k in range(3))
    x = x + torch.tensor(shift).view(3, 1, 1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]).double(), torch.tensor([0.229, 0.224, 0.225]).double()
    return (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)


def batch(number=6, seed=0, height=20, width=24, **settings):
    """BGR images with drawn colours, as the data loader hands them on, and what was drawn."""
    rng, draw = np.random.RandomState(seed), RMColors(**(settings or SETTINGS))
    images = [rng.randint(0, 256, (height, width, 3)).astype(np.uint8) for _ in range(number)]
    images[0][:] = 255  # white leaves the range with every factor above 1
    pack, items, drawn = TRANSFORMS.build(dict(type='mmpretrain.RMPackInputs')), [], []
    np.random.seed(seed)
    for image in images:
        state = np.random.get_state()
        drawn.append((draw._sample(), draw._sample_lighting()))
        np.random.set_state(state)
        items.append(pack(draw(dict(img=image, gt_label=1))))
    return items, drawn


@pytest.mark.parametrize('collate', [default_collate, pseudo_collate])
@pytest.mark.parametrize('to_rgb', [True, False])
def test_colours_are_the_authors_to_a_hundred_thousandth(collate, to_rgb):
    preprocessor = RMDataPreprocessor(**{**NORMAL, 'to_rgb': to_rgb})
    beyond = 0
    for seed in range(20):
        items, drawn = batch(seed=seed)
        got = preprocessor(collate(items), training=True)['inputs']
        assert got.dtype == torch.float32
        for image, item, (jitter, alpha) in zip(got, items, drawn):
            rgb = item['inputs'].flip(0) if to_rgb else item['inputs']
            wanted = literally(rgb / 255, jitter, alpha)
            assert (image - wanted).abs().max() < 1e-5
            beyond += int((wanted.amax((1, 2)) > torch.tensor([2.2490, 2.4286, 2.6400])).any())
    assert beyond > 20  # brighter than white: nothing is clipped


def test_every_order_of_the_jitter_occurs_and_each_factor_has_its_range():
    transform = RMColors(brightness=0.4, contrast=0.2, saturation=0.1)
    draws = [(transform._sample(), transform._sample_lighting()) for _ in range(300)]
    assert len({tuple(name for name, _ in jitter) for jitter, _ in draws}) == 6
    for name, spread in dict(brightness=0.4, contrast=0.2, saturation=0.1).items():
        factors = [factor for jitter, _ in draws for each, factor in jitter if each == name]
        assert 1 - spread <= min(factors) < 1 - 0.9 * spread and 1 + 0.9 * spread < max(factors) <= 1 + spread
    assert all((alpha == 0).all() for _, alpha in draws)


def test_without_normalisation_colours_are_in_levels():
    items, _ = batch()
    got = RMDataPreprocessor(to_rgb=True)(default_collate(items))['inputs']
    normalised = RMDataPreprocessor(**NORMAL)(default_collate(items))['inputs']
    mean, std = (torch.tensor(NORMAL[name]).view(3, 1, 1) for name in ('mean', 'std'))
    assert torch.allclose(got, normalised * std + mean, atol=1e-3)


def test_labels_padding_and_mixing_are_mmpretrains():
    items, _ = batch()
    settings = dict(
        **NORMAL, num_classes=3, pad_size_divisor=16, batch_augments=dict(augments=dict(type='Mixup', alpha=1.0))
    )
    out = RMDataPreprocessor(**settings)(default_collate(items), training=True)
    assert out['inputs'].shape == (6, 3, 32, 32) and out['data_samples'][0].gt_score.shape == (3,)
    assert (out['inputs'][:, :, 20:] == 0).all()


def test_validation_is_mmpretrains_to_the_bit():
    items = [dict(inputs=item['inputs'], data_samples=DataSample().set_gt_label(1)) for item in batch()[0]]
    preprocessor = RMDataPreprocessor(**NORMAL)
    preprocessor(default_collate(batch()[0]), training=True)
    wanted = ClsDataPreprocessor(**NORMAL)(default_collate(items))['inputs']
    assert torch.equal(preprocessor(default_collate(items))['inputs'], wanted)


def test_a_hole_is_where_mmcv_cuts_it_and_of_the_mean_colour():
    for seed in range(20):
        items, _ = batch(1, seed)
        np.random.seed(seed)
        hole = RMCutout(shape=12)(dict(img=np.empty((20, 24, 3), np.uint8)))[colors.HOLE_FIELD]
        np.random.seed(seed)
        np.random.rand()  # mmpretrain's draw of whether to cut at all
        cut = mmcv.cutout(np.ones((20, 24, 3), np.uint8), 12, pad_val=0)[..., 0] == 0
        wanted = RMDataPreprocessor(**NORMAL)(default_collate(items))['inputs'][0]
        items[0]['data_samples'].set_field(hole, colors.HOLE_FIELD)
        got = RMDataPreprocessor(**NORMAL)(default_collate(items))['inputs'][0]
        assert (got[:, cut] == 0).all() and torch.equal(got[:, ~cut], wanted[:, ~cut])


def test_a_batch_of_two_pipelines_and_one_without_colours_are_refused():
    items, _ = batch()
    grey = [dict(item, inputs=item['inputs'][:1]) for item in items]
    with pytest.raises(UserValueError, match='3 channels, but these have 1'):
        RMDataPreprocessor(mean=[0], std=[1])(default_collate(grey))
    del items[2]['data_samples'].rm_colors
    with pytest.raises(UserValueError, match='5 of 6 samples of a batch carry rm_colors'):
        RMDataPreprocessor(**NORMAL)(default_collate(items))


@pytest.mark.parametrize(
    'build, word',
    [
        (lambda: RMColors(contrast=-1), 'contrast=-1'),
        (lambda: RMColors(lighting='much'), "lighting='much'"),
        (lambda: RMCutout(shape=0), 'shape=0'),
        (lambda: RMCutout(shape=8, prob=2), 'prob=2'),
    ],
)
def test_bad_arguments_are_named(build, word):
    with pytest.raises(UserValueError, match=word):
        build()


DRAWS = [dict(type='RMLoadResizedCrop', scale=8), dict(type='RMColors', contrast=0.4)]


@pytest.mark.parametrize(
    'preprocessor, pipeline, word',
    [
        (ClsDataPreprocessor(**NORMAL), [*DRAWS, dict(type='RMPackInputs')], 'is ClsDataPreprocessor'),
        (RMDataPreprocessor(**NORMAL), [*DRAWS, dict(type='PackInputs')], 'no RMPackInputs'),
        (RMDataPreprocessor(), [*DRAWS, dict(type='mmpretrain.RMPackInputs')], 'to_rgb=True'),
        (RMDataPreprocessor(**NORMAL), [*DRAWS, dict(type='mmpretrain.RMPackInputs')], None),
        (ClsDataPreprocessor(**NORMAL), [DRAWS[0], dict(type='PackInputs')], None),
    ],
)
def test_drawn_colours_without_rm_data_preprocessor_fail(preprocessor, pipeline, word):
    model = torch.nn.Module()
    model.data_preprocessor = preprocessor
    if word is None:
        check_drawn_colors(model, pipeline)
    else:
        with pytest.raises(UserValueError, match=word):
            check_drawn_colors(model, pipeline)


def test_the_shipped_pipeline_gives_what_the_authors_code_gives(tmp_path):
    path = tmp_path / 'image.JPEG'
    rng = np.random.RandomState(0)
    mmcv.imwrite(rng.randint(0, 256, (60, 80, 3)).astype(np.uint8), str(path))
    cfg = Config.fromfile(find_config('baseline/resnet50_8xb64_in1k.py'))
    pipeline = Compose([TRANSFORMS.build({**step, '_scope_': 'mmpretrain'}) for step in cfg.train_pipeline])
    step = next(transform for transform in pipeline.transforms if isinstance(transform, RMColors))
    preprocessor = RMDataPreprocessor(**{k: v for k, v in cfg.model.data_preprocessor.items() if k != 'type'})
    jitters, alphas, sample, lighting = [], [], step._sample, step._sample_lighting
    step._sample = lambda: jitters.append(sample()) or jitters[-1]
    step._sample_lighting = lambda: alphas.append(lighting()) or alphas[-1]
    items = [pipeline(dict(img_path=str(path), gt_label=0)) for _ in range(3)]
    got = preprocessor(default_collate(items), training=True)['inputs']
    for image, item, jitter, alpha in zip(got, items, jitters, alphas):
        assert len(jitter) == 3 and (alpha != 0).all()
        assert (image - literally(item['inputs'].flip(0) / 255, jitter, alpha)).abs().max() < 1e-5


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
def test_colours_do_not_synchronise_with_the_device():
    items, _ = batch()
    data = default_collate(items)
    preprocessor = RMDataPreprocessor(**NORMAL)
    wanted = preprocessor(data)['inputs']
    preprocessor = preprocessor.cuda()
    images, changes = (
        data['inputs'].cuda(),
        torch.from_numpy(np.stack([s.rm_colors for s in data['data_samples']])).cuda(),
    )
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode('error')
    try:
        got = colors.apply_colors(images, changes, preprocessor.mean, preprocessor.std, True)
        colors.fill_holes(got.clone(), torch.zeros(len(images), 4, dtype=torch.int64, device='cuda'))
    finally:
        torch.cuda.set_sync_debug_mode('default')
    assert torch.allclose(got.cpu(), wanted, atol=1e-5)
