"""The gallery shows what the methods do; the hook shows what training does, and does nothing to it."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmpretrain.registry import BATCH_AUGMENTS
from tiny_run import write_run

from mmrm.utils import figures
from mmrm.utils.errors import UserValueError
from tools.analysis import classifiers, mixed_batches


@pytest.fixture
def cfg(tmp_path):
    return classifiers.load_config(write_run(tmp_path, images=8), part='train')


@pytest.mark.parametrize('name', ['Mixup', 'CutMix'])
def test_probes_show_a_pair_mix(name):
    augment = BATCH_AUGMENTS.build(dict(mixed_batches.COMPARED[name]))
    inputs, scores = torch.rand(6, 3, 20, 30), torch.eye(6)
    state = np.random.get_state(), torch.get_rng_state()
    mixed, fused, shares, box = mixed_batches.mix_pairs(augment, inputs, scores)
    np.random.set_state(state[0])
    torch.set_rng_state(state[1])
    expected_images, expected_scores = augment(inputs.clone(), scores)
    assert torch.allclose(mixed, expected_images) and torch.allclose(fused, expected_scores)
    assert torch.allclose(shares, 1 - expected_scores.diagonal())
    if name == 'CutMix':
        assert shares.max() == pytest.approx(box.area / 600)
        outside = torch.ones(20, 30, dtype=bool)
        outside[box.y1 : box.y2, box.x1 : box.x2] = False
        assert torch.equal(mixed[..., outside], inputs[..., outside])


def test_rm_is_fed_back_and_the_others_are_not(cfg):
    before = np.random.get_state()[1].copy()
    gallery = mixed_batches.collect(cfg, iterations=5, batch=4, seed=1)
    assert np.array_equal(np.random.get_state()[1], before), 'the generators are left alone'
    assert list(gallery.methods) == ['Input', 'Mixup', 'CutMix', 'RM'] and gallery.classes == ('class0', 'class1')
    plain, rm = gallery.methods['Input'], gallery.methods['RM']
    assert rm[0].shares.max() == 0 and np.array_equal(rm[0].images, plain[0].images)
    for before, now, current in zip(rm, rm[1:], plain[1:]):
        box, share = now.box, now.shares[0]
        assert share == pytest.approx(box.area / 32**2) and now.shares.max() <= 0.5
        assert np.allclose(now.scores, share * before.scores + (1 - share) * current.scores, atol=1e-6)
        patch = now.images[:, box.y1 : box.y2, box.x1 : box.x2]
        rows = np.arange(patch.shape[1]) * 32 // patch.shape[1]
        columns = np.arange(patch.shape[2]) * 32 // patch.shape[2]
        assert np.array_equal(patch, before.images[:, rows][:, :, columns])  # nearest: the whole image, thinned out
    assert all(np.allclose(mixed.scores.sum(1), 1) for steps in gallery.methods.values() for mixed in steps)


def test_the_other_regularisers_are_shown_at_the_input_and_change_no_row(cfg):
    plain = mixed_batches.collect(cfg, iterations=3, batch=4, seed=1)
    gallery = mixed_batches.collect(cfg, iterations=3, batch=4, seed=1, others=True)
    assert ', '.join(gallery.methods) == 'Input, DropBlock, Mixup, CutMix, ResizeMix, MoEx, CutMix + MoEx, RM'
    for name, steps in plain.methods.items():
        assert all(np.array_equal(one.images, other.images) for one, other in zip(steps, gallery.methods[name]))
    for name in ('MoEx', 'CutMix + MoEx'):
        for mixed, given in zip(gallery.methods[name], gallery.methods['Input']):
            assert np.allclose(mixed.scores.sum(1), 1) and not np.array_equal(mixed.images, given.images)
    dropped = gallery.methods['DropBlock'][0]
    assert np.array_equal(dropped.scores, gallery.methods['Input'][0].scores)
    assert (np.abs(dropped.images.astype(int) - 127) <= 1).mean() > 0.02  # the mean colour
    assert mixed_batches.draw_gallery(gallery) is not None


def test_a_config_without_rm_shows_the_defaults_and_says_so(tmp_path):
    config = write_run(tmp_path, images=4)
    config.write_text(config.read_text() + "model['data_preprocessor']['batch_augments'] = None\n")
    cfg = classifiers.load_config(config, part='train')
    assert classifiers.recursive_mix_of(cfg)[1] is False
    assert mixed_batches.collect(cfg, iterations=1, batch=2).settings['RM'] == 'alpha 0.5, nearest (default)'


def test_a_figure_has_a_panel_for_each_method_and_iteration(cfg):
    gallery = mixed_batches.collect(cfg, iterations=3, batch=2)
    figure = mixed_batches.draw_gallery(gallery, samples=2, foot=['data: noise'])
    texts = [axes.get_xlabel() for axes in figure.axes]
    assert len(figure.axes) == 2 * 4 * 3 and all('class' in text for text in texts)
    assert sum('λ' in text for text in texts) == 2 * 3 * 3
    with pytest.raises(UserValueError, match='samples=3 must be from 1 to 2'):
        mixed_batches.draw_gallery(gallery, samples=3)


def test_mistakes_are_named(cfg):
    with pytest.raises(UserValueError, match='is not a classifier'):
        classifiers.load_config('projects/demo/configs/atss_cells.py')
    with pytest.raises(UserValueError, match='a batch of 9 images from a data set of 8'):
        mixed_batches.collect(cfg, batch=9)


# ----------------------------------------------------------------------------------------------------------------- hook
def train(folder, hooks):
    """Train two epochs of six iterations; returns the final weights."""
    init_default_scope('mmpretrain')
    folder.mkdir()
    cfg = Config.fromfile(write_run(folder))
    cfg.work_dir = str(folder / 'work')
    cfg.custom_hooks += hooks
    cfg.visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name=folder.name)
    cfg.experiment_name = f'{folder.parent.name}_{folder.name}'
    torch.manual_seed(0)
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner.model.state_dict()


def test_the_hook_draws_what_the_network_saw_and_changes_nothing(tmp_path, monkeypatch):
    """The panels hold the very batch that the preprocessor gave to the network, mixed, with the head's lambda."""
    from mmrm.models.data_preprocessor import RMDataPreprocessor

    plain = train(tmp_path / 'plain', [])
    seen, drawn, draw, forward = [], [], figures.draw_rows, RMDataPreprocessor.forward

    def keep(rows, titles=()):
        drawn.append(rows)
        return draw(rows, titles)

    def watched(self, data, training=False):
        output = forward(self, data, training)
        if training:
            seen.append((output['inputs'].clone(), output['data_samples'][0].rm_mix.lam))
        return output

    monkeypatch.setattr('mmrm.utils.figures.draw_rows', keep)
    monkeypatch.setattr(RMDataPreprocessor, 'forward', watched)
    shown = train(tmp_path / 'shown', [dict(type='MixedBatchesHook', interval=5, length=3, samples=2)])
    assert all(torch.equal(plain[name], shown[name]) for name in plain)
    pictures = sorted((tmp_path / 'shown').rglob('vis_image/*.png'))
    assert [path.name for path in pictures] == ['mixed_batches_1.png', 'mixed_batches_11.png', 'mixed_batches_6.png']
    image = cv2.imread(str(pictures[0]))
    assert image.shape[1] > 300 and len(np.unique(image.reshape(-1, 3), axis=0)) > 50
    name, panels = drawn[0][0]
    assert name == 'sample 1' and len(panels) == 3
    for panel, (inputs, lam) in zip(panels, seen):
        pixels = (inputs[0] * 50 + 127.5).round().clamp(0, 255).permute(1, 2, 0).numpy()[..., ::-1]  # read as BGR
        assert np.array_equal(panel.image, pixels.astype(np.uint8))
        assert panel.lines[0] == f'λ = {lam:.2f}' or lam < 0.005


def test_a_picture_holds_successive_iterations_only():
    from mmrm.engine.hooks import MixedBatchesHook

    hook, taken, model = MixedBatchesHook(interval=5, length=3, samples=1), [], torch.nn.Module()
    hook._write, model.data_preprocessor = lambda runner: None, torch.nn.Identity()
    for iteration in range(7, 13):  # resumed in the middle of the second picture
        runner = SimpleNamespace(iter=iteration, model=model)
        hook.before_train_iter(runner, 0)
        model.data_preprocessor(dict(inputs=torch.zeros(1, 3, 2, 2), data_samples=[SimpleNamespace()]))
        hook.after_train_iter(runner, 0)
        taken.append(len(hook._kept))
        model.data_preprocessor(dict(inputs=torch.zeros(1, 3, 2, 2), data_samples=[SimpleNamespace()]))  # validation
    assert taken == [0, 0, 0, 1, 2, 3] and [iteration for iteration, *_ in hook._kept] == [11, 12, 13]
    for arguments, message in (
        (dict(length=2.5), 'length=2.5 must be an integer'),
        (dict(interval=3, length=4), 'length=4 must not be above interval=3'),
    ):
        with pytest.raises(UserValueError, match=message):
            MixedBatchesHook(**arguments)
