"""What mmengine's Runner lacks: hooks, schedulers, precision, checkpoints that survive a crash."""
