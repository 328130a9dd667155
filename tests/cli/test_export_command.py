"""mmrm export: the logits of an exported network in other runtimes and libraries, and what its files say of it."""

import functools
import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmpretrain.registry import MODELS
from PIL import Image
from zoo_run import CLASSES, call_main, settings, write_images, write_run

from mmrm.cli.export import logged_result, main
from mmrm.cli.predict import main as predict
from mmrm.weights import deploy, hub
from mmrm.weights.build import open_run
from mmrm.weights.deploy import NOTE, run_file
from mmrm.weights.inputs import Input, Reader, describe_input, normalise
from mmrm.weights.targets import Target


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp('work') / 'river')


@pytest.fixture(scope='module')
def short(tmp_path_factory):
    """A network of few layers, which the exporters are through with sooner."""
    return write_run(tmp_path_factory.mktemp('work') / 'river', 'short')


@pytest.fixture(scope='module')
def wide(tmp_path_factory):
    """A ResNet that other libraries know."""
    return write_run(tmp_path_factory.mktemp('work') / 'river', 'resnet18')


call = functools.partial(call_main, main)


def expected_logits(run, images):
    with torch.no_grad():
        return open_run(run).model(images, mode='tensor')


@pytest.fixture(scope='module', params=['onnx', 'torch.export'])
def program(request, short, tmp_path_factory):
    """A file for another runtime, and which runtime."""
    kind = request.param
    if kind == 'onnx':
        for package in ('onnx', 'onnxscript', 'onnxruntime'):
            pytest.importorskip(package)
    out = tmp_path_factory.mktemp('programs') / ('net.onnx' if kind == 'onnx' else 'net.pt2')
    init_default_scope('mmpretrain')
    main([kind, str(short), str(out), '--dynamic'])
    return out, kind


def read_note(file):
    """What a program says of itself, read without mmrm."""
    if file.suffix == '.onnx':
        import onnxruntime

        found = onnxruntime.InferenceSession(str(file)).get_modelmeta().custom_metadata_map
        return {key: json.loads(value) if value[0] in '[{' else value for key, value in found.items()}
    extra = {NOTE: ''}
    torch.export.load(str(file), extra_files=extra)
    return json.loads(extra[NOTE])


def test_a_program_has_the_same_logits_for_any_number_of_images_and_says_what_goes_in(program, short, tmp_path):
    out, kind = program
    images = torch.randn(5, 3, 64, 64)
    torch.testing.assert_close(run_file(out, kind, images), expected_logits(short, images), rtol=1e-4, atol=1e-4)
    note = read_note(out)
    assert (note['mean'], note['std']) == ([120.0, 110.0, 100.0], [60.0, 50.0, 40.0])
    assert note['size'] == [64, 64] and note['channel_order'] == 'rgb' and tuple(note['classes']) == CLASSES
    assert [step['type'] for step in note['pipeline']][1:3] == ['ResizeEdge', 'CenterCrop']
    assert note['origin']['file'] == 'best_accuracy_top1_epoch_2.pth' and len(note['origin']['sha256']) == 64
    assert b'fc_roi' not in out.read_bytes()


def test_the_script_beside_a_network_gives_the_probabilities_of_predict(program, short, tmp_path, capsys):
    """Run as it stands, on images that are wide, tall, a JPEG and a PNG of 16 bits."""
    out, kind = program
    if kind != 'onnx':
        pytest.skip('is for ONNX')
    images = write_images(tmp_path / 'images')
    Image.open(images[1]).rotate(90, expand=True).save(images[1])
    Image.open(images[2]).save(tmp_path / 'images' / 'photo.jpg', quality=95)
    deep = np.asarray(Image.open(images[0]).convert('L')).astype(np.uint16) * 250
    Image.fromarray(deep).save(tmp_path / 'images' / 'deep.png')  # grey of 16 bits
    images += [tmp_path / 'images' / 'photo.jpg', tmp_path / 'images' / 'deep.png']
    assert call_main(predict, capsys, short, *images, '--json', tmp_path / 'expected.json')[0] == 0
    command = [sys.executable, out.with_name('predict_onnx.py'), out, *images]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for line, row in zip(done.stdout.splitlines(), json.loads((tmp_path / 'expected.json').read_text())):
        file, *found = line.split('   ')
        assert file == row['file'] and [each.split()[0] for each in found] == [each['name'] for each in row['classes']]
        expected = [each['score'] for each in row['classes']]
        np.testing.assert_allclose([float(each.split()[1]) for each in found], expected, atol=1e-3)


@pytest.mark.parametrize(
    'steps, written',
    [
        ([dict(type='ResizeEdge', scale=72, edge='short'), dict(type='CenterCrop', crop_size=(64, 48))], True),
        ([dict(type='Resize', scale=(72, 60), interpolation='bicubic')], True),
        ([dict(type='Resize', scale=64, backend='pillow', interpolation='lanczos')], True),
        ([dict(type='Resize', scale=(72, 60), keep_ratio=True), dict(type='CenterCrop', crop_size=40)], False),
        ([dict(type='ResizeEdge', scale=72, edge='long'), dict(type='CenterCrop', crop_size=40)], False),
    ],
)
def test_the_script_is_written_only_where_it_reads_images_as_the_pipeline_does(steps, written, tmp_path):
    config = settings()
    steps = [dict(type='LoadImageFromFile'), *steps, dict(type='PackInputs')]
    config['test_dataloader'] = dict(dataset=dict(type='CustomDataset', pipeline=steps))
    cfg = Config(config)
    note = describe_input(cfg).note()
    preprocessor = MODELS.build(cfg.data_preprocessor)
    found = deploy.write_script(tmp_path / 'net.onnx', note, Reader(cfg), preprocessor)
    assert (found == tmp_path / 'predict_onnx.py') is written is found.is_file() if found else not written


class OwnLoader(LoadImageFromFile):
    """A loader that is not known by its name."""


class RGBLoader(LoadImageFromFile):
    def transform(self, results):
        results = super().transform(results)
        results['img'] = results['img'][..., ::-1].copy()
        return results


@pytest.mark.parametrize(
    'loader, to_rgb, order', [(OwnLoader, True, 'rgb'), (OwnLoader, False, 'bgr'), (RGBLoader, False, 'rgb')]
)
def test_the_order_of_the_channels_is_what_the_network_gets(loader, to_rgb, order):
    """The pipeline is asked, on a red image."""
    config = settings(to_rgb=to_rgb)
    config['test_dataloader']['dataset']['pipeline'][0] = dict(type=loader)
    assert describe_input(Config(config)).order == order


@pytest.mark.parametrize(
    'argv, message',
    [
        (('onnx', 'RUN', 'net.pth'), 'must end in .onnx'),
        (('classifier', 'RUN', 'net.pth', '--dynamic'), 'unrecognized arguments: --dynamic'),
        (('torch.export', 'RUN', 'net.pt2', '--size', '1', '2', '3'), '--size takes height and width'),
        (('classifier', 'RUN', 'net.pth', '--layout', 'timm'), "timm's ResNets have the width 64"),
        (('huggingface', 'RUN', 'OUT/net', '--library', 'timm'), "timm's ResNets have the width 64"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(argv, message, run, tmp_path, capsys, monkeypatch):
    if argv[0] == 'onnx':
        pytest.importorskip('onnxruntime')
    monkeypatch.chdir(tmp_path)
    argv = [{'RUN': str(run)}.get(each, each.replace('OUT', str(tmp_path))) for each in argv]
    code, _, err = call(capsys, *argv)
    assert code == 2 and message in err and len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_weights_are_written_and_described_in_one_line(run, tmp_path, capsys):
    for kind, options in (('backbone', ['--half']), ('classifier', ['--config', run / 'config.py'])):
        code, out, _ = call(capsys, kind, run, tmp_path / f'{kind}.pth', *options)
        assert code == 0 and f'{kind}.pth: {kind}, ResNet(depth=18' in out and 'sha256 ' in out
        assert (tmp_path / f'{kind}.pth').is_file()


def test_without_onnx_the_package_to_install_is_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    code, _, err = call(capsys, 'onnx', run, tmp_path / 'net.onnx')
    assert code == 2 and 'requirements/onnx.txt' in err


# ------------------------------------------------------------------------------------------------ Hugging Face's hub
@pytest.fixture(scope='module')
def folder(wide, tmp_path_factory):
    pytest.importorskip('timm')
    out = tmp_path_factory.mktemp('hub') / 'otters'
    init_default_scope('mmpretrain')
    main(['huggingface', str(wide), str(out), '--licence', 'cc-by-4.0', '--command', 'mmrm train river.py'])
    return out


def test_timm_loads_the_folder_offline_and_has_the_same_logits(wide, folder):
    import timm
    from timm.data import resolve_model_data_config

    model = timm.create_model(f'local-dir:{folder}', pretrained=True).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), expected_logits(wide, images), rtol=1e-4, atol=1e-4)
    config = resolve_model_data_config(model)
    assert tuple(config['input_size']) == (3, 64, 64) and config['crop_pct'] == pytest.approx(64 / 72, abs=1e-4)
    np.testing.assert_allclose(np.multiply(config['mean'], 255), [120, 110, 100])
    np.testing.assert_allclose(np.multiply(config['std'], 255), [60, 50, 40])
    assert config['interpolation'] == 'bicubic'
    assert json.loads((folder / 'config.json').read_text())['label_names'] == list(CLASSES)


@pytest.mark.parametrize('crop', [False, True])
def test_timm_gets_the_same_pixels_without_normalisation_and_with_a_squashing_resize(crop):
    """An image that is not square, read by timm's own transform and as mmpretrain resizes it."""
    pytest.importorskip('timm')
    from timm.data import create_transform

    side = 80 if crop else 64
    steps = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=[side, side], interpolation='bilinear')]
    steps += [dict(type='CenterCrop', crop_size=64)] if crop else []
    target = Target({}, torch.nn.Identity, '', hub=dict(architecture='resnet18'))
    config = hub.timm_config(list(CLASSES), target, Input((64, 64), None, None, 'rgb', steps))['pretrained_cfg']
    read = create_transform(
        **{key: config[key] for key in ('input_size', 'interpolation', 'mean', 'std', 'crop_pct', 'crop_mode')}
    )
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (90, 120, 3), np.uint8))
    start = (side - 64) // 2
    expected = np.asarray(image.resize((side, side), Image.BILINEAR))[start : start + 64, start : start + 64]
    np.testing.assert_allclose(read(image).numpy(), expected.transpose(2, 0, 1), atol=0.01)


def test_the_card_has_what_the_log_says_and_nothing_else(folder, wide):
    card = (folder / 'README.md').read_text()
    for words in (
        'after 2 epochs: top-1 80.00 %, top-5 100.00 %',
        'CustomDataset (river)',
        "type='RecursiveMix'",
        'omega=0.5',
        'max_epochs=3',
        'lr=0.1',
        '3 classes, 64 x 64 pixels',
        'mmrm train river.py',
        "timm.create_model('local-dir:otters', pretrained=True)",
    ):
        assert words in card, words
    assert hashlib.sha256((folder / 'model.safetensors').read_bytes()).hexdigest() in card
    yaml = pytest.importorskip('yaml')
    header = yaml.safe_load(card.split('---')[1])
    assert header['library_name'] == 'timm' and header['license'] == 'cc-by-4.0' and 'recursivemix' in header['tags']
    assert header['model-index'][0]['results'][0]['metrics'][0]['value'] == 80.0


def test_a_card_has_no_accuracy_without_a_log_nor_of_another_checkpoint(run, tmp_path):
    """Epoch 9 was not validated, and iteration 3 is not epoch 3."""
    opened = open_run(run)
    card = hub.card(opened, describe_input(opened.cfg), 'otters', 'timm', 'abc')
    assert 'its accuracy is not known' in card and 'model-index' not in card and 'license:' not in card
    assert logged_result(opened.checkpoint).top1 == 80.0
    for file in (run / 'epoch_9.pth', run / 'iter_3.pth', tmp_path / 'best_accuracy_top1_epoch_2.pth'):
        assert logged_result(file) is None


def test_transformers_loads_the_folder_offline_and_has_the_same_logits(wide, tmp_path, capsys):
    transformers = pytest.importorskip('transformers')
    out = tmp_path / 'otters'
    assert call(capsys, 'huggingface', wide, out, '--library', 'transformers')[0] == 0
    model = transformers.AutoModelForImageClassification.from_pretrained(str(out)).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images).logits, expected_logits(wide, images), rtol=1e-4, atol=1e-4)
    assert model.config.id2label == dict(enumerate(CLASSES))
    processor = transformers.AutoImageProcessor.from_pretrained(str(out))
    file = write_images(tmp_path / 'images', 1)[0]
    opened = open_run(wide)
    expected = normalise(Reader(opened.cfg)(file), opened.model.data_preprocessor)
    found = processor(Image.open(file).convert('RGB'), return_tensors='pt')['pixel_values']
    assert found.shape == expected.shape and (found - expected).abs().mean() < 0.02


def test_preprocessor_config_of_transformers():
    """Its names for a short edge and a crop, and for a resize to a fixed size; with and without normalisation."""
    target = Target({}, torch.nn.Identity, '')
    steps = [dict(type='ResizeEdge', scale=72, interpolation='bicubic'), dict(type='CenterCrop', crop_size=64)]
    found = hub.image_processor(target, Input((64, 64), [51.0] * 3, [255.0] * 3, 'rgb', steps))
    assert found['size'] == dict(shortest_edge=72) and found['crop_size'] == dict(height=64, width=64)
    assert found['do_center_crop'] and found['resample'] == 3 and found['image_mean'] == [0.2] * 3
    found = hub.image_processor(target, Input((48, 64), None, None, 'rgb', [dict(type='Resize', scale=[64, 48])]))
    assert found['size'] == dict(height=48, width=64) and not found['do_center_crop']
    assert found['image_mean'] == [0.0] * 3 and found['image_std'] == [1 / 255] * 3


def test_a_folder_that_holds_something_is_left_alone(run, folder, capsys):
    before = sorted(path.name for path in folder.iterdir())
    code, _, err = call(capsys, 'huggingface', run, folder)
    assert code == 2 and 'already exists' in err
    assert sorted(path.name for path in folder.iterdir()) == before
    assert not [path for path in folder.parent.iterdir() if path.name.startswith('.')]


def test_colours_in_another_order_are_refused(tmp_path, capsys):
    run = write_run(tmp_path / 'river', to_rgb=False)
    code, _, err = call(capsys, 'huggingface', run, tmp_path / 'out')
    assert code == 2 and 'BGR' in err and not (tmp_path / 'out').exists()
