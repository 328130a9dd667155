"""The shipped classifiers on small images: measured once, left out without data, and never in the way of the rest."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mmrm.datasets import RMCIFAR10
from mmrm.weights.build import build, load
from projects.demo import picture, small_images, stages
from projects.demo.verdict import small_noise, small_verdict
from tools.analysis import scale_sensitivity

FOUND = {method: {side: 30.0 + side + number for side in small_images.SIDES} for number, method in enumerate('abc')}


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch) -> Path:
    """A data folder without CIFAR-10."""
    monkeypatch.setenv('MMRM_DATA', str(tmp_path / 'data'))
    return tmp_path / 'data'


def fake_tool(tmp_path, monkeypatch, code: str) -> None:
    """Put a script in the place of get_cifar10.py."""
    (tmp_path / 'tools').mkdir()
    (tmp_path / 'tools' / 'get_cifar10.py').write_text(code)
    monkeypatch.setattr(small_images.paths, 'shipped', lambda: tmp_path)


# -------------------------------------------------------------------------------------------------------- the images
def test_images_that_are_there_are_not_fetched(tmp_path, no_data, monkeypatch):
    fake_tool(tmp_path, monkeypatch, 'raise SystemExit("fetched")')
    (no_data / 'cifar10' / RMCIFAR10.base_folder).mkdir(parents=True)
    with small_images.fetched(tmp_path) as wait:
        assert wait() == ''
    assert not (tmp_path / small_images.LOG).exists()


def test_missing_images_are_fetched_beside_the_training(tmp_path, no_data, monkeypatch):
    code = f'import pathlib; pathlib.Path({str(no_data / "cifar10" / RMCIFAR10.base_folder)!r}).mkdir(parents=True)'
    fake_tool(tmp_path, monkeypatch, code)
    with small_images.fetched(tmp_path) as wait:
        assert wait() == ''


def test_a_failed_fetch_gives_its_reason(tmp_path, monkeypatch):
    fake_tool(tmp_path, monkeypatch, 'import sys; sys.exit("error: npm is not installed\\n")')
    with small_images.fetched(tmp_path) as wait:
        assert wait() == 'error: npm is not installed'
    with small_images.fetched(tmp_path, wanted=False) as wait:
        assert wait() == 'it is not there'
    assert 'get_cifar10.py' in small_images.left_out('why') and '(why)' in small_images.left_out('why')


@pytest.mark.slow
def test_a_fetch_that_hangs_is_given_up_and_ended(tmp_path, monkeypatch):
    """Its npm as well."""
    npm = tmp_path / 'bin' / 'npm'
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 99\n')
    npm.chmod(0o755)
    monkeypatch.setenv('PATH', str(npm.parent), prepend=os.pathsep)
    monkeypatch.setattr(small_images, 'PATIENCE', 0.1)
    with small_images.fetched(tmp_path) as wait:
        while not ((tmp_path / 'pid').exists() and (tmp_path / 'pid').read_text()):
            time.sleep(0.05)
        assert 'still being fetched' in wait()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / 'pid').read_text()), 0)


# ------------------------------------------------------------------------------------------------------- the numbers
@pytest.mark.slow
def test_the_accuracy_is_that_of_the_whole_image_shrunk(monkeypatch):
    """Against a forward pass by hand."""
    draw = np.random.RandomState(0)
    images, labels = torch.from_numpy(draw.randint(0, 256, (40, 3, 32, 32)).astype('uint8')), draw.randint(0, 10, 40)
    monkeypatch.setattr(scale_sensitivity, 'load_images', lambda *args: (images, labels))
    threads = torch.get_num_threads()
    files = {method: stages.shipped_weights(method) for method in stages.COLUMNS}
    found = small_images.measure(files, images=40)
    assert torch.get_num_threads() == threads and list(found) == ['baseline', 'cutmix', 'rm']
    for method, file in files.items():
        model = build(f'configs/{method}/resnet18-w16_1xb64_cifar10-250.py').eval()
        load(model, file)
        mean, std = model.data_preprocessor.mean, model.data_preprocessor.std
        for side in small_images.SIDES:
            small = F.interpolate(images.float(), [side] * 2, mode='bilinear', antialias=True).round().clamp(0, 255)
            with torch.no_grad():
                top = model((small - mean) / std, mode='tensor').argmax(1).numpy()
            assert found[method][side] == pytest.approx(100 * (top == labels).mean(), abs=0.01), (method, side)


def test_a_measurement_is_kept_for_what_it_was_made_of(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(small_images, 'measure', lambda weights, images: calls.append(images) or FOUND)
    assert small_images.results(tmp_path, {}, 'stamp', missing='no data') == {} and not calls
    first = small_images.results(tmp_path, {}, 'stamp', images=7)
    assert first['small/a'] == dict(value=46.0, sides={'12': 42.0, '16': 46.0, '24': 54.0, '32': 62.0})
    assert small_images.results(tmp_path, {}, 'stamp', missing='gone since') == first and calls == [7]
    small_images.results(tmp_path, {}, 'another', images=8)
    assert calls == [7, 8]


# ---------------------------------------------------------------------------------------------------- what is said
def test_they_have_a_row_a_sentence_and_curves():
    results = {
        f'small/{method}': dict(value=value, sides={'16': value, '32': value + 20})
        for method, value in zip(('baseline', 'cutmix', 'rm'), (37.1, 45.8, 47.2))
    }
    assert stages.make_table(results)[1:] == [['CIFAR-10 at 16 x 16: top-1', '37.1', '45.8', '47.2']]
    assert small_verdict(results, 5.9).startswith(
        'Small images, nothing pasted: RM has +10.1 against the baseline (beyond noise) and +1.4 against CutMix (within'
    )
    from matplotlib.figure import Figure

    axis = Figure().add_subplot()
    picture._draw_sides(axis, {name.split('/')[1]: result['sides'] for name, result in results.items()})
    assert [list(line.get_ydata()) for line in axis.lines] == [[37.1, 57.1], [45.8, 65.8], [47.2, 67.2]]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ['baseline', 'CutMix', 'RM']


def test_their_noise_is_that_of_the_control():
    def result(seed, value, side='16'):
        return dict(task='t', mode='frozen', method='rm', seed=seed, value=0, metrics={}, alone={side: value})

    # A variance of 2, so the difference of two runs has one of 4; Student's t with one degree of freedom.
    # The same seed in another task counts once.
    results = [result(0, 40), result(1, 42), result(1, 42), result(2, 99, side='12')]
    assert small_noise(16, results) == pytest.approx(12.7062 * 2, rel=1e-5)
    assert small_noise(16, []) is None and small_noise(16) < 10
