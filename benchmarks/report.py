#!/usr/bin/env python
"""How long the report of many runs takes, and how large it is, from logs that are written for it."""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmrm.report.collect import collect  # noqa: E402
from mmrm.report.page import build  # noqa: E402
from mmrm.utils.paths import shipped  # noqa: E402

METHODS = ('baseline', 'mixup', 'cutmix', 'rm')
NAME = 'resnet18_2xb64_cifar100'
LINES = 4  # of the log in an epoch


def write_runs(root: Path, runs: int, epochs: int) -> None:
    """Runs of the four methods on CIFAR-100, as mmengine would log them."""
    from mmengine.config import Config

    texts = {}
    for method in METHODS:
        cfg = Config.fromfile(shipped() / 'configs' / method / f'{NAME}.py')
        cfg.train_cfg.max_epochs = epochs
        texts[method] = cfg.pretty_text
    for number in range(runs):
        method, seed = METHODS[number % len(METHODS)], number // len(METHODS)
        session = root / method / NAME / f'seed{seed}' / '20260101_000000' / 'vis_data'
        session.mkdir(parents=True)
        (session / 'config.py').write_text(texts[method])
        with open(session / 'scalars.json', 'w') as log:
            for epoch in range(1, epochs + 1):
                for line in range(1, LINES + 1):
                    step = (epoch - 1) * 391 + line * 391 // LINES
                    done = step / (epochs * 391)
                    record = dict(lr=0.05 * (1 + math.cos(math.pi * done)), loss=4 * math.exp(-3 * done))
                    if method == 'rm':
                        record.update(rm_lambda=0.4, rm_kl=1 - done / 2, loss_consistency=0.1 - done / 20)
                    record.update(time=0.11, memory=1843, epoch=epoch, iter=step, step=step)
                    log.write(json.dumps(record) + '\n')
                top1 = 80 - 60 * math.exp(-6 * epoch / epochs) + seed / 10
                log.write(json.dumps({'accuracy/top1': top1, 'accuracy/top5': top1 / 2 + 50, 'step': epoch}) + '\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--runs', type=int, default=100)
    parser.add_argument('--epochs', type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), args.runs, args.epochs)
        start = time.perf_counter()
        collected = collect([folder])
        read = time.perf_counter()
        size = len(build(collected).encode())
        end = time.perf_counter()
    print(f'{args.runs} runs of {args.epochs} epochs: {end - start:.2f} s, {size / 1e6:.2f} MB')
    print(f'  reading the logs {read - start:.2f} s, the page {end - read:.2f} s')


if __name__ == '__main__':
    main()
