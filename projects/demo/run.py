#!/usr/bin/env python
"""RM in minutes, on the CPU: how true its labels are, a training on photographs, its backbone in two toolboxes."""

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Dict, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout runs without being installed

from mmrm.cli.options import Parser, positive
from mmrm.utils.errors import UserError, cli

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = Path(__file__).resolve().parent / 'configs'
# Run -> its config, what its validation measures, its factor to percent, and what it is called.
RUNS = {
    'cells': ('rm_cells', 'accuracy/top1', 1, 'RM, single cells: top-1'),
    'detector': ('atss_cells', 'coco/bbox_mAP', 100, 'ATSS on its backbone: box AP'),
    'segmentor': ('pspnet_cells', 'mIoU', 1, 'PSPNet on its backbone: mIoU'),
}
QUICK = dict(train=16, val=4)  # photographs
QUICK_OPTIONS = {'train_cfg.max_epochs': 1, 'train_cfg.val_interval': 1, 'default_hooks.checkpoint.interval': 1}
ONE_RUN = 'This demo, on held-out photographs, in percent: one run each shows that it works and compares nothing'
TRANSFER = ('task', 'RM to baseline', 'RM to CutMix')  # columns of the transfer experiment that are shown


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    os.environ['CUDA_VISIBLE_DEVICES'] = ''  # both before torch is imported
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    parser = Parser(prog='demo.sh', description=__doc__, allow_abbrev=False)
    parser.add_argument('--work-dir', type=Path, help='folder to write (default: work_dirs/demo, demo-quick)')
    parser.add_argument('--jobs', metavar='N', type=positive, default=2, help='processes at once (default: 2)')
    parser.add_argument('--quick', action='store_true', help='a few photographs and one epoch each; learns nothing')
    args = parser.parse_args(argv)
    from mmrm.report import grids
    from mmrm.report.page import try_report
    from mmrm.utils.files import write_text
    from mmrm.utils.paths import home
    from projects.demo.photographs import COUNTS, make_photographs

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the runs as Ctrl-C does
    work_dir = (
        (args.work_dir or home() / 'work_dirs' / ('demo-quick' if args.quick else 'demo')).expanduser().absolute()
    )
    photographs = make_photographs(work_dir / 'photographs', **(QUICK if args.quick else COUNTS))
    os.environ.update(MMRM_PHOTOGRAPHS=str(photographs), MMRM_BACKBONE='random', MMRM_PARENT=str(os.getpid()))
    tables = {'Mixed labels, on single blood cells': audit(work_dir, 400 if args.quick else 8000)}
    print(f'Picture: {work_dir / "label_audit.png"}')
    logging.disable(logging.INFO)  # mmengine prints every variable that a config reads
    runs = plan(work_dir, args.quick)
    logging.disable(logging.NOTSET)
    train(runs, args.jobs)
    tables[ONE_RUN] = results_table(runs)
    tables |= measured()
    for form, heading in (('terminal', '\n{}\n'), ('markdown', '## {}\n\n')):
        parts = [heading.format(name) + '\n'.join(grids.render(form, *table)) for name, table in tables.items()]
        text = '\n\n'.join(parts) + '\n'
        if form == 'terminal':
            print(text)
        else:
            print(f'Tables:  {write_text(work_dir / "tables.md", text, overwrite=True)}')
    for picture in sorted(work_dir.glob('detector/*/vis_data/vis_image/*.png')):
        print(f'Picture: {picture}')
    try_report(work_dir)


def audit(work_dir: Path, count: int) -> tuple:
    """The label audit on the photographs' single cells: its table, and its picture in the work dir."""
    from mmrm.utils import figures
    from projects.demo.photographs import cell_sources
    from tools.analysis import label_audit

    sources = [label_audit.Source(*each) for each in cell_sources()]
    picture, settings = work_dir / 'label_audit.png', dict(least_crop=0.5)  # as rm_cells crops
    if not picture.exists():
        figures.save(label_audit.draw(sources, size=64, **settings), picture)
    settings.update(size=32, least_pixels=4)
    methods = label_audit.audit(sources, label_audit.SHOWN, count, **settings)
    headers, rows = label_audit.table(dict(settings=settings, methods=methods))
    return headers, rows, range(1, len(headers))


def plan(work_dir: Path, quick: bool = False) -> list:
    """The runs, none of them started; the second and the third one take their backbone from the first."""
    from mmrm.cli import jobs
    from mmrm.utils.settings import fingerprint

    runs: list = []
    for name, (config, metric, _, _) in RUNS.items():
        options = dict(QUICK_OPTIONS) if quick else {}
        cfg = jobs.merged_config(CONFIGS / f'{config}.py', options)
        made_of = [run.fingerprint for run in runs[:1]]
        runs.append(
            jobs.Job(
                name,
                CONFIGS / f'{config}.py',
                options,
                seed=0,
                work_dir=work_dir / name,
                epochs=cfg.train_cfg.max_epochs,
                arguments=['--device', 'cpu'],
                fingerprint=fingerprint(cfg, made_of),
                metric=metric,
            )
        )
    return runs


def train(runs: Sequence, number: int) -> None:
    """Run what is not finished; the first one before the others.

    Raises:
        UserError: If not all are finished then.
    """
    from mmrm.cli import jobs

    def ready(run) -> bool:
        return run is runs[0] or runs[0].finished()

    os.environ['MMRM_BACKBONE'] = str(runs[0].work_dir)  # of detector and segmentor; in no setting, so it may be moved
    states = jobs.run_all(runs, number, cpu=True, ready=ready, every=20)
    if set(states.values()) - {'finished'}:
        raise UserError('the demo is not finished; the lines above say why. The same command resumes it.')


def results_table(runs: Sequence) -> tuple:
    """Headers and rows of this demo's own results."""
    from mmrm.report.runs import read_run

    rows = []
    for run in runs:
        *_, scale, title = RUNS[run.name]
        seconds = 3600 * read_run(run.work_dir).training.get('hours', 0)
        rows.append([title, f'{scale * run.validations()[run.epochs]:.1f}', f'{seconds:.0f} s'])
    return ['', 'result', 'training'], rows, (1, 2)


def measured() -> Dict[str, tuple]:
    """Title -> headers and rows of what the pages measured, over seeds and with intervals."""
    from projects.transfer import table as transfer
    from tools.analysis import label_audit

    audited = json.loads((ROOT / 'docs' / 'label_audit' / 'crops.json').read_text())
    audited['methods'] = {name: audited['methods'][name] for name in label_audit.SHOWN}
    headers, rows = label_audit.table(audited)
    kept = [transfer.HEADERS.index(name) for name in TRANSFER]
    lines = [line for line in transfer.table_lines(transfer.shipped_results()) if line[1] != 'tuned']
    transferred = [[line[place] for place in kept] for line in lines]
    return {
        'Measured on Oxford-IIIT Pet, 5 seeds (docs/label_audit.md)': (headers, rows, range(1, len(headers))),
        'Measured with frozen backbones of CIFAR-10, 5 seeds, 95 % intervals (projects/transfer)': (
            TRANSFER,
            transferred,
            range(1, len(kept)),
        ),
    }


if __name__ == '__main__':
    main()
