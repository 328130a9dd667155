"""A folder as Hugging Face's hub has it: weights, config and a model card, loadable offline.

``timm.create_model('local-dir:FOLDER', pretrained=True)`` or
``transformers.AutoModelForImageClassification.from_pretrained('FOLDER')``.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from mmengine.config import Config

from ..utils.config import loader_datasets, preprocessor_of, type_name
from ..utils.errors import UserError, UserFileError, UserValueError
from ..utils.files import put_in_place, umask
from ..version import __version__
from . import targets
from .build import Run, without_region_branch
from .export import facts_of, save
from .inputs import Input, describe_input
from .layouts import describe
from .provenance import file_hash, provenance

# The call that loads the folder.
CALLS = dict(
    timm="timm.create_model('local-dir:{}', pretrained=True)",
    transformers="transformers.AutoModelForImageClassification.from_pretrained('{}')",
)


class Result(NamedTuple):
    """What the log of a run has for a checkpoint.

    Args:
        top1, top5 (float, optional): Accuracy in percent.
        step (str): After how long: '90 epochs'.
        state (str): How far the run is: 'finished'.
    """

    top1: Optional[float]
    top5: Optional[float]
    step: str
    state: str


def export_folder(
    run: Run,
    out: Union[str, Path],
    library: str = 'timm',
    licence: str = '',
    command: str = '',
    result: Optional[Result] = None,
) -> Dict[str, Any]:
    """Write a classifier as a folder of Hugging Face's kind.

    Args:
        run: The classifier.
        out: The folder to make; it must not exist, or be empty.
        library: 'timm' or 'transformers'.
        licence: Of the weights, for the card; the data set's terms are yours to know.
        command: What trained it, for the card.
        result: Its accuracy, for the card. None: not known.

    Returns:
        What was written: ``how`` (the call that loads it) and ``sha256`` of ``model.safetensors``.

    Raises:
        UserValueError: If the library does not have the network.
    """
    out = Path(out).expanduser()
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserFileError(f'{out} already exists. Name a new folder.')
    if library not in CALLS:
        raise UserValueError(f'library={library!r} must be one of {", ".join(CALLS)}.')
    known = describe_input(run.cfg)
    if known.order != 'rgb':
        raise UserValueError(
            f'{run.checkpoint} was trained on BGR images (to_rgb=False in its data preprocessor), and '
            f'{library} reads RGB: its colors would be wrong. Use mmrm export onnx, which records the channel order.'
        )
    facts = facts_of(run.weights, run.cfg, known.size[0] if known.size else None)
    target = targets.make_target(library, facts)
    if not targets.check_target(library, target, facts):
        raise UserError(f'{library} is not installed, so nothing can be compared: pip install {library}')
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
    try:
        part.chmod(0o777 & ~umask())
        content = f'classifier, {describe(facts.network.backbone)}'
        meta = dict(provenance(run.weights, target.state_dict), content=content, layout=library)
        save(target.state_dict, part / 'model.safetensors', meta)
        if library == 'timm':
            _write_json(part / 'config.json', timm_config(run.classes, target, known))
        else:
            config = target.build().config
            config.id2label = dict(enumerate(run.classes))
            config.label2id = {name: index for index, name in enumerate(run.classes)}
            config.architectures = [target.how.rsplit('.', 1)[-1]]
            config.save_pretrained(str(part))
            _write_json(part / 'preprocessor_config.json', image_processor(target, known))
        digest = file_hash(part / 'model.safetensors')
        text = card(run, known, out.name, library, digest, licence, command, result)
        (part / 'README.md').write_text(text, encoding='utf-8')
        if out.is_dir():
            out.rmdir()
        put_in_place(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return dict(how=CALLS[library].format(out.name), sha256=digest)


def _write_json(path: Path, content: Dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')


# --------------------------------------------------------------------------------------------------------- the configs
def timm_config(classes: List[str], target: targets.Target, known: Input) -> Dict[str, Any]:
    """``config.json`` of a model of timm's."""
    mean, std = _normalisation(known)
    resize, fixed = known.step('ResizeEdge', 'Resize'), known.step('Resize')
    edge, crop = _side(resize.get('scale')), _side(known.step('CenterCrop').get('crop_size'))
    cropped = isinstance(edge, int) and isinstance(crop, int) and crop <= edge
    arguments = target.hub.get('model_args') or {}
    return dict(
        architecture=target.hub['architecture'],
        num_classes=len(classes),
        label_names=classes,
        model_args=arguments,
        pretrained_cfg=dict(
            tag='mmrm',
            custom_load=False,
            input_size=[3, *(known.size or (target.size, target.size))],
            fixed_input_size='img_size' in arguments,
            interpolation=resize.get('interpolation') or 'bilinear',
            crop_pct=round(crop / edge, 4) if cropped else 1.0,
            crop_mode='squash' if fixed and not fixed.get('keep_ratio') else 'center',  # both sides to a fixed size
            mean=mean,
            std=std,
            num_classes=len(classes),
        ),
    )


def image_processor(target: targets.Target, known: Input) -> Dict[str, Any]:
    """``preprocessor_config.json`` of a model of transformers'."""
    mean, std = _normalisation(known)
    height, width = known.size or (target.size, target.size)
    edge, fixed = known.step('ResizeEdge').get('scale'), known.step('Resize').get('scale')
    if isinstance(edge, int):
        size = dict(shortest_edge=edge)
    else:
        fixed = [fixed, fixed] if isinstance(fixed, int) else fixed or [width, height]
        size = dict(height=fixed[1], width=fixed[0])
    filters = dict(nearest=0, lanczos=1, bilinear=2, bicubic=3, box=4)  # Pillow's numbers
    crops = isinstance(edge, int) or bool(known.step('CenterCrop'))
    interpolation = known.step('ResizeEdge', 'Resize').get('interpolation')
    return dict(
        image_processor_type='CLIPImageProcessor' if crops else 'ViTImageProcessor',
        do_resize=True,
        size=size,
        do_center_crop=crops,
        crop_size=dict(height=height, width=width),
        resample=filters.get(interpolation, filters['bilinear']),
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,  # without a mean and deviation it undoes the rescaling
        image_mean=mean,
        image_std=std,
    )


def _normalisation(known: Input) -> Tuple[List[float], List[float]]:
    """Mean and standard deviation of pixels from 0 to 1, as the others have them."""
    return [value / 255 for value in known.mean or [0.0] * 3], [value / 255 for value in known.std or [1.0] * 3]


def _side(value: Any) -> Any:
    """Of a size that may be two numbers, the first."""
    return value[0] if isinstance(value, list) and value else value


# ------------------------------------------------------------------------------------------------------------ the card
def data_of(cfg: Config) -> str:
    """The name of a config's training data."""
    dataset = next((dataset for _, dataset, _ in loader_datasets(cfg, ('train',))), None)
    if dataset is None:
        return 'not known'
    root = dataset.get('data_root')
    return f'{type_name(dataset)} ({Path(root).name})' if isinstance(root, str) and root else type_name(dataset)


def recipe_of(cfg: Config) -> str:
    """The settings of a config that say how it trains, as in the config."""
    named = dict(
        batch_augments=preprocessor_of(cfg).get('batch_augments'),
        head=cfg.model.get('head'),
        batch_size=(cfg.get('train_dataloader') or {}).get('batch_size'),
        **{key: cfg.get(key) for key in ('train_cfg', 'optim_wrapper', 'param_scheduler')},
    )
    return Config({key: value for key, value in named.items() if value}).pretty_text.strip()


PAPER = (
    'RecursiveMix: Lingfeng Yang, Xiang Li, Borui Zhao, Renjie Song, Jian Yang. "RecursiveMix: Mixed Learning '
    'with History", NeurIPS 2022. The layer that it adds in training is not in this file.'
)


def card(
    run: Run,
    known: Input,
    name: str,
    library: str,
    digest: str,
    licence: str = '',
    command: str = '',
    result: Optional[Result] = None,
) -> str:
    """The model card, ``README.md`` of the folder. A number that no log holds is not in it."""
    data, recipe, task = data_of(run.cfg), recipe_of(run.cfg), 'image-classification'
    rm = "type='RecursiveMix'" in recipe
    tags = [task, library, 'mmrm', *(['recursivemix'] if rm else [])]
    header = dict(library_name=library, pipeline_tag=task, tags=tags, **(dict(license=licence) if licence else {}))
    results = 'No log of the run was next to the checkpoint: its accuracy is not known.'
    if result is not None:
        shown = [('top-1', result.top1), ('top-5', result.top5)]
        text = ', '.join(f'{key} {value:.2f} %' for key, value in shown if value is not None) or 'no accuracy'
        results = f'From the log of the run, after {result.step}: {text}. The run: {result.state}.'
        if result.top1 is not None:
            metric = dict(type='accuracy', value=round(result.top1, 2), name='top-1 accuracy')
            measured = dict(task=dict(type=task), dataset=dict(name=data, type=data), metrics=[metric])
            header['model-index'] = [dict(name=name, results=[measured])]
    size = f'{known.size[0]} x {known.size[1]} pixels' if known.size else 'any size'
    parameters = sum(tensor.numel() for tensor in without_region_branch(run.model).parameters())
    table = [
        ('task', f'image classification, {len(run.classes)} classes, {size}'),
        ('network', f'{type_name(run.cfg.model.backbone)}, {parameters / 1e6:.2f} M parameters'),
        ('training data', data),
        ('weights', f'`model.safetensors`, sha256 `{digest}`'),
        ('made from', f'`{run.checkpoint.name}`, sha256 `{file_hash(run.checkpoint)}`, with mmrm {__version__}'),
        ('licence', licence or 'not stated; ask its authors'),
    ]
    paragraphs = [
        '\n'.join(['---', *(f'{key}: {json.dumps(value)}' for key, value in header.items()), '---']),
        f'# {name}',
        '\n'.join(['| | |', '|---|---|', *(f'| {key} | {value} |' for key, value in table)]),
        f'## Results\n\n{results}',
        f'## Recipe\n\n```python\n{recipe}\n```',
        *([f'```\n{command}\n```'] if command else []),
        *([PAPER] if rm else []),
        f'## Use\n\n```python\nimport {library}\nmodel = {CALLS[library].format(name)}\n```\n',
    ]
    return '\n\n'.join(paragraphs)
