"""Heads of several layers, and data with several labels."""

import pytest
import torch
import torch.nn.functional as F
from helpers import batch, classifier, step
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample
from torchvision.ops import roi_align

from mmrm import RMConsistencyHead
from mmrm.core import Box, Mix, kl_divergence

STACK = dict(mid_channels=[6], act_cfg=dict(type='HSwish'))


def head_of(**kwargs):
    torch.manual_seed(0)
    return RMConsistencyHead(num_classes=3, in_channels=4, omega=1.0, **{**STACK, **kwargs})


def loss_of(head, features, mixed=True):
    history = F.softmax(torch.arange(6.0).reshape(2, 3), 1)
    mix = Mix(0.25, 2, Box(0, 0, 16, 16), (32, 32), history if mixed else None)
    samples = [DataSample(metainfo=dict(rm_mix=mix)).set_gt_label(n) for n in range(2)]
    return head.loss((features,), samples), history


def region(features):
    rois = torch.tensor([[n, 0, 0, 16, 16] for n in range(2)], dtype=torch.float32)
    return roi_align(features, rois, 1, 4 / 32, sampling_ratio=-1, aligned=True).flatten(1)


@pytest.mark.parametrize('roi_layers', ['last', 'all'])
def test_the_region_has_a_copy_of_the_last_layer_unless_asked_otherwise(roi_layers):
    head, features = head_of(roi_layers=roi_layers), torch.randn(2, 4, 4, 4)
    own = dict(head.fc_roi.named_parameters())
    assert set(own) == ({'weight', 'bias'} if roi_layers == 'last' else {*dict(head.layers.named_parameters())})
    losses, history = loss_of(head, features)
    hidden = head.layers[0] if roi_layers == 'last' else head.fc_roi[0]
    last = head.fc_roi if roi_layers == 'last' else head.fc_roi[1].fc
    expected = kl_divergence(history, last(F.hardswish(hidden.fc(region(features)))))
    torch.testing.assert_close(losses['loss_consistency'], 0.25 * expected.mean())


@pytest.mark.parametrize('roi_layers', ['last', 'all'])
@pytest.mark.parametrize('mixed', [True, False])
def test_every_parameter_has_a_gradient_in_every_iteration(mixed, roi_layers):
    head = head_of(roi_layers=roi_layers)
    losses, _ = loss_of(head, torch.randn(2, 4, 4, 4), mixed)
    (losses['loss'] + losses['loss_consistency']).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert bool(next(iter(head.fc_roi.parameters())).grad.any()) == mixed


@pytest.mark.parametrize('norm_cfg', [None, dict(type='BN1d')])
def test_stock_head_loads_the_weights_and_has_the_same_logits(norm_cfg):
    head = head_of(dropout_rate=0.2, norm_cfg=norm_cfg).eval()
    stock = MODELS.build(
        dict(type='StackedLinearClsHead', num_classes=3, in_channels=4, dropout_rate=0.2, norm_cfg=norm_cfg, **STACK)
    ).eval()
    missing, extra = stock.load_state_dict(head.state_dict(), strict=False)
    assert not missing and extra == ['fc_roi.weight', 'fc_roi.bias']
    features = torch.randn(2, 4, 4, 4)
    assert torch.equal(head((features,)), stock((features.mean((2, 3)),)))


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(mid_channels=8), r'mid_channels=8 must be a list of widths'),
        (dict(mid_channels=[]), r'mid_channels=\[\] must be'),
        (dict(hidden_dim=8), 'not both'),
        (dict(roi_layers='first'), "roi_layers='first' must be 'last' or 'all'"),
        (dict(roi_layers='all', share_fc=True), 'exclude each other'),
    ],
)
def test_wrong_layers_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        head_of(**wrong)


def multi_label_batch(*order):
    data = batch()
    given = ([0, 2], [1], [3, 4], [2])
    for sample, labels in zip(data['data_samples'], (given[n] for n in order or range(4))):
        sample.set_gt_label(labels)
    return data


def test_several_labels_per_image_as_in_mmpretrains_head_with_a_binary_kl():
    head = dict(type='RMMultiLabelHead', num_classes=5, in_channels=64, omega=0.5)
    model, regions = classifier(alpha=1.0, head=head), []
    model.head.fc_roi.register_forward_hook(lambda _, __, output: regions.append(output))
    for _ in range(3):
        data = model.data_preprocessor(multi_label_batch(), training=True)
        losses = model(**data, mode='loss')
        mix = data['data_samples'][0].rm_mix
    scores = torch.stack([sample.gt_score for sample in data['data_samples']])
    assert mix.lam > 0 and (scores.sum(1) > 1.01).any()
    logits = model.head(model.extract_feat(data['inputs']))
    one, other = (torch.distributions.Bernoulli(probs) for probs in (mix.historical_prediction, regions[-1].sigmoid()))
    assert torch.allclose(losses['rm_kl'], torch.distributions.kl_divergence(one, other).sum(1).mean(), atol=1e-5)
    stock = MODELS.build(dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=64))
    missing, unexpected = stock.load_state_dict(model.head.state_dict(), strict=False)
    assert not missing and set(unexpected) == {'fc_roi.weight', 'fc_roi.bias'}
    assert torch.allclose(losses['loss'], stock._get_loss(logits, data['data_samples'])['loss'], atol=1e-5)
    feats = model.extract_feat(data['inputs'])
    found, expected = model.head.predict(feats), stock.predict((model.head.pool(feats[-1]),))
    assert all(torch.allclose(one.pred_score, other.pred_score, atol=1e-6) for one, other in zip(found, expected))
    with pytest.raises(ValueError, match=r"one label per image, but one has 2.*type='RMMultiLabelHead'"):
        step(classifier(), multi_label_batch())


def test_multi_label_data_mixes_by_area_with_stock_parts():
    """Without consistency."""
    model = classifier(
        alpha=1.0,
        preprocessor='ClsDataPreprocessor',
        head=dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=64),
    )
    model.neck = MODELS.build(dict(type='GlobalAveragePooling'))
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 2, 3, 0)):
        data = model.data_preprocessor(multi_label_batch(*order), training=True)
        assert model(**data, mode='loss')['loss'] > 0
    scores = torch.stack([sample.gt_score for sample in data['data_samples']])
    assert ((scores > 0) & (scores < 1)).any() and scores.sum(1).max() > 1
