"""Export a trained network: weights for other libraries, ONNX, torch.export, or a folder for Hugging Face's hub."""

import argparse
from pathlib import Path
from typing import Optional, Sequence

from ..utils.errors import UserError, UserValueError, cli
from .options import Parser, positive

KINDS = {
    'backbone': 'the backbone for mmdet and mmseg (.pth, .safetensors)',
    'classifier': "the classifier without RM's extra layer, --layout says for whom (.pth, .safetensors)",
    'onnx': 'a program for onnxruntime and the like (.onnx)',
    'torch.export': 'a program for torch without mmrm and mmpretrain (.pt2)',
    'huggingface': 'a folder with a model card, which timm or transformers loads offline',
}


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(prog='mmrm export', description=__doc__, allow_abbrev=False)
    kinds = parser.add_subparsers(dest='what', metavar='WHAT', required=True, help='WHAT --help lists its options')
    add = {}
    for name, text in KINDS.items():
        kind = kinds.add_parser(name, help=text, description=f'Export {text}.', allow_abbrev=False)
        run = "a run's folder (its best checkpoint, else its last), or a checkpoint, also of the authors"
        kind.add_argument('source', metavar='RUN', help=run)
        kind.add_argument('out', metavar='OUT', help='file or folder to write')
        if name != 'backbone':
            kind.add_argument('--config', help='config of RUN, if the checkpoint has none')
        if name != 'huggingface':
            kind.add_argument('--overwrite', action='store_true', help='replace OUT if it exists; never a folder')
        add[name] = kind.add_argument
    add['backbone']('--prefix', help='prefix of its names in RUN, if not backbone.')
    layouts = ('mmpretrain', 'torchvision', 'timm', 'transformers')
    add['classifier']('--layout', choices=layouts, default='mmpretrain', help='tensor names (default: mmpretrain)')
    for name in ('backbone', 'classifier'):
        add[name]('--half', action='store_true', help='float16, half the size')
    for name in ('onnx', 'torch.export'):
        dynamic = 'any number of images (batch, the default), or also any size (all)'
        add[name]('--dynamic', nargs='?', const='batch', choices=('batch', 'all'), help=dynamic)
        help = "height and width, or one for both (default: the config's test pipeline)"
        add[name]('--size', nargs='+', type=positive, metavar='N', help=help)
    add['huggingface']('--library', choices=('timm', 'transformers'), default='timm', help='target (default: timm)')
    add['huggingface']('--licence', '--license', default='', help='licence of the weights, for the model card')
    add['huggingface']('--command', default='', help='training command, for the model card')
    return parser.parse_args(argv)


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    args = parse_args(argv)
    if args.what in ('backbone', 'classifier'):
        export_weights(args)
    elif args.what == 'huggingface':
        export_to_hub(args)
    else:
        export_program(args)


def export_weights(args: argparse.Namespace) -> None:
    """A file of weights."""
    from ..weights import export_backbone, export_classifier
    from ..weights.build import load_config

    if args.what == 'backbone':
        meta = export_backbone(args.source, args.out, args.overwrite, args.prefix, args.half)
    else:
        settings = load_config(args.config).to_dict() if args.config else None
        meta = export_classifier(args.source, args.out, args.layout, args.overwrite, settings, args.half)
    source = f', from {meta["converted_from"]}' if 'converted_from' in meta else ''
    target = f', loads into {meta["loads_into"]}' if 'loads_into' in meta else ''
    print(f'{args.out}: {meta["content"]}{source}{target}, sha256 {meta["sha256"]}')
    if meta.get('logits_compared') is False:
        print(f'warning: {args.layout} is not installed: its names are right, but its logits were not compared.')


def export_program(args: argparse.Namespace) -> None:
    """ONNX and torch.export."""
    from ..weights.build import open_run, without_region_branch
    from ..weights.deploy import check_format, check_script, export_network, write_script
    from ..weights.inputs import Reader, describe_input
    from ..weights.provenance import provenance

    if args.size and len(args.size) > 2:
        raise UserValueError('--size takes height and width, or one number for both.')
    out = check_format(args.what, args.out, args.overwrite, args.dynamic)
    if args.what == 'onnx':
        check_script(out, args.overwrite)
    run = open_run(args.source, args.config)
    known = describe_input(run.cfg, (args.size[0], args.size[-1]) if args.size else None)
    if known.size is None:
        raise UserValueError("the config's test pipeline leaves images in their own sizes: give --size HEIGHT WIDTH.")
    model = without_region_branch(run.model)
    note = dict(known.note(), classes=run.classes, dynamic=args.dynamic, **provenance(run.weights, model.state_dict()))
    note.pop('dataset_meta', None)  # the classes again
    difference = export_network(model, args.out, known.size, note, args.what, args.dynamic, args.overwrite)
    runtime = 'onnxruntime' if args.what == 'onnx' else 'torch'
    print(
        f'{args.out}: {len(run.classes)} classes, {known.size[0]} x {known.size[1]}, logits in {runtime} as here '
        f'(to {difference:.1g} of the largest)'
    )
    if args.what == 'onnx':
        script = write_script(out, note, Reader(run.cfg), run.model.data_preprocessor)
        no_script = 'no predict_onnx.py beside it: that script does not know a step of the test pipeline, or --size'
        print(f'predict without mmrm: python {script} {args.out} IMAGE ...' if script else no_script)


def export_to_hub(args: argparse.Namespace) -> None:
    """A folder of Hugging Face's kind."""
    from ..utils.paths import show_path
    from ..weights.build import open_run
    from ..weights.hub import export_folder

    run = open_run(args.source, args.config)
    written = export_folder(run, args.out, args.library, args.licence, args.command, logged_result(run.checkpoint))
    out = Path(args.out).expanduser()
    files = ', '.join(sorted(path.name for path in out.iterdir()))
    print(f'{files} in {show_path(out)}: {written["how"]}, sha256 {written["sha256"]}')


def logged_result(checkpoint: Path):
    """What the log of a checkpoint's run has for it; None if there is no log, or no validation of its step."""
    from ..report.runs import read_run
    from ..utils.saved import parse_name
    from ..weights.hub import Result

    saved = parse_name(checkpoint)
    try:
        log = read_run(checkpoint.parent)
    except UserError:
        return None
    metrics = log.validations.get(saved.step) if saved and saved.unit == log.saved_unit else None
    if saved is None or metrics is None:
        return None
    accuracies = (metrics.get(f'accuracy/{key}') for key in ('top1', 'top5'))
    return Result(*accuracies, f'{saved.step} {log.unit}', log.state)
