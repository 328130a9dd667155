"""Test a checkpoint, or a run's folder, with a config."""

import json
import os
import sys
from typing import Optional, Sequence

from ..utils.errors import cli
from ..utils.processes import leave
from .options import Parser, start_process
from .train import end_workers


def parser() -> Parser:
    """The options of ``mmrm test`` and ``tools/test.py``."""
    parser = Parser(prog='mmrm test', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help='config file, from the current folder, the checkout or its configs/')
    parser.add_argument('checkpoint', help="checkpoint file, or a run's folder (its best, else its last)")
    parser.add_argument('--work-dir', help='for logs (default: work_dirs/<regulariser>/<config>)')
    parser.add_argument('--out', type=os.path.expanduser, help='file for the metrics (.json) or the predictions (.pkl)')
    parser.add_argument('--overwrite', action='store_true', help='replace an existing --out file')
    parser.add_argument('--tta', action='store_true', help="augment: the config's tta_model and tta_pipeline")
    parser.add_run_options()
    return parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Test; ``argv`` defaults to the command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    start_process(args)
    from ..engine import launch
    from ..engine.runner import TestRunner
    from ..weights.strict import UNUSED_IN_TEST, check_weights
    from . import preflight

    if args.gpus and args.launcher == 'none':
        preflight.launch('test', args, argv)
        return
    with launch.joined():
        cfg = preflight.prepare_test(args)
        runner = preflight.build_runner(cfg, TestRunner)
        check_weights(runner.model, cfg.load_from, unused=UNUSED_IN_TEST)
        if args.out and not args.out.endswith('.json'):
            runner.test_evaluator.metrics.append(dump_results(runner.model, args.out))
        try:
            metrics = runner.test()
        finally:
            end_workers(runner)
        if runner.rank == 0:
            report_metrics(metrics, args.out)
    leave()


def report_metrics(metrics: dict, out: Optional[str] = None) -> None:
    """Print metrics and, for a ``.json`` file, write them."""
    from ..utils.files import write_text

    for name, value in metrics.items():
        print(f'{name}: {value}')
    if not metrics:
        print('no metrics: the evaluator had nothing to measure (for COCO: no box above the score threshold)')
    if out and out.endswith('.json'):
        write_text(out, json.dumps(metrics, indent=2, default=float) + '\n', overwrite=True)


def dump_results(model, out: str):
    """The metric that writes a model's predictions to a pickle file."""
    from ..weights.strict import unwrapped

    if any(kind.__module__.startswith('mmdet.') for kind in type(unwrapped(model)).__mro__):  # masks as run lengths
        from mmdet.evaluation import DumpDetResults

        return DumpDetResults(out_file_path=out)
    from mmengine.evaluator import DumpResults

    return DumpResults(out_file_path=out)
