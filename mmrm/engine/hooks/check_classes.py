"""The head, the preprocessor and the data must agree on the number of classes."""

from typing import Dict, Optional

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop

from ...utils.config import preprocessor_is_beside
from ..classes import Verdict, built_classes, compare, model_classes


def check_num_classes(model, datasets: dict, cfg: Optional[Config] = None) -> Verdict:
    """Compare the classes of a model with those of its data sets.

    A label beyond the head's outputs fails late and darkly (on CUDA as an assertion in a kernel), one-hot labels of
    another length at the loss, and a head with too many outputs not at all.

    Args:
        model (nn.Module): Of a classifier the head and the preprocessor are compared.
        datasets (dict): Data sets by the name to tell in the error; one without ``classes`` is left alone.
        cfg (Config, optional): The run's config, for the parts of other models and for what is to be changed in it.
            Defaults to None.

    Raises:
        UserValueError: If two numbers differ.
    """
    heads = {**(model_classes(cfg) if cfg else {}), **_of_classifier(model, bool(cfg) and preprocessor_is_beside(cfg))}
    data = [each for name, dataset in datasets.items() for each in built_classes(dataset, name)]
    verdict = compare(heads, data, cfg, [name.partition('_')[0] for name in datasets])
    verdict.check()
    return verdict


def _of_classifier(model, beside: bool) -> Dict[str, int]:
    """The numbers of a built classifier, which also has those that its config leaves to the defaults."""
    model = model.module if is_model_wrapper(model) else model
    parts = {'model.head': 'head', f'{"" if beside else "model."}data_preprocessor': 'data_preprocessor'}
    found = {
        f'{place}.num_classes': getattr(getattr(model, name, None), 'num_classes', None)
        for place, name in parts.items()
        if hasattr(model, 'head')
    }
    return {place: number for place, number in found.items() if isinstance(number, int)}


def check_runner_classes(runner) -> None:
    """Compare the classes of a runner's model with those of the data sets that it has built by now, once."""
    if getattr(runner, '_classes_agree', False):
        return
    loops = dict(train=runner._train_loop, val=runner._val_loop, test=runner._test_loop)
    data = {
        f'{part}_dataloader.dataset': loop.dataloader.dataset
        for part, loop in loops.items()
        if isinstance(loop, BaseLoop)
    }
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
