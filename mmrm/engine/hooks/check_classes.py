"""The head, the preprocessor and the data must agree on the number of classes."""

from typing import Optional

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop

from ...utils.config import preprocessor_is_beside
from ..classes import ClassReport, built_classes, compare, model_classes


def check_num_classes(model, datasets: dict, cfg: Optional[Config] = None) -> ClassReport:
    """Compare the classes of a model with those of its data sets.

    A label beyond the head's outputs fails late with an unclear error (on CUDA as an assertion in a kernel), one-hot
    labels of another length fail at the loss, and a head with too many outputs does not fail at all.

    Args:
        model (nn.Module): Of a classifier the head and the preprocessor are compared.
        datasets (dict): Data sets by the name to use in the error; one without ``classes`` is skipped.
        cfg (Config, optional): The run's config, for the heads of other models. Defaults to None.

    Raises:
        UserValueError: If two numbers differ.
    """
    heads = model_classes(cfg) if cfg else {}
    model = model.module if is_model_wrapper(model) else model
    if hasattr(model, 'head'):  # a classifier: also the numbers that its config leaves to the defaults
        prefix = '' if cfg and preprocessor_is_beside(cfg) else 'model.'
        parts = {'model.head': model.head, f'{prefix}data_preprocessor': getattr(model, 'data_preprocessor', None)}
        numbers = {f'{place}.num_classes': getattr(part, 'num_classes', None) for place, part in parts.items()}
        heads.update({place: number for place, number in numbers.items() if isinstance(number, int)})
    data = [each for name, dataset in datasets.items() for each in built_classes(dataset, name)]
    report = compare(heads, data, cfg, [name.partition('_')[0] for name in datasets])
    report.check()
    return report


def check_runner_classes(runner) -> None:
    """Compare the classes of a runner's model with those of the data sets that it has built by now, once."""
    if getattr(runner, '_classes_agree', False):
        return
    loops = dict(train=runner._train_loop, val=runner._val_loop, test=runner._test_loop)
    built = {part: loop.dataloader.dataset for part, loop in loops.items() if isinstance(loop, BaseLoop)}
    data = {f'{part}_dataloader.dataset': dataset for part, dataset in built.items()}
    for warning in check_num_classes(runner.model, data, runner.cfg).warnings:
        runner.logger.warning(warning)
    runner._classes_agree = True


@HOOKS.register_module()
class CheckClassesHook(Hook):
    """Runs :func:`check_num_classes` before the first epoch of training, validation or testing.

    mmrm's tools do so without it; it is for other ones.
    """

    def before_run(self, runner) -> None:
        check_runner_classes(runner)
