import mmrm  # noqa: F401  before a test module imports mmcv.ops
