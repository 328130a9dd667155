"""What decides a run's result, and where two runs differ in it.

One list for all: a resumed run is compared with its checkpoint (:mod:`mmrm.engine.runner`), a finished one with its
config (:mod:`mmrm.report.tables`), and a run of a sweep with the one that its folder holds
(:mod:`mmrm.experiments.jobs`).
"""

import ast
from typing import Dict, List, NamedTuple, Optional, Sequence

from .config import type_name

# The parts of a config that decide a result, besides versions and the processor.
SECTIONS = (
    'model',
    'data_preprocessor',
    'train_dataloader',
    'val_dataloader',
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'val_cfg',
    'custom_hooks',
    'auto_scale_lr',
    'randomness',
)
# What does not, wherever it stands in them: where the data is and how fast it comes, and how often a run validates.
PLACES_AND_SPEED = (
    'data_root',
    'data_prefix',
    'ann_file',
    'backend_args',
    'file_client_args',
    'num_workers',
    'persistent_workers',
    'pin_memory',
    'prefetch_factor',
    'lazy_init',
    'serialize_data',
    'val_interval',
    'val_begin',
    'dynamic_intervals',
    '_scope_',
)
LOGGED_ONLY = ('log_blind_kl', 'log_entropy')  # of RMConsistencyHead: one number more in the log
LENGTH = ('max_epochs', 'max_iters')
# Hooks that watch a run and leave it as it is.
WATCHING_HOOKS = (
    'CheckClassesHook',
    'NonFiniteLossHook',
    'MixedBatchesHook',
    'CheckInvalidLossHook',
    'NumClassCheckHook',
    'VisualizationHook',
    'DetVisualizationHook',
    'SegVisualizationHook',
    'ProfilerHook',
    'MemoryProfilerHook',
    'EmptyCacheHook',
    'EarlyStoppingHook',
)


class Difference(NamedTuple):
    """A setting with two values, as text."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f'{self.key}: {self.old} -> {self.new}'


def decisive_settings(cfg: dict, length: bool = False, weights: bool = False) -> Dict[str, object]:
    """The settings of a config that decide its result, by section, in plain types.

    Args:
        cfg (dict): A config.
        length (bool): Whether how long it trains counts. A resumed run may be made longer. Defaults to False.
        weights (bool): Whether the files count that its weights start from. A resumed run has its own. Defaults to
            False.
    """
    found = {key: cfg[key] for key in SECTIONS if cfg.get(key) is not None}
    model = dict(found.get('model') or {})
    beside = found.pop('data_preprocessor', None)
    preprocessor = model.pop('data_preprocessor', None) or beside  # in the model or beside it: it is the same
    found.update(model=model, **(dict(data_preprocessor=preprocessor) if preprocessor else {}))
    schedulers = found.get('param_scheduler')
    if isinstance(schedulers, dict):
        found['param_scheduler'] = [schedulers]
    found['custom_hooks'] = [
        hook
        for hook in found.get('custom_hooks') or []
        if not isinstance(hook, dict) or type_name(hook) not in WATCHING_HOOKS
    ]
    scaling = found.pop('auto_scale_lr', None) or {}
    if scaling.get('enable'):
        found['auto_scale_lr'] = scaling.get('base_batch_size')
    if weights and cfg.get('load_from') and not cfg.get('resume'):
        found['load_from'] = cfg['load_from']
    found['randomness'] = {key: value for key, value in (found.get('randomness') or {}).items() if key != 'seed'}
    left_out = {
        *PLACES_AND_SPEED,
        *LOGGED_ONLY,
        *(() if length else LENGTH),
        *(() if weights else ('checkpoint', 'pretrained')),
    }
    found = {key: _plain(value, left_out) for key, value in found.items()}
    for part in ('train_dataloader', 'val_dataloader'):
        loader = found.get(part) or {}
        if (loader.get('collate_fn') or {}).get('type') in ('default_collate', 'pseudo_collate'):
            del loader['collate_fn']
        if part == 'val_dataloader':
            loader.pop('batch_size', None)
    return found


def _plain(node, left_out):
    """A node of a config in the types of JSON, without the keys that are left out."""
    if isinstance(node, dict):
        found = {str(key): _plain(value, left_out) for key, value in node.items() if key not in left_out}
        return dict(found, type=type_name(found)) if isinstance(found.get('type'), str) else found
    if isinstance(node, (list, tuple)):
        return [_plain(value, left_out) for value in node]
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


def parse_settings(text: str) -> Optional[dict]:
    """A config from the text that mmengine keeps in a checkpoint, read without running it; None if it is none."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    return {
        statement.targets[0].id: _value(statement.value)
        for statement in statements
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }


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
        return [_value(each) for each in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


# -------------------------------------------------------------------------------------------------------- a resumed run
# On a resume these come from the checkpoint, whatever the config says.
KEPT = ('optim_wrapper.optimizer.', 'param_scheduler.', 'auto_scale_lr', 'seed')


def describe_run(cfg: dict, processes: int) -> dict:
    """What a checkpoint remembers of its run, in plain types."""
    return dict(settings=decisive_settings(cfg), processes=processes)


def drift(meta: dict, cfg: dict, processes: int) -> List[str]:
    """In what a run that resumes departs from the one that wrote the checkpoint, a line each.

    Args:
        meta (dict): ``meta`` of the checkpoint: with ``mmrm_run`` (:func:`describe_run`), or as mmengine itself writes
            it, which does not tell the number of processes.
        cfg (dict): The config of the run that resumes.
        processes (int): How many processes it has.
    """
    old = meta.get('mmrm_run')
    old = old if isinstance(old, dict) else {}
    settings = old.get('settings')
    if not isinstance(settings, dict):
        settings = decisive_settings(parse_settings(str(meta.get('cfg') or '')) or {}) if meta.get('cfg') else None
    found = [] if settings is None else differences(settings, decisive_settings(cfg))
    if old.get('processes') not in (None, processes):
        found.append(Difference('number of processes', str(old['processes']), str(processes)))
    seeds = meta.get('seed'), (cfg.get('randomness') or {}).get('seed')
    if None not in seeds and seeds[0] != seeds[1]:
        found.append(Difference('seed', *map(str, seeds)))
    return [f'{each}{_effect(each.key)}' for each in found]


def _effect(key: str) -> str:
    kept = key.startswith(KEPT) and not key.endswith('.type')
    return ' (no effect: the value of the checkpoint stays)' if kept else ''


def abbreviate(lines: Sequence[str], number: int = 20) -> List[str]:
    """The first lines, and how many more there are."""
    more = [f'and {len(lines) - number} more'] if len(lines) > number else []
    return [*lines[:number], *more]
