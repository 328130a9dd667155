"""Keys of a config, or of ``--cfg-options``, that nothing reads because they are misspelt.

A class refuses an argument that it does not know; mmengine ignores what these parts of a config have too much.
"""

import difflib
import inspect
from typing import Iterator, Tuple

from mmengine.config import Config
from mmengine.runner._flexible_runner import FlexibleRunner

# What mmengine's Runner and mmrm read of a config, and of its parts that name no class.
TOP_LEVEL = {
    *inspect.signature(FlexibleRunner).parameters,
    'allow_partial',
    'sync_bn',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'activation_checkpointing',
    'efficient_conv_bn_eval',
    'detect_anomalous_params',
    'runner_type',
    'custom_imports',
    'tta_model',
}
PARTS = {
    'default_hooks': ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint'),
    'auto_scale_lr': ('base_batch_size', 'enable'),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
}


def misspelt_keys(cfg: Config) -> Iterator[Tuple[str, str]]:
    """Keys of a config that are nearly, but not quite, what mmengine's Runner reads.

    Yields:
        tuple[str, str]: The key, and the one that was probably meant. A key without a dot may be a variable.
    """
    nodes = [('', cfg, TOP_LEVEL), *((f'{part}.', cfg.get(part) or {}, known) for part, known in PARTS.items())]
    for prefix, node, known in nodes:
        for key in (str(key) for key in node if key not in known):
            near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.85)
            if near and not key.startswith(f'{near[0]}_'):
                yield prefix + key, prefix + near[0]
