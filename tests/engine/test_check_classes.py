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
    with pytest.raises(UserValueError, match=r'head.num_classes=5, but the validation data set, Data, has 7 classes'):
        check_num_classes(classifier(num_classes=5), dict(training=Data(5), validation=Data(7)))


def test_a_preprocessor_with_other_classes_is_named():
    model = classifier(num_classes=5)
    model.data_preprocessor.num_classes = 6
    with pytest.raises(UserValueError, match=r'head.num_classes=5, but model.data_preprocessor.num_classes=6'):
        check_num_classes(model, {})
