"""How often dynamo compiles a step of RM, and whether the compiled step computes what the eager one does.

    python benchmarks/compile.py                        # 200 steps with changing boxes, backend aot_eager
    python benchmarks/compile.py --backend inductor     # needs a C++ compiler

The network is a small ResNet in mmpretrain's classifier, compiled as ``compile`` in a config does it, beside its eager
twin with the same boxes. A smaller last batch comes at the end, and is counted apart.
"""

import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmrm.models  # noqa: F401  isort: skip
import numpy as np
import torch
from mmengine.optim import OptimWrapper
from torch._dynamo.utils import counters

from benchmarks.common import imagenet_config, make_parser, show
from mmrm.engine.compiled import compile_losses
from mmrm.models.data_preprocessor import recursive_mixes
from tools.analysis import classifiers, efficiency


def seen() -> tuple:
    """Graphs and graph breaks so far."""
    return counters['stats']['unique_graphs'], sum(counters['graph_break'].values())


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--steps', type=int, default=200)
    parser.add_argument('--batch', type=int, default=4)
    parser.add_argument('--size', type=int, default=64)
    parser.add_argument('--backend', default='aot_eager')
    args = parser.parse_args()
    torch.manual_seed(0)
    model = classifiers.build_training_model(imagenet_config('rm', 18, 10)).train()
    models = dict(eager=copy.deepcopy(model), compiled=model)
    compile_losses(model, dict(backend=args.backend))
    wrappers = {name: OptimWrapper(torch.optim.SGD(each.parameters(), lr=1e-4)) for name, each in models.items()}
    for each in models.values():
        recursive_mixes(each.data_preprocessor)[0].rng = np.random.RandomState(1)
    counters.clear()
    worst, boxes = 0.0, set()

    def step(number: int) -> float:
        data, found = efficiency.random_batch(number, (args.size, args.size), 10), {}
        for name, each in models.items():
            log = each.train_step(copy.deepcopy(data), wrappers[name])
            found[name] = {key: float(value.detach()) for key, value in log.items()}
        boxes.add(found['eager']['rm_lambda'])
        return max(abs(found['eager'][key] - found['compiled'][key]) for key in found['eager'])

    for _ in range(args.steps):
        worst = max(worst, step(args.batch))
    graphs, breaks = seen()
    worst_last = step(args.batch - 1)
    more, broken = seen()
    rows = [
        [str(args.steps), str(len(boxes)), str(graphs), str(breaks), f'{worst:.1e}'],
        ['a smaller batch', '', f'+{more - graphs}', f'+{broken - breaks}', f'{worst_last:.1e}'],
    ]
    headers = ('steps', 'different lambdas', 'graphs', 'graph breaks', 'largest difference of a loss')
    show(f'backend {args.backend}', headers, rows)


if __name__ == '__main__':
    main()
