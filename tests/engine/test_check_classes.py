import pytest
from helpers import classifier
from torch import nn

from mmrm.engine.hooks import check_num_classes
from mmrm.utils.errors import UserValueError


class Data:
    def __init__(self, number):
        self.metainfo = dict(classes=[str(index) for index in range(number)])


def test_agreement_and_models_without_classes_pass():
    check_num_classes(classifier(num_classes=5), dict(training=Data(5), validation=Data(5)))
    check_num_classes(nn.Linear(1, 1), dict(training=Data(5)))
    check_num_classes(classifier(num_classes=5), dict(training=object()))


def test_a_data_set_with_other_classes_is_named():
    told = r'validation \(Data\) has 7 classes, the model has model.head.num_classes=5'
    with pytest.raises(UserValueError, match=told):
        check_num_classes(classifier(num_classes=5), dict(training=Data(5), validation=Data(7)))


def test_a_preprocessor_with_other_classes_is_named():
    model = classifier(num_classes=5)
    model.data_preprocessor.num_classes = 6
    with pytest.raises(UserValueError, match=r'head.num_classes=5, but model.data_preprocessor.num_classes=6'):
        check_num_classes(model, {})
    with pytest.raises(UserValueError, match=r'has 5 classes, the model has model.data_preprocessor.num_classes=6'):
        check_num_classes(model, dict(training=Data(5)))
