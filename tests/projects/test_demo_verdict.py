"""What the demo says of its own numbers."""

from pathlib import Path

import pytest

from projects.demo import small_images
from projects.demo.verdict import measured_noise, small_noise, verdict

RESULTS = {
    'atss/rm': dict(value=41.26),
    'atss/baseline': dict(value=40.04),
    'atss/cutmix': dict(value=44.5),
    'pspnet/rm': dict(value=50.0),
    'pspnet/baseline': dict(value=50.0),
    'pspnet/cutmix': dict(value=50.44),
}


def test_a_difference_is_within_noise_or_beyond_it():
    atss, pspnet = verdict(RESULTS, dict(atss=1.3, pspnet=0.3))
    assert atss.startswith(
        'ATSS: RM has +1.3 against the baseline (within noise) and -3.2 against CutMix (beyond noise).'
    )
    assert 'differ by up to 1.3 points' in atss and 'on BCCD' in atss
    assert pspnet.startswith('PSPNet: RM has +0.0 against the baseline (within noise) and -0.4 against CutMix (beyond')
    assert 'CamVid' in pspnet


def test_without_a_measured_noise_it_claims_nothing():
    for line in verdict(RESULTS, dict(atss=None, pspnet=None)):
        assert 'A single run tells little' in line and 'projects/transfer' in line and 'noise' not in line


def test_the_noise_is_that_of_frozen_backbones_on_the_nearest_task():
    def result(task, mode, seed, value, method='rm'):
        return dict(task=task, mode=mode, method=method, seed=seed, value=value, metrics={})

    results = [
        *(result('atss-bccd', 'frozen', seed, value) for seed, value in enumerate((40, 42))),
        *(result('atss-bccd', 'tuned', seed, value) for seed, value in enumerate((40, 60))),
        *(result('pspnet-scenes', 'frozen', seed, value) for seed, value in enumerate((40, 60))),
    ]
    # A variance of 2, so the difference of two runs has one of 4; Student's t with one degree of freedom.
    assert measured_noise(results) == dict(atss=pytest.approx(12.7062 * 2, rel=1e-5), pspnet=None)
    assert measured_noise([]) == dict(atss=None, pspnet=None)


def test_the_page_tells_the_noise_that_the_demo_tells():
    page = (Path(__file__).parents[2] / 'projects' / 'demo' / 'README.md').read_text()
    noise = measured_noise()
    assert f'within noise ({noise["atss"]:.1f})' in page and f'that of CamVid ({noise["pspnet"]:.1f})' in page
    assert f'beyond noise ({small_noise(small_images.SHOWN):.1f})' in page
    assert f'name {small_images.IMAGES} test images' in page
