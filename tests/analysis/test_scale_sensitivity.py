"""Pasted images, pixel by pixel, and the accuracy of a classifier whose answers are known."""

import numpy as np
import pytest
import torch
from tiny_run import write_trained
from torch import nn

from mmrm.utils.errors import UserValueError
from tools.analysis import classifiers, scale_sensitivity


def test_the_whole_image_is_pasted_smaller_and_the_rest_is_background():
    image = torch.zeros(1, 1, 8, 8)
    image[..., 4:, :] = 100.0  # white below
    ground = torch.full((1, 1, 8, 8), 7.0)
    pasted = scale_sensitivity.paste(image, ground, 0.5, torch.tensor([[1.0, 0.0]]), 'nearest')[0, 0]
    expected = torch.full((8, 8), 7.0)
    expected[4:6, :4], expected[6:, :4] = 0.0, 100.0  # lower left, black over white
    assert torch.equal(pasted, expected)
    assert torch.equal(ground, torch.full((1, 1, 8, 8), 7.0))
    for interpolation in scale_sensitivity.INTERPOLATIONS:
        pasted = scale_sensitivity.paste(image, ground, 1.0, torch.rand(1, 2), interpolation)
        assert torch.allclose(pasted, image, atol=1e-5), 'scale 1 is the image itself'


def test_backgrounds_are_of_another_class():
    labels = np.array([0, 0, 1, 2, 2, 2])
    partners = scale_sensitivity.other_class(labels, seed=1)
    assert (labels[partners] != labels).all()
    with pytest.raises(UserValueError, match='all test images are of one class'):
        scale_sensitivity.other_class(np.zeros(4, int))


class BrightestShare(nn.Module):
    """Answers by area: class 1 if most pixels are white, class 0 if most are black, class 2 for grey."""

    def forward(self, inputs, mode):
        shares = [(inputs < 50), (inputs > 200), (inputs > 50) & (inputs < 200)]
        return torch.stack([share.float().mean((1, 2, 3)) for share in shares], 1)

    @staticmethod
    def data_preprocessor(data, training):
        return dict(inputs=torch.stack(data['inputs']).float())


@pytest.fixture
def measured(monkeypatch):
    """A classifier by area on black (class 0) and white (class 1) images of 20 pixels a side."""
    images = torch.zeros(6, 3, 20, 20, dtype=torch.uint8)
    images[3:] = 255
    labels = np.array([0, 0, 0, 1, 1, 1])
    monkeypatch.setattr(scale_sensitivity, 'load_images', lambda *args: (images, labels))
    monkeypatch.setattr(classifiers, 'check_same_classes', lambda models: None)
    model = classifiers.Trained('area', BrightestShare(), None, 'none.pth')
    every = (*scale_sensitivity.BACKGROUNDS, scale_sensitivity.NOTHING)
    # One that is named twice counts once.
    points = scale_sensitivity.measure([model], (1.0, 0.8, 0.6, 1), batch=4, backgrounds=(*every, 'grey'))
    assert len(points) == 9
    return {(point.background, point.scale): point for point in points}


def test_accuracy_is_that_of_an_object_s_area(measured):
    # 0.8 squared is 64 % of the pixels, 0.6 squared 36 %.
    assert [measured['grey', scale].accuracy for scale in (1.0, 0.8, 0.6)] == [100.0, 100.0, 0.0]
    assert [measured['other class', scale].accuracy for scale in (1.0, 0.8, 0.6)] == [100.0, 100.0, 0.0]
    assert [measured['other class', scale].fooled for scale in (1.0, 0.8, 0.6)] == [0.0, 0.0, 100.0]
    assert [measured['nothing', scale].accuracy for scale in (1.0, 0.8, 0.6)] == [100.0, 100.0, 100.0]
    assert [measured['grey', scale].fooled for scale in (0.8, 0.6)] == [0.0, 0.0]
    # Both objects are in the first two places once both are seen.
    assert measured['other class', 0.8].both == measured['other class', 0.6].both == 100.0
    assert measured['grey', 0.6].both == 0.0


def test_checkpoints_of_one_name_are_seeds():
    points = [
        scale_sensitivity.Point('RM', f'{seed}.pth', 'grey', scale, accuracy, 0, 0)
        for seed, accuracy in enumerate((60.0, 70.0))
        for scale in (0.5, 1.0)
    ]
    [line] = scale_sensitivity.draw(points).axes[0].lines
    assert line.get_xdata().tolist() == [1.0, 0.5] and line.get_ydata().tolist() == [65.0, 65.0]


def test_a_real_checkpoint_from_its_own_data(tmp_path):
    trained = classifiers.load_classifier('RM', *write_trained(tmp_path))
    with pytest.raises(UserValueError, match='9999 images from a data set of'):
        scale_sensitivity.measure([trained], images=9999)
    points = scale_sensitivity.measure([trained], scales=(1.0, 0.5), images=6)
    assert len(points) == 4 and all(0 <= point.accuracy <= 100 for point in points)
    figure = scale_sensitivity.draw(points, foot=['x'])
    assert [axes.get_title() for axes in figure.axes] == [title for *_, title in scale_sensitivity.PANELS[:3]]
    alone = scale_sensitivity.measure([trained], scales=(1.0, 0.5), images=6, backgrounds=['nothing'])
    assert alone[0].accuracy == points[0].accuracy  # at its full size an image has no surroundings
    assert len(scale_sensitivity.draw(alone).axes) == 1
    assert len(scale_sensitivity.table_lines(points)[0]) == len(scale_sensitivity.HEADERS)


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(UserValueError, match=r'scale=1\.5 must be in \(0, 1\]'):
        scale_sensitivity.measure([], scales=(1.5,))
    with pytest.raises(UserValueError, match='images=1 must be 2 or more'):
        scale_sensitivity.measure([], images=1)
    with pytest.raises(UserValueError, match="background='sea' must be one of grey, other class, nothing"):
        scale_sensitivity.measure([], backgrounds=['sea'])
    with pytest.raises(UserValueError, match="interpolation='cubic' must be one of"):
        scale_sensitivity.paste(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), 0.5, torch.zeros(1, 2), 'cubic')
