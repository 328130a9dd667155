"""Class activation maps: of a model whose map is known, of one that has none, side by side in a figure."""

import sys
from importlib.util import find_spec

import cv2
import numpy as np
import pytest
import torch
from helpers import classifier
from mmengine.config import Config
from mmpretrain.registry import MODELS
from PIL import Image
from tiny_run import write_trained
from torch import nn

from mmrm.report import cam
from mmrm.utils.errors import UserError, UserFileError, UserValueError
from mmrm.weights.inputs import Reader, normalise
from tools.analysis import cam as script
from tools.analysis import classifiers

CELLS = 4


@MODELS.register_module()
class CellMeans(nn.Module):
    """A backbone whose feature map is the mean colour of each cell, times one."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, images):
        return (nn.functional.adaptive_avg_pool2d(images, CELLS) * self.one,)


def known(head='RMConsistencyHead'):
    """A classifier of the mean colour: class k looks for channel k, and the last one for what is not blue."""
    neck = None if head == 'RMConsistencyHead' else dict(type='GlobalAveragePooling')
    parts = dict(backbone=dict(type='CellMeans'), neck=neck, head=dict(type=head, num_classes=4, in_channels=3))
    model = MODELS.build(dict(type='ImageClassifier', **parts)).eval()
    with torch.no_grad():
        model.head.fc.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, -1]]))
        model.head.fc.bias.zero_()
    return model


def zhou(weights, features, size):
    """CAM as its authors define it: the class's weights on every cell; negative evidence out, scaled, enlarged."""
    heat = np.maximum(np.tensordot(weights, features, 1), 0)
    for enlarge in (False, True):
        if enlarge:
            heat = cv2.resize(heat, size[::-1])
        heat = heat - heat.min()
        heat = heat / (1e-7 + heat.max())
    return heat


needs_grad_cam = pytest.mark.skipif(find_spec('pytorch_grad_cam') is None, reason='grad-cam is not installed')


@needs_grad_cam
@pytest.mark.parametrize('head', ['RMConsistencyHead', 'LinearClsHead'])
def test_the_map_of_a_pooled_linear_classifier_is_cam(head):
    model = known(head)
    image = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    features = nn.functional.adaptive_avg_pool2d(image, CELLS)[0].numpy()
    maps, likely = cam.activation_maps(model, image, [0, 2, 3])
    assert maps.shape == (3, 32, 48)
    for heat, index in zip(maps, (0, 2, 3)):
        assert np.allclose(heat, zhou(model.head.fc.weight[index].detach().numpy(), features, (32, 48)), atol=1e-5)
    logits = features.mean((1, 2)) @ model.head.fc.weight.detach().numpy().T
    assert np.allclose(likely, (np.exp(logits) / np.exp(logits).sum())[[0, 2, 3]], atol=1e-6)
    with pytest.raises(UserValueError, match='class 4: the model has the classes 0 to 3'):
        cam.activation_maps(model, image, [4])
    with pytest.raises(UserValueError, match="method='CAM' must be one of GradCAM"):
        cam.activation_maps(model, image, [0], 'CAM')


@needs_grad_cam
def test_every_method_runs_on_a_real_network_and_leaves_no_hooks():
    model = classifier().eval()
    for method in cam.METHODS:
        maps, _ = cam.activation_maps(model, torch.randn(1, 3, 64, 64), [1, 4], method)
        assert maps.shape == (2, 64, 64) and maps.min() >= 0 and maps.max() <= 1
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_maps_and_an_installation_without_grad_cam_are_refused(monkeypatch):
    backbone = dict(type='VisionTransformer', arch='deit-t', img_size=32, patch_size=16, out_type='cls_token')
    head = dict(type='VisionTransformerClsHead', num_classes=3, in_channels=192)
    model = MODELS.build(dict(type='ImageClassifier', backbone=backbone, neck=None, head=head))
    with pytest.raises(UserValueError, match=r'VisionTransformer has no feature map .* \(1, 192\)'):
        cam.WithMap(model)(torch.zeros(1, 3, 32, 32))
    monkeypatch.setitem(sys.modules, 'pytorch_grad_cam', None)
    with pytest.raises(UserError, match=r'need the package grad-cam .* requirements/analysis\.txt'):
        cam.grad_cam()


# -------------------------------------------------------------------------------------------------------------- figures
@pytest.fixture(scope='module')
def written(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp('trained'))


@pytest.fixture
def trained(written):
    return classifiers.load_classifier('RM', *written)


def test_images_from_files_keep_their_classes_and_colours(tmp_path, trained):
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[..., 0] = 200  # red
    Image.fromarray(pixels).save(tmp_path / 'red.png')
    subject, guess = script.natural_subjects([f'{tmp_path}/red.png=class1,0', f'{tmp_path}/red.png'], trained)
    assert subject.classes == [1, 0] and subject.labels == ['class1', 'class0']
    assert np.array_equal(script.rgb(subject.image, trained), pixels)
    with torch.no_grad():
        logits = trained.model(normalise(guess.image, trained.model.data_preprocessor), mode='tensor')[0]
    assert guess.classes[0] == int(logits.argmax()) and len(guess.classes) == 2
    with pytest.raises(UserValueError, match="class 'dog' is not in the data set: class0, class1"):
        script.natural_subjects([f'{tmp_path}/red.png=dog'], trained)
    with pytest.raises(UserFileError, match=r'none\.png does not exist'):
        script.natural_subjects([f'{tmp_path}/none.png'], trained)
    (tmp_path / 'text.png').write_text('no image')
    with pytest.raises(UserFileError, match=r'text\.png is not an image'):
        script.natural_subjects([f'{tmp_path}/text.png'], trained)


def test_mixed_images_have_a_map_for_every_class_in_them(trained):
    subjects = script.mixed_subjects(trained, images=2, iterations=4, seed=3)
    for subject in subjects:
        shares = [float(label.rsplit(' ', 1)[1]) for label in subject.labels]
        assert subject.image.dtype == np.uint8 and shares == sorted(shares, reverse=True)
        assert 0.8 < sum(shares) <= 1.01
    again = script.mixed_subjects(trained, images=2, iterations=4, seed=3)
    assert all(np.array_equal(a.image, b.image) for a, b in zip(subjects, again))


@needs_grad_cam
def test_the_script_names_checkpoints_and_data(tmp_path, trained, written, capsys):
    config, checkpoint = write_trained(tmp_path, seed=1)
    other = classifiers.load_classifier('baseline', config, checkpoint)
    figure = script.draw([trained, other], script.mixed_subjects(trained, images=1), data='noise')
    foot = figure._supxlabel.get_text()
    assert 'seed0.pth, epoch 7' in foot and 'seed1.pth, epoch 7' in foot and 'data: noise; GradCAM' in foot
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[1].startswith('RM, p = ') and titles[2].startswith('baseline, p = ')
    script.main([str(tmp_path / 'a.svg'), '--model', 'RM', *map(str, written), '--mixed', '1'])
    assert capsys.readouterr().out.strip() == str(tmp_path / 'a.svg') and (tmp_path / 'a.svg').stat().st_size > 1000


# ---------------------------------------------------------------------------------------------------------- checkpoints
def test_a_checkpoint_of_another_network_is_refused(tmp_path, trained):
    (tmp_path / 'other').mkdir()
    more = "model['head'].update(num_classes=3)\nmodel['data_preprocessor'].update(num_classes=3)\n"
    config, checkpoint = write_trained(tmp_path / 'other', more=more)
    with pytest.raises(UserFileError, match='does not fit the config'):
        classifiers.load_classifier('x', trained.cfg.filename, checkpoint)
    other = classifiers.load_classifier('x', config, checkpoint)
    with pytest.raises(UserValueError, match='different numbers of classes'):
        classifiers.check_same_classes([trained, other])
    with pytest.raises(UserFileError, match='checkpoint none of x does not exist'):
        classifiers.load_classifier('x', config, 'none')
    with pytest.raises(UserValueError, match='there is no model'):
        classifiers.parse_models([])


@needs_grad_cam
def test_an_empty_map_is_marked_and_the_colours_have_a_scale(trained):
    with torch.no_grad():
        trained.model.head.fc.weight[0] = trained.model.head.fc.weight[0].abs() + 0.1
        trained.model.head.fc.weight[1] = -trained.model.head.fc.weight[1].abs() - 0.1
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)  # of 3 x 3 cells
    subject = script.Subject('noise', image, [0, 1], ['a', 'b'])
    figure = script.draw([trained], [subject], data='noise')
    (_, full), (_, empty) = (figure.axes[:2], figure.axes[2:4])
    assert [text.get_text() for text in empty.texts] == ['empty map'] and not full.texts
    assert 'its own maximum' in figure.axes[-1].get_ylabel()


def test_a_file_goes_through_the_validation_where_there_is_no_test(tmp_path):
    """A red picture reaches the network as the pipeline reads it, in BGR and cut to size; it is shown in RGB."""
    Image.new('RGB', (300, 300), (255, 0, 0)).save(tmp_path / 'red.png')
    steps = [dict(type='LoadImageFromFile'), dict(type='CenterCrop', crop_size=224), dict(type='PackInputs')]
    cfg = Config(dict(default_scope='mmpretrain', val_dataloader=dict(dataset=dict(pipeline=steps))))
    trained = classifiers.Trained('val only', None, cfg, 'none.pth')
    image = Reader(cfg)(tmp_path / 'red.png')
    assert image.shape == (224, 224, 3) and image[0, 0].tolist() == [0, 0, 255]
    assert script.rgb(image, trained)[0, 0].tolist() == [255, 0, 0]
