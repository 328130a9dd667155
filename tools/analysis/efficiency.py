#!/usr/bin/env python
"""What training costs: memory, FLOPs, parameters in training and deployed, and time relative to the first config."""

import copy
import json
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import OPTIMIZERS
from mmpretrain.structures import DataSample

from mmrm.cli.options import Parser, natural, positive
from mmrm.core import ROI_LAYER
from mmrm.report import grids
from mmrm.report.published import METRICS, TABLES
from mmrm.utils.config import number_of_classes, pipeline_of, type_name
from mmrm.utils.errors import UserValueError, cli
from mmrm.utils.files import check_out, write_text
from tools.analysis import classifiers
from tools.analysis.memory import peak_memory
from tools.analysis.options import add_table, table_format, write_table
from tools.analysis.timing import interleaved, ratio

# The paper's table.
CONFIGS = tuple(row.configs[0] for row in TABLES['efficiency'].rows)
TRAINING_ONLY = f'head.{ROI_LAYER}.'


class Cost(NamedTuple):
    """What one config costs.

    Args:
        config (str): The config.
        memory (int, optional): Peak bytes of a training step.
        flops (int): Multiply-adds of one forward pass of one image, as mmengine counts.
        train_params (int): Parameters in training.
        deploy_params (int): Parameters of the classifier that is deployed.
        milliseconds (float, optional): Median time of a training step.
        relative (tuple, optional): That time over the first config's: median of the paired ratios and the ends of its
            95 % interval.
    """

    config: str
    memory: Optional[int]
    flops: int
    train_params: int
    deploy_params: int
    milliseconds: Optional[float] = None
    relative: Optional[Tuple[float, float, float]] = None


def image_size(cfg: Config) -> Tuple[int, int]:
    """Height and width of the training images, as the last cropping or resizing transform of the pipeline says."""
    for step in reversed(pipeline_of(cfg, 'train') if cfg.get('train_dataloader') else []):
        value = step.get('crop_size', step.get('scale') if 'Crop' in type_name(step) else None)
        if isinstance(value, int):
            return value, value
        if isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(side, int) for side in value):
            return value[0], value[1]
    raise UserValueError(
        f'config {cfg.filename}: the size of its training images is not set by its pipeline; give it: --size PIXELS'
    )


def parameters(model: torch.nn.Module) -> Tuple[int, int]:
    """Number of parameters in training and deployed: RM's RoI layer serves training only."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if not name.startswith(TRAINING_ONLY))


def flops(model: torch.nn.Module, size: Tuple[int, int]) -> int:
    """Multiply-adds of the deployed classifier for one image, as mmengine counts them."""
    from mmengine.analysis import FlopAnalyzer

    training = model.training
    analyzer = FlopAnalyzer(model.eval(), (torch.zeros(1, 3, *size),))
    analyzer.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    with torch.no_grad():
        total = int(analyzer.total())
    model.train(training)
    return total


def random_batch(number: int, size: Tuple[int, int], classes: int) -> dict:
    """A batch of noise as a data loader gives it."""
    images = torch.randint(0, 256, (number, 3, *size), dtype=torch.uint8)
    labels = torch.randint(0, classes, (number,))
    return dict(inputs=list(images), data_samples=[DataSample().set_gt_label(int(label)) for label in labels])


def stepper(cfg: Config, batch: int, size: Tuple[int, int], device: str = 'cpu'):
    """A function that trains one step of a config on noise, as mmengine's loop does."""
    model = classifiers.build_training_model(cfg).to(device)
    model.train()
    wrapper = build_optim_wrapper(model, {'type': 'OptimWrapper', **cfg.get('optim_wrapper', _SGD)})
    data = random_batch(batch, size, number_of_classes(cfg))

    def step():
        model.train_step(copy.deepcopy(data), wrapper)
        if device != 'cpu':
            torch.cuda.synchronize()

    return step


_SGD = dict(optimizer=dict(type='SGD', lr=1e-3, momentum=0.9))


def step_memory(cfg: Config, batch: int, size: Tuple[int, int], device: str = 'cpu') -> int:
    """Peak bytes of a training step: the allocator's own count on CUDA, a count on fake tensors on the CPU."""
    if device == 'cpu':
        settings = dict(cfg.get('optim_wrapper', _SGD).get('optimizer'))
        return peak_memory(
            classifiers.build_training_model(cfg),
            batch,
            size,
            number_of_classes(cfg),
            lambda values: OPTIMIZERS.build(dict(settings, params=list(values))),
        )
    step = stepper(cfg, batch, size, device)
    step(), step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


def measure(
    configs: Sequence[str] = CONFIGS,
    batch: Optional[int] = None,
    timing_batch: Optional[int] = None,
    rounds: int = 10,
    size: Optional[int] = None,
    device: str = 'cpu',
    memory: bool = True,
    seed: int = 0,
) -> Dict[str, Cost]:
    """Measure what several classifiers cost; times are relative to the first one.

    Args:
        configs (Sequence[str]): Configs of classifiers. Defaults to the four of the paper's table.
        batch (int, optional): Images of the step whose memory is counted. Defaults to None, the config's batch size.
        timing_batch (int, optional): Images of the step that is timed. Defaults to None: as ``batch`` on CUDA, 8 on the
            CPU.
        rounds (int): Timed steps of each, in turn; 0 leaves the time out. Defaults to 10.
        size (int, optional): Side of the images. Defaults to None, as in the config's pipeline.
        device (str): 'cpu' or 'cuda'. Defaults to 'cpu'.
        memory (bool): Whether to count the memory. Defaults to True.
        seed (int): Of the data, the weights and the mixing. Defaults to 0.
    """
    if rounds < 0:
        raise UserValueError(f'rounds={rounds} must be 0 or more.')
    cfgs = {str(config): classifiers.load_config(config) for config in configs}
    if not cfgs:
        raise UserValueError('there is no config to measure.')
    sizes = {name: (size, size) if size else image_size(cfg) for name, cfg in cfgs.items()}
    costs, steps = {}, {}
    with classifiers.seeded(seed):
        for name, cfg in cfgs.items():
            model = classifiers.build_model(cfg)
            counted = batch or (cfg.get('train_dataloader') or {}).get('batch_size') or 64
            costs[name] = Cost(name, None, flops(model, sizes[name]), *parameters(model))
            del model
            if memory:
                costs[name] = costs[name]._replace(memory=step_memory(cfg, counted, sizes[name], device))
        if rounds:
            for name, cfg in cfgs.items():
                timed = timing_batch or (8 if device == 'cpu' else batch or cfg.train_dataloader.batch_size)
                steps[name] = stepper(cfg, timed, sizes[name], device)
            seconds = interleaved(steps, rounds, seed)
            first = seconds[next(iter(cfgs))]
            for name, values in seconds.items():
                middle = sorted(values)[len(values) // 2]
                costs[name] = costs[name]._replace(milliseconds=1000 * middle, relative=ratio(values, first))
    return costs


def published(config: str) -> Dict[str, float]:
    """The paper's numbers for a config, by the names of :class:`Cost`, as shown there; empty if it has none."""
    table = TABLES['efficiency']
    for row in table.rows:
        if any(str(config).endswith(known) for known in row.configs):
            return {METRICS[name].key: value for name, value in zip(table.metrics, row.published)}
    return {}


HEADERS = ('Config', 'Memory (MB)', 'Flops (G)', '#P train (M)', '#P deploy (M)', 'Step (ms)', 'Time, relative')


EXPLAINED = (
    'In brackets: the paper (8 TITAN Xp; its time is the ratio of the hours). Memory of a float32 step: the '
    "allocator's peak on CUDA, counted on the CPU. Flops as mmengine counts, multiply-adds of one image."
)


def table_lines(costs: Dict[str, Cost]) -> List[List[str]]:
    """A line of texts for each config under :data:`HEADERS`, published numbers in brackets beside the measured."""
    hours = {name: published(name).get('hours') for name in costs}
    base = hours[next(iter(costs))]
    lines = []
    for name, cost in costs.items():
        paper = published(name)

        def beside(text: str, key: str, paper=paper) -> str:
            return f'{text} ({paper[key]:g})' if text and key in paper else text

        memory = '' if cost.memory is None else f'{cost.memory / 2**20:.1f}'
        relative = '' if cost.relative is None else '{:.3f} [{:.3f}, {:.3f}]'.format(*cost.relative)
        if relative and base and hours[name]:
            relative += f' ({hours[name] / base:.3f})'
        short = name[len('configs/') : -len('.py')] if name.startswith('configs/') and name.endswith('.py') else name
        lines.append(
            [
                short,
                beside(memory, 'memory'),
                beside(f'{cost.flops / 1e9:.2f}', 'flops'),
                beside(f'{cost.train_params / 1e6:.2f}', 'train_params'),
                beside(f'{cost.deploy_params / 1e6:.2f}', 'deploy_params'),
                '' if cost.milliseconds is None else f'{cost.milliseconds:.0f}',
                relative,
            ]
        )
    return lines


def as_json(costs: Dict[str, Cost]) -> dict:
    """Plain values, as `mmrm tables` reads them; a shipped config is named as in the tables."""
    known = {config for row in TABLES['efficiency'].rows for config in row.configs}
    return dict(
        configs={
            next((each for each in known if name.endswith(each)), name): cost._asdict() for name, cost in costs.items()
        }
    )


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        'configs',
        nargs='*',
        default=CONFIGS,
        metavar='CONFIG',
        help="classifiers' configs; times are relative to the first (default: the paper's four)",
    )
    parser.add_argument('--batch', type=positive, help="images of the step whose memory is counted (default: config's)")
    parser.add_argument(
        '--timing-batch',
        type=positive,
        help='images of the step that is timed (default: 8 on the CPU, else as --batch)',
    )
    parser.add_argument('--rounds', type=natural, default=10, help='timed steps of each, 0 for none (default: 10)')
    parser.add_argument('--size', type=positive, help="side of the images (default: the pipeline's)")
    parser.add_argument('--no-memory', action='store_true', help='skip the memory')
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='default: cuda if there is one')
    add_table(parser)
    parser.add_argument('--json', help='write the numbers to a file; work_dirs/efficiency.json is read by mmrm tables')
    args = parser.parse_args(argv)
    form = table_format(args.out, args.overwrite, args.format)
    if args.json:
        check_out(args.json, args.overwrite)
    device = classifiers.choose_device(args.device)
    costs = measure(args.configs, args.batch, args.timing_batch, args.rounds, args.size, device, not args.no_memory)
    lines = grids.render(form, HEADERS, table_lines(costs), right=range(1, 7))
    below = dict(terminal=[EXPLAINED], markdown=['', EXPLAINED]).get(form, [])
    if args.json:
        print(write_text(args.json, json.dumps(as_json(costs), indent=2) + '\n', args.overwrite))
    write_table([*lines, *below], args.out, args.overwrite)


if __name__ == '__main__':
    main()
