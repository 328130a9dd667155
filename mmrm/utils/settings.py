"""Which settings of a config decide a run's result, and where two runs differ in them.

One notion of "the same settings" for all: a resumed run is compared with its checkpoint (:mod:`mmrm.engine.runner`), a
finished one with its config (:mod:`mmrm.report.tables`), and a run of a study with the one that its folder holds, by
:func:`fingerprint`.
"""

import ast
import hashlib
import json
from typing import Dict, List, NamedTuple, Optional, Tuple

from .config import type_name

# The parts of a config that decide a result, besides versions and the processor.
SECTIONS: Tuple[str, ...] = ('model', 'data_preprocessor', 'train_dataloader', 'val_dataloader', 'optim_wrapper')
SECTIONS += ('param_scheduler', 'train_cfg', 'val_cfg', 'custom_hooks', 'auto_scale_lr', 'randomness')
LOGGED_ONLY = ('log_blind_kl', 'log_entropy')  # of 0.3's head: one number more in the log
# Keys that decide nothing at any depth: where the data is, how fast it is read, how often a run validates.
IGNORED: Tuple[str, ...] = ('data_root', 'data_prefix', 'ann_file', 'backend_args', 'file_client_args')
IGNORED += ('num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor', 'lazy_init', 'serialize_data')
IGNORED += ('val_interval', 'val_begin', 'dynamic_intervals', '_scope_', *LOGGED_ONLY)
LENGTH = ('max_epochs', 'max_iters')
WEIGHTS = ('checkpoint', 'pretrained')
# Hooks that log or stop a run and do not change what it computes.
WATCHING_HOOKS: Tuple[str, ...] = ('CheckClassesHook', 'LogConsistencyHook', 'NonFiniteLossHook', 'MixedBatchesHook')
WATCHING_HOOKS += ('CheckInvalidLossHook', 'NumClassCheckHook', 'VisualizationHook', 'DetVisualizationHook')
WATCHING_HOOKS += ('SegVisualizationHook', 'ProfilerHook', 'MemoryProfilerHook', 'EmptyCacheHook', 'EarlyStoppingHook')
# On a resume these come from the checkpoint, whatever the config says.
RESTORED = ('optim_wrapper.optimizer.', 'param_scheduler.', 'auto_scale_lr', 'seed')


class Difference(NamedTuple):
    """A setting with two values, as text."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f'{self.key}: {self.old} -> {self.new}'


def result_settings(cfg: dict, length: bool = False, weights: bool = False) -> Dict[str, object]:
    """The settings of a config that decide its result, by section, in the types of JSON.

    Args:
        cfg (dict): A config.
        length (bool): Whether the length of the training counts. A resumed run may be made longer. Defaults to False.
        weights (bool): Whether the files count that its weights start from. A resumed run has its own. Defaults to
            False.
    """
    found = {key: cfg[key] for key in SECTIONS if cfg.get(key) is not None}
    # The same preprocessor, in the model or beside it.
    model = dict(found.get('model') or {})
    preprocessor = model.pop('data_preprocessor', None) or found.pop('data_preprocessor', None)
    found.update(model=model, **(dict(data_preprocessor=preprocessor) if preprocessor else {}))
    if isinstance(found.get('param_scheduler'), dict):
        found['param_scheduler'] = [found['param_scheduler']]
    hooks = found.get('custom_hooks') or []
    found['custom_hooks'] = [
        hook for hook in hooks if not isinstance(hook, dict) or type_name(hook) not in WATCHING_HOOKS
    ]
    scaling = found.pop('auto_scale_lr', None) or {}
    if scaling.get('enable'):
        found['auto_scale_lr'] = scaling.get('base_batch_size')
    if weights and cfg.get('load_from') and not cfg.get('resume'):
        found['load_from'] = cfg['load_from']
    found['randomness'] = {key: value for key, value in (found.get('randomness') or {}).items() if key != 'seed'}
    ignored = {*IGNORED, *(() if length else LENGTH), *(() if weights else WEIGHTS)}
    found = {key: plain(value, ignored) for key, value in found.items()}
    for part in ('train_dataloader', 'val_dataloader'):
        loader = found.get(part) or {}
        if (loader.get('collate_fn') or {}).get('type') in ('default_collate', 'pseudo_collate'):
            del loader['collate_fn']
        if part == 'val_dataloader':
            loader.pop('batch_size', None)
    return found


def fingerprint(cfg: dict, *others) -> str:
    """Twelve hexadecimal digits that stand for the settings that decide a result.

    Args:
        cfg (dict): A config.
        *others: What else decides it, such as a seed, in types that JSON can write.
    """
    text = json.dumps([result_settings(cfg, length=True, weights=True), *others], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plain(node, ignored):
    """A node of a config in the types of JSON, without the ignored keys."""
    if isinstance(node, dict):
        found = {str(key): plain(value, ignored) for key, value in node.items() if key not in ignored}
        return dict(found, type=type_name(found)) if isinstance(found.get('type'), str) else found
    if isinstance(node, (list, tuple)):
        return [plain(value, ignored) for value in node]
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    return getattr(node, '__name__', str(node))  # a class, in a config of pure Python


def differences(old: dict, new: dict, key: str = '') -> List[Difference]:
    """Where two sets of settings differ, the innermost settings that do."""
    found = []
    for name in [*old, *(name for name in new if name not in old)]:
        where = f'{key}.{name}' if key else name
        if not key and name.startswith('val_') and (old.get(name) is None or new.get(name) is None):
            continue  # a run without validation trains the same
        found += _differ(old.get(name), new.get(name), where)
    return found


def _differ(old, new, where: str) -> List[Difference]:
    if isinstance(old, dict) and isinstance(new, dict) and type_name(old) == type_name(new):
        return differences(old, new, where)
    if _types(old) and _types(old) == _types(new):
        return [each for index, pair in enumerate(zip(old, new)) for each in _differ(*pair, f'{where}.{index}')]
    return [] if old == new else [Difference(where, _short(old), _short(new))]


def _types(node) -> Optional[List[str]]:
    """The types in a list of parts, None if it is none: where they are alike, the parts are compared one by one."""
    parts = isinstance(node, list) and all(isinstance(each, dict) for each in node)
    return [type_name(each) for each in node] if parts else None


def _short(value) -> str:
    """A value in a line; of parts with a type, the types."""
    if isinstance(value, dict) and value.get('type'):
        return type_name(value)
    types = _types(value)
    if types and all(types):
        text = ', '.join(types)
        return text if len(text) <= 160 else f'{text[:157]}...'
    text = repr(value)
    return text if len(text) <= 60 else f'{text[:57]}...'


def parse_config(text: str) -> Optional[dict]:
    """A config from the text that mmengine keeps in a checkpoint, read without running it; None if it is not one."""
    try:
        return {
            statement.targets[0].id: _value(statement.value)
            for statement in ast.parse(text).body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
        return None


def _value(node: ast.expr):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        found: dict = {}
        for argument in node.args:
            found.update(_value(argument) if isinstance(argument, ast.Dict) else {})
        found.update({keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg})
        return found
    if isinstance(node, ast.Dict):
        return {
            _value(key): _value(value) for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)
        }
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_value(each) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)


def describe_run(cfg: dict, processes: int) -> dict:
    """What a checkpoint stores of its run, for :func:`resume_differences`."""
    return dict(settings=result_settings(cfg), processes=processes)


def resume_differences(meta: dict, cfg: dict, processes: int) -> List[str]:
    """Where a resumed run differs from the one that wrote the checkpoint, a line each.

    Args:
        meta (dict): ``meta`` of the checkpoint: with ``mmrm_run`` (:func:`describe_run`), or as mmengine itself writes
            it, which lacks the number of processes.
        cfg (dict): The config of the resumed run.
        processes (int): Its number of processes.
    """
    old = meta.get('mmrm_run')
    old = old if isinstance(old, dict) else {}
    settings = old.get('settings')
    if not isinstance(settings, dict) and meta.get('cfg'):
        settings = result_settings(parse_config(str(meta['cfg'])) or {})
    found = differences(settings, result_settings(cfg)) if isinstance(settings, dict) else []
    if old.get('processes') not in (None, processes):
        found.append(Difference('number of processes', str(old['processes']), str(processes)))
    seeds = meta.get('seed'), (cfg.get('randomness') or {}).get('seed')
    if None not in seeds and seeds[0] != seeds[1]:
        found.append(Difference('seed', *map(str, seeds)))
    no_effect = ' (no effect: the value of the checkpoint stays)'
    restored = [each.key.startswith(RESTORED) and not each.key.endswith('.type') for each in found]
    return [f'{each}{no_effect if kept else ""}' for each, kept in zip(found, restored)]
