"""A compiled step: one graph for all boxes, no break in it, the losses of the eager one."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_gpu import overwriting_backend
from helpers import batch, classifier
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmpretrain.models import ImageClassifier
from tiny_run import write_run
from torch._dynamo.utils import counters

from mmrm import reset_history
from mmrm.core import Consistency, RecursiveMix, pool
from mmrm.engine.compiled import compile_losses
from mmrm.engine.runner import Runner
from mmrm.models.samples import SampleBatch, as_batch
from mmrm.report.runs import read_run
from mmrm.utils.errors import UserValueError

STEPS = 12


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def small(**kwargs):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.BatchNorm2d(8), torch.nn.Tanh())
    return classifier(alpha=1.0, omega=0.7, in_channels=8, backbone=net, **kwargs)


def train(model, seed=1):
    """The logged losses of every step, updates included; the history is emptied once on the way."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    wrapper, found = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.05)), []
    for index in range(STEPS):
        if index == STEPS // 2:
            reset_history(model)
        log = model.train_step(batch(4), wrapper)
        found.append({name: float(value.detach()) for name, value in log.items()})
    return found


def assert_close(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        assert a == pytest.approx(b, abs=1e-5)


def test_two_graphs_serve_every_box_without_graph_breaks():
    model = small()
    eager = train(copy.deepcopy(model))
    assert compile_losses(model, dict(backend=overwriting_backend()))  # as CUDA graphs do
    assert_close(train(model), eager)
    assert len({losses['rm_lambda'] for losses in eager}) > 8  # as many boxes
    assert counters['stats']['unique_graphs'] == 2  # with a history and without one
    assert not counters['graph_break']


def test_a_loss_of_the_users_own_is_left_alone():
    class Own(ImageClassifier):
        def loss(self, inputs, data_samples):
            return dict(loss=inputs.sum())

    model = small()
    model.__class__ = Own
    assert not compile_losses(model, dict(backend='eager')) and 'loss' not in vars(model)


def test_core_in_a_plain_loop_compiles_to_one_graph():
    torch.manual_seed(0)
    rm, consistency = RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(1)), Consistency(8, 5)
    net, fc = torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.Linear(8, 5)

    def losses(images, scores, mix):
        mean, region = pool(net(images), mix)
        logits = fc(mean)
        return F.cross_entropy(logits, scores) + consistency(mix, region, logits)

    compiled = torch.compile(losses, backend=overwriting_backend(), fullgraph=True)
    for _ in range(STEPS):
        images, scores, mix = rm.mix(torch.randn(4, 3, 32, 32), torch.randint(5, (4,)))
        expected = losses(images, scores, copy.copy(mix))
        assert torch.allclose(compiled(images, scores, mix), expected, atol=1e-5)
    assert counters['stats']['unique_graphs'] == 2


@pytest.mark.slow
def test_compile_in_a_config_trains_as_without_it(tmp_path_factory):
    found = {}
    for name, more in dict(eager='', compiled="compile = dict(backend='aot_eager')\n").items():
        folder = tmp_path_factory.mktemp(name)
        cfg = Config.fromfile(write_run(folder, epochs=1, more=more))
        cfg.update(work_dir=str(folder / 'run'), log_level='ERROR', experiment_name=f'compiled_{name}')
        Runner.from_cfg(cfg).train()
        found[name] = read_run(folder / 'run').iterations
    assert found['eager'].keys() == found['compiled'].keys() > set()
    for step, record in found['eager'].items():
        for name in ('loss', 'loss_consistency', 'rm_lambda', 'rm_kl'):
            assert found['compiled'][step][name] == pytest.approx(record[name], abs=1e-5), name
    assert counters['stats']['unique_graphs'] == 2 and not counters['graph_break']


@pytest.mark.parametrize('options, told', [('yes', "compile='yes' must be True"), (dict(speed=9), 'speed')])
def test_a_bad_setting_is_named(options, told):
    with pytest.raises(UserValueError, match=told):
        compile_losses(small(), options)
    assert not compile_losses(torch.nn.Linear(2, 2), True) and not compile_losses(small(), False)


def test_a_batch_of_samples_is_read_as_a_list_of_them():
    samples = batch(3)['data_samples']
    packed = as_batch(samples)
    assert isinstance(packed, SampleBatch) and len(packed) == 3 and as_batch(packed) is packed
    assert [int(sample.gt_label) for sample in packed] == [int(sample.gt_label) for sample in samples]
    assert 'gt_score' not in packed[0] and packed[0].get('rm_mix') is None and len(packed[:2]) == 2
    samples[1].set_gt_label([0, 1])  # two labels
    assert as_batch(samples) is samples
    packed = SampleBatch(None, torch.eye(3))
    assert 'gt_label' not in packed[0] and torch.equal(torch.stack([s.gt_score for s in packed]), torch.eye(3))
