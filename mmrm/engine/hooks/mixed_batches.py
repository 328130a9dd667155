"""Pictures of what the network is fed, written to the visualizer's backends while it trains."""

import functools
from typing import List, Optional

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ...models.data_preprocessor import MIX_FIELD
from ...utils import figures
from ...utils.config import number_of_classes
from ...utils.errors import UserValueError, check_numbers
from ..batched_images import unwrapped


@HOOKS.register_module()
class MixedBatchesHook(Hook):
    """Draws the first samples of successive training batches, as they enter the network, with their fused labels.

    Every ``interval`` iterations it keeps ``length`` batches and gives one picture, a row a sample and a column an
    iteration, to the visualizer: LocalVisBackend stores it as ``vis_data/vis_image/mixed_batches_<iteration>.png``,
    TensorboardVisBackend shows it under "Images". It draws no random number, so that training is the same without it.

    Args:
        interval (int): Iterations between two pictures, the first at the start of training. Defaults to 1000.
        length (int): Successive iterations in a picture, at most ``interval``. Defaults to 6.
        samples (int): Samples of a batch in a picture. Defaults to 3.
    """

    priority = 'LOW'

    def __init__(self, interval: int = 1000, length: int = 6, samples: int = 3):
        check_numbers('MixedBatchesHook', 1, integer=True, interval=interval, length=length, samples=samples)
        if length > interval:
            raise UserValueError(f'MixedBatchesHook: length={length} must not be above interval={interval}.')
        self.interval = interval
        self.length = length
        self.samples = samples
        self._handle = None
        self._kept: List[tuple] = []

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        place = runner.iter % self.interval
        if place == 0:
            self._kept = []
        if is_main_process() and place == len(self._kept) < self.length:  # resumed in between, it waits for the next
            preprocessor = unwrapped(runner.model).data_preprocessor
            self._handle = preprocessor.register_forward_hook(functools.partial(self._keep, runner.iter + 1))

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs: Optional[dict] = None) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if len(self._kept) == self.length:
            self._write(runner)

    def after_train(self, runner) -> None:
        if self._kept:
            self._write(runner)

    def _keep(self, iteration: int, preprocessor, arguments, output) -> None:
        """The preprocessor's forward hook."""
        samples = output.get('data_samples') if isinstance(output, dict) else None
        if samples:
            inputs = output['inputs'][: self.samples].detach().cpu()
            self._kept.append((iteration, inputs, samples[: self.samples], getattr(samples[0], MIX_FIELD, None)))

    def _write(self, runner) -> None:
        model = unwrapped(runner.model)
        preprocessor, dataset = model.data_preprocessor, runner.train_dataloader.dataset
        order = figures.channel_order(runner.cfg, preprocessor)
        names = figures.class_names(dataset)
        number = len(names) if names else number_of_classes(runner.cfg)
        kept, self._kept = self._kept, []
        rows = [(f'sample {index + 1}', []) for index in range(min(len(inputs) for _, inputs, _, _ in kept))]
        for _, inputs, samples, mix in kept:
            images = figures.to_images(inputs, preprocessor, order)
            scores = figures.soft_labels(samples, number).numpy()
            for index, (_, panels) in enumerate(rows):
                lam, box = (0.0, None) if mix is None else mix.of_sample(index)
                share = [] if mix is None else [f'λ = {figures.share_text(lam)}']
                lines = [*share, *figures.label_text(scores[index], names)]
                panels.append(figures.Panel(images[index], lines, box if lam else None))
        figure = figures.draw_rows(rows, [f'iteration {iteration}' for iteration, *_ in kept])
        runner.visualizer.add_image('mixed_batches', figures.to_array(figure), step=kept[0][0])
