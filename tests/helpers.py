"""What several tests build: samples, batches and small classifiers of mmpretrain's own parts."""

import torch
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample

import mmrm.models  # noqa: F401


def batch(number=4, size=(32, 32), num_classes=5, generator=None):
    """A batch as the data loader gives it: uint8 images and samples with labels."""
    images = torch.randint(0, 256, (number, 3, *size), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, num_classes, (number,), generator=generator)
    return dict(inputs=list(images), data_samples=[DataSample().set_gt_label(int(label)) for label in labels])


def classifier(
    num_classes=5,
    omega=0.5,
    alpha=0.5,
    augments=None,
    probs=None,
    backbone=None,
    in_channels=64,
    preprocessor='RMDataPreprocessor',
    head=None,
    **head_args,
):
    """A small stock ImageClassifier with RM, on the CPU, initialised."""
    model = MODELS.build(
        dict(
            type='ImageClassifier',
            data_preprocessor=dict(
                type=preprocessor,
                num_classes=num_classes,
                mean=[127.5] * 3,
                std=[64.0] * 3,
                batch_augments=dict(augments=augments or dict(type='RecursiveMix', alpha=alpha), probs=probs),
            ),
            backbone=backbone or dict(type='ResNet', depth=18, base_channels=8, out_indices=(3,)),
            neck=None,
            head=head
            or dict(
                type='RMConsistencyHead', num_classes=num_classes, in_channels=in_channels, omega=omega, **head_args
            ),
        )
    )
    model.init_weights()
    return model


def without_scope(settings):
    """Settings without the package that mmengine notes in those of another one's bases; tuples as lists."""
    if isinstance(settings, dict):
        return {key: without_scope(value) for key, value in settings.items() if key != '_scope_'}
    return [without_scope(value) for value in settings] if isinstance(settings, (list, tuple)) else settings


def step(model, data, autocast=None):
    """One training forward and backward; returns the loss dict."""
    data = model.data_preprocessor(data, training=True)
    if autocast is None:
        losses = model(**data, mode='loss')
    else:
        with torch.autocast('cpu', dtype=autocast):
            losses = model(**data, mode='loss')
    total, _ = model.parse_losses(losses)
    total.backward()
    return losses
