"""What makes a GPU faster and leaves the method as it is. Each has a switch in ``gpu_defaults`` of the config.

None of it was measured here; each is what torch documents.
"""

import inspect

import torch
from mmengine.config import Config

from ..utils.config import type_name
from ..utils.errors import UserValueError

SWITCHES = ('channels_last', 'cudnn_benchmark', 'fused')
FUSED = ('SGD', 'Adam', 'AdamW')


def set_gpu_defaults(cfg: Config, device: str, amp: bool) -> None:
    """Set what ``gpu_defaults`` asks for, on a GPU. A config without it, and the CPU, are left alone.

    ``channels_last``: with ``--amp``, the layout in which tensor cores take convolutions without a copy (a classifier's
    only). ``cudnn_benchmark``: cuDNN times its algorithms once for each size of input; off with
    ``randomness.deterministic``, because the choice may differ between two runs. ``fused``: one kernel updates all
    parameters; rounding differs from the loop over them. What the config sets by itself stays.
    """
    wanted = cfg.get('gpu_defaults') or {}
    if not isinstance(wanted, dict) or any(not isinstance(value, bool) for value in wanted.values()):
        raise UserValueError(f'gpu_defaults={wanted!r} must be a dict of True and False: {", ".join(SWITCHES)}.')
    unknown = sorted(set(wanted) - set(SWITCHES))
    if unknown:
        raise UserValueError(f'gpu_defaults has no {", ".join(unknown)}; allowed: {", ".join(SWITCHES)}.')
    if device == 'cpu':
        return
    if wanted.get('channels_last') and amp and type_name(cfg.model) == 'ImageClassifier':
        hooks = cfg.get('custom_hooks') or []
        if 'ChannelsLastHook' not in [type_name(hook) for hook in hooks if isinstance(hook, dict)]:
            cfg.custom_hooks = [*hooks, dict(type='ChannelsLastHook')]
    if wanted.get('cudnn_benchmark') and not (cfg.get('randomness') or {}).get('deterministic'):
        cfg.env_cfg = dict(dict(cudnn_benchmark=True), **(cfg.get('env_cfg') or {}))
    optimizer = cfg.optim_wrapper.get('optimizer') or {}
    if wanted.get('fused') and type_name(optimizer) in FUSED and not {'fused', 'foreach'} & set(optimizer):
        kind = getattr(torch.optim, type_name(optimizer))
        if 'fused' in inspect.signature(kind).parameters:  # SGD has it since torch 2.3
            optimizer['fused'] = True
