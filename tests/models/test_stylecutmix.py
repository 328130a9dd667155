"""StyleCutMix against slow, literal readings of its paper, with style networks of the right shapes, and in training."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import batch, classifier, step

from mmrm import bind_augments
from mmrm.core import Box
from mmrm.models.regularisers import StyleCutMix
from mmrm.models.regularisers.stylecutmix import (
    adain,
    build_decoder,
    build_encoder,
    check_distances,
    class_distances,
    label_share,
    style_cut_mix,
    style_gamma,
)
from mmrm.utils.errors import UserFileError, UserTypeError, UserValueError


def convolutions(places, channels):
    """``{layer of the published file: (channels in, out, kernel)}``, of convolutions of 3 x 3."""
    return {place: (*pair, 3) for place, pair in zip(places, itertools.pairwise(channels))}


VGG_CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 256, 512)
VGG = {0: (3, 3, 1), **convolutions((2, 5, 9, 12, 16, 19, 22, 25, 29), VGG_CHANNELS)}
DEEPER = convolutions((32, 35, 38, 42, 45, 48, 51), (512,) * 8)
DECODER = convolutions((1, 5, 8, 11, 14, 18, 21, 25, 28), VGG_CHANNELS[::-1])


def weights(layers, seed=0):
    """Weights of the published shapes that neither blow up nor vanish."""
    generator, found = torch.Generator().manual_seed(seed), {}
    for layer, (inner, outer, kernel) in layers.items():
        scale = (2 / (inner * kernel**2)) ** 0.5
        found[f'{layer}.weight'] = scale * torch.randn(outer, inner, kernel, kernel, generator=generator)
        found[f'{layer}.bias'] = 0.1 * torch.randn(outer, generator=generator)
    return found


@pytest.fixture(scope='module')
def networks():
    return build_encoder(weights(VGG)), build_decoder(weights(DECODER, 1))


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """Style network and distances of 5 classes as files."""
    folder = tmp_path_factory.mktemp('adain')
    torch.save(weights(VGG), folder / 'vgg_normalised.pth')
    torch.save(weights(DECODER, 1), folder / 'decoder.pth')
    distances = torch.rand(5, 5)
    torch.save((distances + distances.T) * (1 - torch.eye(5)), folder / 'distances.pt')
    return folder


@pytest.fixture
def options(files):
    return dict(
        type='StyleCutMix',
        encoder=str(files / 'vgg_normalised.pth'),
        decoder=str(files / 'decoder.pth'),
        distances=str(files / 'distances.pt'),
        size=32,
    )


def small_networks():
    """Something that takes images to features an eighth as large, and back."""
    return (
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 8, stride=8), torch.nn.ReLU()).requires_grad_(False),
        torch.nn.ConvTranspose2d(8, 3, 8, stride=8).requires_grad_(False),
    )


def net(augments):
    return classifier(augments=augments, omega=0, preprocessor='ClsDataPreprocessor')


# --------------------------------------------------------------------------------------------------------- arithmetic
def test_adain_gives_the_content_the_moments_of_the_style():
    content, style = torch.randn(2, 3, 5, 4), 3 * torch.randn(2, 3, 6, 7) + 1
    found = adain(content, style)
    for sample, channel in np.ndindex(2, 3):
        x, y = content[sample, channel], style[sample, channel]
        wanted = (x - x.mean()) / (x.var() + 1e-5).sqrt() * (y.var() + 1e-5).sqrt() + y.mean()
        assert torch.allclose(found[sample, channel], wanted, atol=1e-5)


@pytest.mark.parametrize('box', [Box(5, 10, 20, 30), Box(0, 0, 0, 0), Box(0, 0, 32, 32)])
def test_the_mixed_image_is_the_papers(box):
    encoder, decoder = small_networks()
    images, index, style, gamma = torch.rand(3, 3, 16, 16), torch.tensor([2, 0, 1]), 0.3, torch.tensor([0.1, 0.9, 0.5])
    found = style_cut_mix(images, index, box, style, gamma, encoder, decoder, 32)
    large = F.interpolate(images, (32, 32), mode='bilinear')
    content = torch.zeros(32, 32)
    content[box.y1 : box.y2, box.x1 : box.x2] = 1
    # The paper's four-fold mix: t of (content 1, style 1), the rest of the shares to the other three.
    both = torch.clamp(content + style - 1, min=0)
    for sample in range(3):
        x1, x2, g = large[sample : sample + 1], large[index[sample] : index[sample] + 1], gamma[sample]
        f1, f2 = encoder(x1), encoder(x2)
        g12 = g * x1 + (1 - g) * decoder(adain(f1, f2))
        g21 = g * x2 + (1 - g) * decoder(adain(f2, f1))
        mixed = both * x1 + (1 - content - style + both) * x2 + (content - both) * g12 + (style - both) * g21
        assert torch.allclose(found[sample], F.interpolate(mixed, (16, 16), mode='bilinear')[0], atol=1e-4)


def test_the_label_weighs_content_and_style():
    gamma, area, style, r = torch.tensor([0.2, 0.7]), 0.25, 0.6, 0.7
    logits, first, second = torch.randn(2, 4), torch.tensor([0, 3]), torch.tensor([1, 3])
    share = label_share(area, style, gamma, r)
    for sample in range(2):
        loss1, loss2 = (-F.log_softmax(logits[sample], 0)[label[sample]] for label in (first, second))
        style_share = gamma[sample] * area + (1 - gamma[sample]) * style
        content_loss = area * loss1 + (1 - area) * loss2
        style_loss = style_share * loss1 + (1 - style_share) * loss2
        wanted = r * content_loss + (1 - r) * style_loss
        assert torch.allclose(share[sample] * loss1 + (1 - share[sample]) * loss2, wanted)


def test_gamma_grows_with_the_distance_of_the_classes():
    distances = torch.tensor([[0.0, 1.5], [1.5, 0.0]])
    gamma = style_gamma(distances, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), delta=3.0)
    assert torch.allclose(gamma, torch.tanh(torch.tensor([2.0, 1.5, 1.5]) / 3))


# ------------------------------------------------------------------------------------------------------------ weights
def test_the_networks_have_the_published_layout(networks):
    for network, layers in zip(networks, (VGG, DECODER)):
        assert {key: tuple(value.shape) for key, value in network.state_dict().items()} == {
            key: tuple(value.shape) for key, value in weights(layers).items()
        }
        assert not network.training and not any(parameter.requires_grad for parameter in network.parameters())
    features = networks[0](torch.rand(1, 3, 16, 24))
    assert features.shape == (1, 512, 2, 3) and (features >= 0).all()
    image = networks[1](features)
    assert image.shape == (1, 3, 16, 24) and (image < 0).any()  # nothing clips it
    assert len(build_encoder(weights({**VGG, **DEEPER}))) == 31  # the published file goes deeper than is used


# ---------------------------------------------------------------------------------------------------------- distances
def test_distances_compare_the_mean_styles_of_classes(networks):
    encoder = networks[0]
    images, labels = torch.rand(5, 3, 16, 16), torch.tensor([0, 2, 0, 2, 0])
    found = class_distances(encoder, [(images[:2], labels[:2]), (images[2:], labels[2:])], 3, size=16)
    styles = []
    for image in images:
        x, parts = image[None], []
        for number, layer in enumerate(encoder):
            x = layer(x)
            if number in (3, 10, 17, 30):
                parts += [x.mean((2, 3)), (x.var((2, 3)) + 1e-5).sqrt()]
        styles.append(torch.cat(parts, 1)[0])
    assert len(styles[0]) == 1920
    first, third = torch.stack(styles)[labels == 0].mean(0), torch.stack(styles)[labels == 2].mean(0)
    assert torch.allclose(found[0, 2], F.mse_loss(first, third), rtol=1e-3) and found[0, 2] == found[2, 0]
    assert found[0, 0] == found[2, 2] == 0 and found[1].isnan().all()
    with pytest.raises(ValueError, match='no distance for classes 1 '):
        check_distances(found, 3)


# -------------------------------------------------------------------------------------------------------- the augment
def test_far_classes_are_mixed_as_by_cutmix(options):
    model = net({**options, 'distances': [[1e6] * 5] * 5})
    bind_augments(model)
    model.data_preprocessor.batch_augments.augments[0]._networks = small_networks()
    data = batch(6)
    data['inputs'] = [torch.full((3, 32, 32), 40 * number, dtype=torch.uint8) for number in range(6)]
    labels = torch.eye(5)[[int(sample.gt_label) for sample in data['data_samples']]]
    ready = model.data_preprocessor(data, training=True)
    pixels = ((ready['inputs'] * 64 + 127.5) / 40).round(decimals=3)
    for sample in range(6):
        share = (pixels[sample] == sample).float().mean()
        partners = [int(each) for each in pixels[sample].unique() if each != sample] or [sample]
        wanted = share * labels[sample] + (1 - share) * labels[partners[0]]
        assert len(partners) == 1 and torch.allclose(ready['data_samples'][sample].gt_score, wanted, atol=1e-5)


def test_the_style_network_is_no_part_of_the_model(options):
    model = net({**options, 'size': 16})
    before = set(model.state_dict())
    bind_augments(model)
    step(model, batch(3))
    augment = model.data_preprocessor.batch_augments.augments[0]
    assert set(model.state_dict()) == before
    assert all(parameter.grad is None for network in augment._networks for parameter in network.parameters())
    with pytest.raises(UserValueError, match=r'RGB.*\(2, 1, 32, 32\)'):
        augment(torch.zeros(2, 1, 32, 32), torch.eye(5)[:2])


def test_regulariser_runs_under_autocast_and_on_one_sample(options):
    model = net({**options, 'size': 16})
    bind_augments(model)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        ready = model.data_preprocessor(batch(1), training=True)
    score, label = ready['data_samples'][0].gt_score, ready['data_samples'][0].gt_label
    assert ready['inputs'].dtype == torch.float32 and ready['inputs'].isfinite().all()
    assert torch.allclose(score, F.one_hot(label, 5)[0].float())


# ---------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize('name', ['encoder', 'distances'])
def test_files_are_read_when_training_begins_and_missing_ones_named(options, name, tmp_path):
    options[name] = str(tmp_path / 'gone.pth')
    model = net(options)  # to be tested, say
    message = f'StyleCutMix: {name}: checkpoint .*gone.pth does not exist.*docs/regularisers'
    with pytest.raises(UserFileError, match=message):
        bind_augments(model)


def test_files_of_something_else_are_named(options, files):
    with pytest.raises(UserValueError, match=r'StyleCutMix: encoder .*decoder.pth: these are not the weights'):
        bind_augments(net({**options, 'encoder': options['decoder']}))
    with pytest.raises(UserFileError, match=r'decoder .*distances.pt holds a Tensor'):
        bind_augments(net({**options, 'decoder': options['distances']}))
    with pytest.raises(UserValueError, match=r'distances .*decoder.pth must be a matrix of 5 x 5, .* is a dict'):
        bind_augments(net({**options, 'distances': options['decoder']}))


@pytest.mark.parametrize(
    'distances, message',
    [
        ([[0.0] * 4] * 4, r'5 x 5.*has shape \(4, 4\)'),
        ([[0.0, 1.0], [1.0]], 'rows of numbers of one length'),
        ([[float('nan')] * 5] + [[0.0] * 5] * 4, 'no distance for classes 0 '),
        ([[0.0] * 5] * 4 + [[0.0, -1.0, 0.0, 0.0, 0.0]], 'no distance for the classes 4 and 1'),
    ],
)
def test_distances_that_do_not_fit_stop_before_training(options, distances, message):
    with pytest.raises(UserValueError, match=f'StyleCutMix: distances.*{message}'):
        bind_augments(net({**options, 'distances': distances}))


@pytest.mark.parametrize(
    'argument, value',
    [('encoder', None), ('distances', 3), ('r', 1.2), ('delta', 0), ('alpha', -1), ('same_class', -1), ('size', 30)],
)
def test_bad_arguments_are_named(argument, value):
    with pytest.raises((UserTypeError, UserValueError), match=f'StyleCutMix: {argument}={value}'):
        StyleCutMix(**{**dict(encoder='a', decoder='b', distances='c'), argument: value})
