"""A trainer in the place of train.py, for tests of what starts it."""
import sys
import time

from mmrm import jobs

# Stands in for train.py: a checkpoint and a validation per epoch, from the last checkpoint on.
TRAINER = '''
import json, os, sys, time
from pathlib import Path
work_dir, epochs, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
saved = sorted(int(p.stem[6:]) for p in work_dir.glob('epoch_*.pth'))
start = int(Path(resume).stem[6:]) if resume != 'auto' else saved[-1] if saved else 0
log = work_dir / f'{time.time_ns()}' / 'vis_data' / 'scalars.json'
log.parent.mkdir(parents=True)
(work_dir / 'starts').open('a').write(f'{start}\\n')
if (work_dir.parents[1] / f'fail-{work_dir.parent.name}').exists():
    print('error: no data')
    sys.exit(int((work_dir.parents[1] / f'fail-{work_dir.parent.name}').read_text()))
for epoch in range(start + 1, epochs + 1):
    while (work_dir.parents[1] / 'wait').exists():
        time.sleep(0.02)
    (work_dir / f'epoch_{epoch}.pth').touch()
    log.open('a').write(json.dumps({'accuracy/top1': 10. * epoch, 'step': epoch}) + '\\n')
'''


def use_stand_in(tmp_path, monkeypatch) -> None:
    """Let every run be trained by the stand-in; files beside its folder make it wait or fail."""
    script = tmp_path / 'trainer.py'
    script.write_text(TRAINER)
    monkeypatch.setattr(jobs.Run, 'command', lambda run: [
        sys.executable, str(script), str(run.work_dir), str(run.epochs), run.resume_from()])


def starts(run):
    return [int(line) for line in (run.work_dir / 'starts').read_text().split()]


def wait_for(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise TimeoutError
