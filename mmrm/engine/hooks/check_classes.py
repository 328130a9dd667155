"""The head, the preprocessor and the data must agree on the number of classes."""
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop

from ...utils.errors import UserValueError


def check_num_classes(model, datasets: dict) -> None:
    """Compare the classes of a classifier with those of its data sets.

    A label beyond the head's outputs fails late and darkly (on CUDA as an assertion in a kernel), one-hot labels of
    another length at the loss, and a head with too many outputs not at all.

    Args:
        model (nn.Module): A classifier; one without ``head.num_classes`` is left alone.
        datasets (dict): Data sets by the name to tell in the error; one without ``classes`` is left alone.

    Raises:
        UserValueError: If two numbers differ.
    """
    model = model.module if is_model_wrapper(model) else model
    wanted = getattr(getattr(model, 'head', None), 'num_classes', None)
    if wanted is None:
        return
    of_preprocessor = getattr(getattr(model, 'data_preprocessor', None), 'num_classes', None)
    if of_preprocessor not in (None, wanted):
        raise UserValueError(f'model.head.num_classes={wanted}, but model.data_preprocessor.num_classes='
                             f'{of_preprocessor}.')
    for name, dataset in datasets.items():
        classes = (getattr(dataset, 'metainfo', None) or {}).get('classes')
        if classes is not None and len(classes) != wanted:
            raise UserValueError(f'model.head.num_classes={wanted}, but the {name} data set, {type(dataset).__name__}, '
                                 f'has {len(classes)} classes.')


@HOOKS.register_module()
class CheckClassesHook(Hook):
    """Runs :func:`check_num_classes` before the first epoch of training, validation or testing."""

    def before_run(self, runner) -> None:
        loops = dict(training=runner._train_loop, validation=runner._val_loop, test=runner._test_loop)
        built = {name: loop for name, loop in loops.items() if isinstance(loop, BaseLoop)}
        check_num_classes(runner.model, {name: loop.dataloader.dataset for name, loop in built.items()})
