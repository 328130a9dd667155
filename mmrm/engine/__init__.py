"""What mmengine's Runner lacks: hooks, schedulers, precision, checkpoints that survive a crash."""

import mmrm.models  # noqa: F401  first: it repairs OpenMMLab and imports what it registers in one order
