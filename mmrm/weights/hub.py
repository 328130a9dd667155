"""A folder as Hugging Face's hub has it: weights, config and a model card, loadable offline.

``timm.create_model('local-dir:FOLDER', pretrained=True)`` or
``transformers.AutoModelForImageClassification.from_pretrained('FOLDER')``.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from ..utils import paths
from ..utils.config import datasets, type_name
from ..utils.errors import UserError, UserFileError, UserValueError
from ..utils.files import put_in_place, umask
from ..version import __version__
from . import targets
from .build import Run, count_parameters
from .export import facts_of, save
from .inputs import Input, describe_input
from .layouts import describe
from .provenance import file_hash, origin, tensor_hash
from .results import measured, model_name

LIBRARIES = ('timm', 'transformers')


def export_folder(
    run: Run, out: Union[str, Path], library: Optional[str] = None, licence: str = '', command: str = ''
) -> Dict[str, Any]:
    """Write a classifier as a folder of Hugging Face's kind.

    Args:
        run: The classifier.
        out: The folder to make; it must not exist, or be empty.
        library: 'timm' or 'transformers'. None: timm where it has the network, else transformers.
        licence: Of the weights, for the card; the data set's terms are yours to know.
        command: What trained it, for the card.

    Returns:
        What was written, with ``how``: the call that loads it.

    Raises:
        UserValueError: If no library has the network.
    """
    out = Path(out).expanduser()
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserFileError(f'{out} exists and is left as it is. Name a folder that does not.')
    if library not in (None, *LIBRARIES):
        raise UserValueError(f'library={library!r} must be one of {", ".join(LIBRARIES)}.')
    known = describe_input(run.cfg)
    if known.order != 'rgb':
        raise UserValueError(
            f'{run.checkpoint} was trained on BGR images (to_rgb=False in its data preprocessor), and '
            f'{library or "timm"} reads RGB: it would see other colours. Export onnx, which notes the order.'
        )
    facts = facts_of(run.weights, run.cfg.to_dict(), known.size[0] if known.size else None)
    library, target = _choose(library, facts)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
    try:
        part.chmod(0o777 & ~umask())
        meta = dict(
            origin(run.weights, target.state_dict),
            content=f'classifier, {describe(facts.network.backbone)}',
            layout=library,
        )
        save(target.state_dict, part / 'model.safetensors', meta)
        if library == 'timm':
            _write_json(part / 'config.json', timm_config(run, target, known))
        else:
            _write_transformers(part, run, target, known)
        how = (
            f"timm.create_model('local-dir:{out.name}', pretrained=True)"
            if library == 'timm'
            else f"transformers.AutoModelForImageClassification.from_pretrained('{out.name}')"
        )
        digest = file_hash(part / 'model.safetensors')
        (part / 'README.md').write_text(card(run, known, library, how, digest, licence, command), encoding='utf-8')
        if out.is_dir():
            out.rmdir()
        put_in_place(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return dict(library=library, how=how, sha256=digest, tensors=tensor_hash(target.state_dict))


def _choose(library: Optional[str], facts: targets.Facts) -> tuple:
    """The library, and the network in it, compared."""
    told: List[str] = []
    for name in (library,) if library else LIBRARIES:
        try:
            target = targets.make_target(name, facts)
            if not targets.check_target(name, target, facts):
                raise UserError(f'{name} is not installed, so nothing can be compared: pip install {name}')
            return name, target
        except UserError as error:
            told.append(str(error))
            if library:
                raise
    raise UserValueError(' '.join(told))


def _write_json(path: Path, content: Dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')


def timm_config(run: Run, target: targets.Target, known: Input) -> Dict[str, Any]:
    """``config.json`` of a model of timm's."""
    size = list(known.size or (target.size, target.size))
    mean = [value / 255 for value in known.mean or [0.0] * 3]
    std = [value / 255 for value in known.std or [1.0] * 3]  # timm's pixels are from 0 to 1
    crop = _crop(known)
    return dict(
        architecture=target.hub['architecture'],
        num_classes=len(run.classes),
        label_names=run.classes,
        model_args=target.hub.get('model_args') or {},
        pretrained_cfg=dict(
            tag='mmrm',
            custom_load=False,
            input_size=[3, *size],
            fixed_input_size='img_size' in (target.hub.get('model_args') or {}),
            interpolation=_interpolation(known),
            crop_pct=crop,
            crop_mode='squash' if _squashes(known) else 'center',
            mean=mean,
            std=std,
            num_classes=len(run.classes),
        ),
    )


def _step(known: Input, *names: str) -> dict:
    return next((step for step in known.steps if step.get('type') in names), {})


def _squashes(known: Input) -> bool:
    """Whether the pipeline resizes both sides to a fixed size, whatever the image's shape."""
    step = _step(known, 'Resize')
    return bool(step) and not step.get('keep_ratio')


def _crop(known: Input) -> float:
    """The share of the resized image's short side that the crop keeps."""
    edge, crop = _side(_step(known, 'ResizeEdge', 'Resize').get('scale')), _crop_side(known)
    return round(crop / edge, 4) if isinstance(edge, int) and isinstance(crop, int) and crop <= edge else 1.0


def _side(value: Any) -> Any:
    """Of a size that may be two numbers, the first."""
    return value[0] if isinstance(value, list) and value else value


def _crop_side(known: Input) -> Any:
    return _side(_step(known, 'CenterCrop').get('crop_size'))


def _interpolation(known: Input) -> str:
    return _step(known, 'ResizeEdge', 'Resize').get('interpolation') or 'bilinear'


def _write_transformers(part: Path, run: Run, target: targets.Target, known: Input) -> None:
    config = target.build().config
    config.id2label = dict(enumerate(run.classes))
    config.label2id = {name: index for index, name in enumerate(run.classes)}
    config.architectures = [target.how.rsplit('.', 1)[-1]]
    config.save_pretrained(str(part))
    size = known.size or (target.size, target.size)
    edge = _step(known, 'ResizeEdge').get('scale')
    fixed = _step(known, 'Resize').get('scale')
    fixed = fixed if isinstance(fixed, list) else [fixed, fixed] if isinstance(fixed, int) else [size[1], size[0]]
    resample = {'nearest': 0, 'lanczos': 1, 'bilinear': 2, 'bicubic': 3, 'box': 4}.get(_interpolation(known), 2)
    crops = isinstance(edge, int) or _crop_side(known) is not None
    _write_json(
        part / 'preprocessor_config.json',
        dict(
            image_processor_type='ViTImageProcessor' if not crops else 'CLIPImageProcessor',
            do_resize=True,
            size=dict(shortest_edge=edge) if isinstance(edge, int) else dict(height=fixed[1], width=fixed[0]),
            do_center_crop=crops,
            crop_size=dict(height=size[0], width=size[1]),
            resample=resample,
            do_rescale=True,
            rescale_factor=1 / 255,
            do_normalize=True,  # without a mean and deviation it undoes the rescaling
            image_mean=[value / 255 for value in known.mean or [0.0] * 3],
            image_std=[value / 255 for value in known.std or [1.0] * 3],
        ),
    )


# ------------------------------------------------------------------------------------------------------------ the card
def data_of(cfg) -> str:
    """The name of a config's training data."""
    if not cfg.get('train_dataloader'):
        return 'not known'
    found = [dataset for dataset, _ in datasets(cfg.train_dataloader.dataset)]
    if not found:
        return 'not known'
    kind, root = type_name(found[0]), found[0].get('data_root')
    own = kind in ('CustomDataset', 'ImageNet') and isinstance(root, str) and root
    return f'{kind} ({Path(root).name})' if own else kind


def recipe_of(cfg) -> List[str]:
    """How a config trains, a line each."""
    lines = []
    augments = ((cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}).get('batch_augments')) or {}
    augments = augments.get('augments') or []
    for augment in [augments] if isinstance(augments, dict) else augments:
        rest = ', '.join(f'{key}={value}' for key, value in augment.items() if key != 'type')
        lines.append(f'{type_name(augment)}({rest})')
    head = cfg.model.get('head') or {}
    if type_name(head) == 'RMConsistencyHead':
        lines.append(f'consistency with omega={head.get("omega", 0.1)}')
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer') or {}
    if optimizer:
        rest = ', '.join(f'{key}={value}' for key, value in optimizer.items() if key != 'type')
        lines.append(f'{type_name(optimizer)}({rest})')
    train = cfg.get('train_cfg') or {}
    for key, unit in (('max_epochs', 'epochs'), ('max_iters', 'iterations')):
        if isinstance(train.get(key), int):
            batch = (cfg.get('train_dataloader') or {}).get('batch_size')
            lines.append(f'{train[key]} {unit}' + (f', batch {batch} per process' if batch else ''))
    return lines


def card(run: Run, known: Input, library: str, how: str, digest: str, licence: str = '', command: str = '') -> str:
    """The model card, ``README.md`` of the folder. A number that no log holds is not in it."""
    found = measured(run.checkpoint)
    name = model_name(run.checkpoint)
    data = data_of(run.cfg)
    rm = any(line.startswith('RecursiveMix') for line in recipe_of(run.cfg))
    header = [
        '---',
        f'library_name: {library}',
        'pipeline_tag: image-classification',
        'tags:',
        '- image-classification',
    ]
    header += [f'- {library}', '- mmrm', *(['- recursivemix'] if rm else [])]
    header += [f'license: {licence}'] if licence else []
    if found and found.top1 is not None:
        header += ['model-index:', f'- name: {json.dumps(name)}', '  results:', '  - task:']
        header += ['      type: image-classification', '    dataset:']
        header += [f'      name: {json.dumps(data)}', f'      type: {json.dumps(data)}', '    metrics:']
        header += ['    - type: accuracy', f'      value: {found.top1:.2f}', '      name: top-1 accuracy']
    lines = [*header, '---', '', f'# {name}', '']
    size = f'{known.size[0]} x {known.size[1]} pixels' if known.size else 'any size'
    lines += [
        '| | |',
        '|---|---|',
        f'| task | image classification, {len(run.classes)} classes, {size} |',
        f'| network | {type_name(run.cfg.model.backbone)}, {count_parameters(run.model) / 1e6:.2f} M parameters |',
        f'| training data | {data} |',
        f'| weights | `model.safetensors`, sha256 `{digest}` |',
        f'| made from | `{run.checkpoint.name}`, sha256 `{file_hash(run.checkpoint)}`, with mmrm {__version__} |',
        f'| licence | {licence or "not stated; ask whoever trained it"} |',
        '',
        '## Results',
        '',
    ]
    if found is None:
        lines += ['No log of the run was beside the checkpoint: its accuracy is not known.', '']
    else:
        shown = [('top-1', found.top1), ('top-5', found.top5)]
        text = ', '.join(f'{key} {value:.2f} %' for key, value in shown if value is not None) or 'no accuracy'
        lines += [f'From the log of the run, after {found.step} {found.unit}: {text}. The run: {found.log.state}.', '']
    lines += ['## Recipe', '', *(f'- {line}' for line in recipe_of(run.cfg)), '']
    if command:
        lines += ['```', command, '```', '']
    if rm:
        lines += [
            'RecursiveMix: Lingfeng Yang, Xiang Li, Borui Zhao, Renjie Song, Jian Yang. "RecursiveMix: Mixed Learning '
            'with History", NeurIPS 2022. The layer that it adds in training is not in this file.',
            '',
        ]
    lines += ['## Use', '', '```python', f'import {library}', f'model = {how}', '```', '']
    return '\n'.join(lines)


def show_folder(out: Union[str, Path]) -> str:
    """The files of a folder, for a message."""
    return ', '.join(sorted(path.name for path in Path(out).iterdir())) + f' in {paths.show_path(Path(out))}'
