"""The head, the preprocessor and the data must agree on the number of classes."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ..classes import compare, data_classes, model_classes, unwrapped_datasets


def check_runner_classes(runner) -> None:
    """Compare the classes of a runner's config with those of the data sets that it has built by now, once.

    A label beyond the head's outputs fails late with an unclear error (on CUDA as an assertion in a kernel), one-hot
    labels of another length fail at the loss, and a head with too many outputs does not fail at all.

    Raises:
        UserValueError: If two numbers differ.
    """
    if getattr(runner, '_classes_agree', False):
        return
    loops = dict(train=runner._train_loop, val=runner._val_loop, test=runner._test_loop)
    built = {part: loop.dataloader.dataset for part, loop in loops.items() if hasattr(loop, 'dataloader')}
    data = [
        data_classes(dataset, field)
        for part in built
        for dataset, field in unwrapped_datasets(built[part], f'{part}_dataloader.dataset')
    ]
    report = compare(model_classes(runner.cfg), data, runner.cfg, list(built))
    report.check()
    for warning in report.warnings:
        runner.logger.warning(warning)
    runner._classes_agree = True


@HOOKS.register_module()
class CheckClassesHook(Hook):
    """Runs :func:`check_runner_classes` before the first epoch of training, validation or testing.

    mmrm's tools do so without it; it is for other ones.
    """

    def before_run(self, runner) -> None:
        check_runner_classes(runner)
