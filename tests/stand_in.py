"""A trainer in the place of train.py, for tests of what starts it."""

import sys
import time

from mmrm.cli import jobs

# Logs as mmengine does, from where it resumes on; begins with the validation of the epoch that it resumes from.
TRAINER = """
import fcntl, json, sys, time
from pathlib import Path
work_dir, epochs, interval = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
lock = (work_dir / '.run.lock').open('w')
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit('error: in use')
start = max([int(p.stem[6:]) for p in work_dir.glob('epoch_*.pth')], default=0)
log = work_dir / f'{time.time_ns()}' / 'vis_data' / 'scalars.json'
log.parent.mkdir(parents=True)
(work_dir / 'starts').open('a').write(f'{start}\\n')
if (work_dir.parents[1] / f'fail-{work_dir.parent.name}').exists():
    code, _, why = (work_dir.parents[1] / f'fail-{work_dir.parent.name}').read_text().partition(' ')
    print(f'error: {why or "no data"}')
    sys.exit(int(code))
later = work_dir.parents[1] / f'fail-later-{work_dir.parent.name}'
more = dict(loss_consistency=0.01, rm_kl=0.2, rm_kl_blind=0.8, rm_lambda=0.19) if 'rm' in work_dir.parent.name else {}
for epoch in range(max(start, 1), epochs + 1):
    while (work_dir.parents[1] / 'wait').exists():
        time.sleep(0.02)
    step = dict(lr=0.1, loss=1 / epoch, time=9.0, epoch=epoch, iter=39 * epoch, step=39 * epoch)
    with log.open('a') as file:
        if epoch > start:
            file.write(json.dumps({**step, **more}) + '\\n')
        if later.exists() and epoch == 2:
            print('error: out of memory')
            sys.exit(2)
        if epoch % interval == 0 or epoch == epochs:
            (work_dir / f'epoch_{epoch}.pth').touch()
            file.write(json.dumps({'accuracy/top1': 10. * epoch, 'step': epoch}) + '\\n')
"""


def use_stand_in(tmp_path, monkeypatch, interval: int = 1) -> None:
    """Let every run be trained by the stand-in; files beside its folder make it wait or fail.

    ``interval`` is the number of epochs from one checkpoint and validation to the next.
    """
    script = tmp_path / 'trainer.py'
    script.write_text(TRAINER)
    monkeypatch.setattr(
        jobs.Job,
        'command',
        lambda run: [sys.executable, str(script), str(run.work_dir), str(run.epochs), str(interval)],
    )


def starts(run):
    return [int(line) for line in (run.work_dir / 'starts').read_text().split()]


def wait_for(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise TimeoutError
