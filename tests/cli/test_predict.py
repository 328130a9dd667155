"""mmrm predict: classes and scores as the toolbox's own inferencer has them; a broken image does not end it."""

import functools
import json

import numpy as np
import pytest
import torch
from PIL import Image
from zoo_run import CLASSES, call_main, write_images, write_run

from mmrm.cli.predict import main


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp('work') / 'run')


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp('images'))


call = functools.partial(call_main, main)


def test_the_scores_are_those_of_mmpretrains_inferencer(run, images, capsys):
    from mmpretrain import ImageClassificationInferencer

    code, out, _ = call(capsys, run, *images, '--json', '--device', 'cpu')
    found = json.loads(out)
    assert code == 0 and [each['file'] for each in found] == [str(each) for each in images]
    checkpoint = next(run.glob('best_*.pth'))
    inferencer = ImageClassificationInferencer(str(run / 'config.py'), pretrained=str(checkpoint), device='cpu')
    for each, expected in zip(found, inferencer([str(each) for each in images])):
        scores = {row['index']: row['score'] for row in each['classes']}
        np.testing.assert_allclose([scores[n] for n in range(3)], expected['pred_scores'], atol=2e-6)
        assert each['classes'][0]['name'] == expected['pred_class'] and expected['pred_class'] in CLASSES


def test_predict_prints_a_table(run, images, capsys):
    code, out, _ = call(capsys, run, images[0], '--top', '2', '--device', 'cpu')
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ['image', 'classes'] and len(lines) == 2
    assert lines[1].startswith(str(images[0])) and sum(name in lines[1] for name in CLASSES) == 2


def test_broken_images_in_a_folder_are_named_and_the_others_predicted(run, images, tmp_path, capsys):
    folder = tmp_path / 'mine'
    (folder / 'deeper').mkdir(parents=True)
    (folder / 'good.png').write_bytes(images[0].read_bytes())
    (folder / 'deeper' / 'empty.jpg').touch()
    (folder / 'text.png').write_text('not an image')
    photograph = tmp_path / 'photograph.jpg'
    Image.open(images[1]).resize((400, 300)).save(photograph)
    (folder / 'torn.jpg').write_bytes(photograph.read_bytes()[:4000])
    (folder / 'notes.txt').write_text('read only where it is named')
    code, out, err = call(capsys, run, folder / 'notes.txt', '--device', 'cpu')
    assert code == 1 and f'error: image {folder / "notes.txt"} is not an image' in err
    code, out, err = call(capsys, run, folder, '--json', '--device', 'cpu')
    found = {each['file']: each for each in json.loads(out)}
    assert code == 1 and len(found) == 4 and 'classes' in found[str(folder / 'good.png')]
    lines = err.splitlines()
    assert sum(line.startswith('error: ') for line in lines) == 3 and lines[-1] == '3 of 4 images could not be read'
    assert 'empty.jpg is empty' in err and 'torn.jpg is cut short' in err and 'text.png is not an image' in err


def test_maps_are_written_beside_and_never_replaced_unasked(run, images, tmp_path, capsys):
    pytest.importorskip('pytorch_grad_cam')
    out = tmp_path / 'maps'
    code, _, err = call(capsys, run, images[0], '--cam', out, '--device', 'cpu')
    assert code == 0 and [file.name for file in out.iterdir()] == ['0_cam.png'] and '1 pictures' in err
    assert Image.open(out / '0_cam.png').size[0] > 300
    code, _, err = call(capsys, run, images[0], '--cam', out, '--device', 'cpu')
    assert code == 2 and 'already exists' in err


def test_config_of_a_checkpoint_is_not_executed_and_a_missing_one_is_named(run, images, tmp_path, capsys):
    saved = torch.load(next(run.glob('best_*.pth')), weights_only=False)
    mark = tmp_path / 'executed'
    saved['meta']['cfg'] += f'\nwrong = open({str(mark)!r}, "w")\nimport os\n'
    torch.save(saved, tmp_path / 'alone.pth')
    assert call(capsys, tmp_path / 'alone.pth', images[0], '--device', 'cpu')[0] == 0
    assert not mark.exists()
    torch.save(dict(state_dict=saved['state_dict']), tmp_path / 'bare.pth')
    code, _, err = call(capsys, tmp_path / 'bare.pth', images[0], '--device', 'cpu')
    assert code == 2 and 'has no config' in err and '--config' in err
    code, out, _ = call(capsys, tmp_path / 'bare.pth', images[0], '--config', run / 'config.py', '--device', 'cpu')
    assert code == 0 and 'class ' in out


@pytest.mark.parametrize(
    'argv, message',
    [
        (('nowhere', 'IMAGE'), 'weights nowhere do not exist'),
        (('RUN', 'no.png'), 'image no.png does not exist'),
        (('RUN', 'EMPTY'), 'is a folder without images'),
        (('TEXT', 'IMAGE'), 'notes.txt'),
        (('RUN', 'IMAGE', '--json', 'out.txt'), 'must end in .json'),
        (('RUN', 'IMAGE', '--top', '0'), "'0' is not a whole number"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(argv, message, run, images, tmp_path, capsys):
    (tmp_path / 'notes.txt').write_text('not a checkpoint')
    known = {'RUN': run, 'IMAGE': images[0], 'EMPTY': tmp_path, 'TEXT': tmp_path / 'notes.txt'}
    code, out, err = call(capsys, *(known.get(each, each) for each in argv), '--device', 'cpu')
    assert code == 2 and message in err and len(err.splitlines()) == 1 and not out


def test_cifars_network_gets_its_32_pixels(tmp_path, images):
    """The data set holds pixels in RGB, so files are read, shrunk and turned."""
    from mmengine.config import Config

    from mmrm.utils.paths import shipped
    from mmrm.weights.inputs import Reader, describe_input

    cfg = Config.fromfile(shipped() / 'configs/rm/resnet18-w16_2xb64_cifar10.py')
    assert describe_input(cfg).size == (32, 32) and describe_input(cfg).order == 'rgb'
    found = Reader(cfg)(images[0])
    expected = np.asarray(Image.open(images[0]).convert('RGB').resize((32, 32), Image.BOX), np.float32)
    assert found.shape == (32, 32, 3) and np.abs(found - expected).mean() < 6
    # What the test pipeline does with the 32 pixels is done here, too.
    cfg.test_dataloader.dataset.pipeline = [dict(type='Resize', scale=64), dict(type='PackInputs')]
    large = Reader(cfg)(images[0])
    assert describe_input(cfg).size == (64, 64) and large.shape == (64, 64, 3)
    assert np.abs(large[::2, ::2].astype(float) - expected).mean() < 20
