"""Probabilities of batch augments are checked before a run, and named."""

import pytest
from mmengine.config import Config
from tiny_run import write_run

from mmrm.cli import preflight, train
from mmrm.utils.errors import UserValueError

TWO = [dict(type='RecursiveMix', alpha=0.5), dict(type='MoEx', lam=0.5, layer='bn1')]


def config(probs, augments=TWO):
    return Config(dict(model=dict(data_preprocessor=dict(batch_augments=dict(augments=augments, probs=probs)))))


@pytest.mark.parametrize(
    'probs, message',
    [
        ([0.5, 1.5], r'probs = \[0.5, 1.5\]: every probability must be a number from 0 to 1'),
        ([0.7, 0.6], r'probs = \[0.7, 0.6\]: their sum is 1.3 and must be at most 1'),
        (0.5, r'probs = 0.5: 1 for 2 augment\(s\); one for each is needed'),
        ([0.5, '0.5'], 'every probability must be a number'),
    ],
)
def test_wrong_probabilities_are_named(probs, message):
    with pytest.raises(UserValueError, match=message):
        preflight.check_batch_augments(config(probs))


@pytest.mark.parametrize(
    'probs, augments, kind',
    [(None, TWO, type(None)), ([0.5, 0.5], TWO, list), ((0, 1), TWO, tuple), (1, TWO[1], float)],
)
def test_right_probabilities_keep_their_values(probs, augments, kind):
    cfg = config(probs, augments)
    preflight.check_batch_augments(cfg)
    checked = cfg.model.data_preprocessor.batch_augments.probs
    assert checked == probs and isinstance(checked, kind)


def test_a_training_run_is_checked(tmp_path, monkeypatch):
    monkeypatch.setenv('MMRM_DEVICE', 'cpu')
    path = write_run(tmp_path, images=2)
    args = train.parser().parse_args(
        [str(path), '--device', 'cpu', '--cfg-options', 'model.data_preprocessor.batch_augments.probs=1.5']
    )
    with pytest.raises(UserValueError, match='must be a number from 0 to 1'):
        preflight.prepare_train(args)
