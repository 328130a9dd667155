"""Costs: exact counts of ResNet-50 from the shipped configs, memory and time of small ones."""

import json

import pytest
from tiny_run import write_run

from mmrm.utils.errors import UserValueError
from tools.analysis import classifiers, efficiency
from tools.analysis.timing import interleaved, ratio


@pytest.fixture(scope='module')
def resnet50():
    configs = [f'configs/{kind}/resnet50_8xb64_in1k.py' for kind in ('baseline', 'rm')]
    return efficiency.measure(configs, rounds=0, memory=False)


def test_resnet50_has_the_papers_parameters_and_mmengines_flops(resnet50):
    baseline, rm = resnet50.values()
    assert (baseline.train_params, baseline.deploy_params) == (25_557_032, 25_557_032)
    assert (rm.train_params, rm.deploy_params) == (27_606_032, 25_557_032)
    assert baseline.flops == rm.flops and f'{rm.flops / 1e9:.2f}' == '4.11'


def test_published_numbers_stand_beside_the_measured(resnet50):
    line = efficiency.table_lines(resnet50)[1]
    assert line[0] == 'rm/resnet50_8xb64_in1k'
    assert line[2:5] == ['4.11 (4.12)', '27.61 (27.61)', '25.56 (25.56)']


def test_the_numbers_are_plain_json_named_as_in_the_tables(resnet50):
    known = json.loads(json.dumps(efficiency.as_json(resnet50)))['configs']
    assert known['configs/rm/resnet50_8xb64_in1k.py']['train_params'] == 27_606_032


def test_the_image_size_is_that_of_the_pipeline():
    assert efficiency.image_size(classifiers.load_config('configs/rm/resnet50_8xb64_in1k.py')) == (224, 224)
    assert efficiency.image_size(classifiers.load_config('configs/rm/resnet18_2xb64_cifar10.py')) == (32, 32)


@pytest.mark.slow
def test_memory_grows_with_the_batch_and_rm_adds_its_layer_and_triplet(tmp_path):
    pytest.importorskip('torch.distributed._tools.mem_tracker')
    configs = [f'configs/{kind}/resnet18-w16_2xb64_cifar10.py' for kind in ('baseline', 'rm')]
    baseline, rm = (cost.memory for cost in efficiency.measure(configs, batch=8, rounds=0).values())
    twice = efficiency.measure(configs[1:], batch=16, rounds=0)[configs[1]].memory
    assert rm < twice < 2 * rm  # twice the images, the same weights
    # fc_roi of 128 x 10: weights, gradient and momentum; then batch-sized labels and predictions, one map's gradient.
    extra = 3 * 4 * (128 * 10 + 10)
    assert extra <= rm - baseline < extra + 4 * 8 * (4 * 10 + 2 * 128 * 4 * 4)


def test_time_is_relative_to_the_first_config(tmp_path):
    """Also of what works inside the network."""
    mixing = "model['data_preprocessor']['batch_augments'] = dict(augments=dict(type='MoEx', layer='layer1'))\n"
    config = str(write_run(tmp_path, more=mixing))
    costs = efficiency.measure([config], rounds=2, timing_batch=2, size=32, memory=False)
    assert costs[config].relative == (1.0, 1.0, 1.0) and costs[config].milliseconds > 0


def test_candidates_run_in_turn_as_often_as_asked():
    calls = []
    seconds = interleaved({name: lambda name=name: calls.append(name) for name in 'abc'}, rounds=4)
    assert all(len(values) == 4 for values in seconds.values()) and len(calls) == 15
    assert all(sorted(calls[start : start + 3]) == ['a', 'b', 'c'] for start in range(0, 15, 3))
    assert ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.0)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserValueError, match='is not a classifier'):
        efficiency.measure(['projects/demo/configs/atss_cells.py'])
    with pytest.raises(UserValueError, match='size of its training images is not set'):
        efficiency.measure([str(write_run(tmp_path))])
    with pytest.raises(UserValueError, match='there is no config'):
        efficiency.measure([])
