"""Export a trained network: weights for other libraries, ONNX, torch.export, or a folder for Hugging Face's hub."""

import argparse
from typing import Optional, Sequence

from ..utils.errors import UserValueError, cli
from ..weights.export import LAYOUTS, export_backbone, export_classifier
from .options import Parser, positive

WHAT = {
    'backbone': 'the backbone for mmdet and mmseg (.pth, .safetensors)',
    'classifier': "the classifier without RM's extra layer, --layout says for whom (.pth, .safetensors)",
    'onnx': 'a program for onnxruntime and the like (.onnx)',
    'torch.export': 'a program for torch without mmrm and mmpretrain (.pt2)',
    'huggingface': 'a folder with a model card, which timm or transformers loads offline',
}


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    told = '\n'.join(f'  {name:13}{text}' for name, text in WHAT.items())
    parser = Parser(
        prog='mmrm export',
        description=f'{__doc__}\n\n{told}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument('what', choices=tuple(WHAT), metavar='WHAT', help='one of the above')
    parser.add_argument(
        'source', metavar='RUN', help="a run's folder (its best checkpoint, else its last), or a checkpoint"
    )
    parser.add_argument('out', metavar='OUT', help='file or folder to write')
    parser.add_argument('--layout', choices=LAYOUTS, help='classifier: whose names (default: mmpretrain)')
    parser.add_argument('--prefix', help='backbone: what its names begin with in RUN, if not backbone.')
    parser.add_argument(
        '--dynamic',
        nargs='?',
        const='batch',
        choices=('batch', 'all'),
        help='onnx, torch.export: any number of images (batch, the default), or also any size (all)',
    )
    parser.add_argument(
        '--size',
        nargs='+',
        type=positive,
        metavar='N',
        help="onnx, torch.export: height and width, or one for both (default: the config's test pipeline)",
    )
    parser.add_argument('--library', choices=('timm', 'transformers'), help='huggingface: for which (default: timm)')
    parser.add_argument('--licence', '--license', default='', help='huggingface: of the weights, for the card')
    parser.add_argument('--command', default='', help='huggingface: what trained it, for the card')
    parser.add_argument('--config', help='of RUN, where the checkpoint does not carry it')
    parser.add_argument('--half', action='store_true', help='backbone, classifier: in float16, half the size')
    parser.add_argument('--overwrite', action='store_true', help='replace OUT if it exists; never a folder')
    args = parser.parse_args(argv)
    check_options(parser, args)
    if args.what == 'backbone':
        meta = export_backbone(args.source, args.out, args.overwrite, args.prefix, args.half)
        print(f'{args.out}: {meta["content"]}, sha256 {meta["sha256"]}')
    elif args.what == 'classifier':
        settings = None
        if args.config:
            from ..weights.classifiers import load_config

            settings = load_config(args.config).to_dict()
        meta = export_classifier(
            args.source, args.out, args.layout or 'mmpretrain', args.overwrite, settings, args.half
        )
        into = f', loads into {meta["loads_into"]}' if 'loads_into' in meta else ''
        print(f'{args.out}: {meta["content"]}{into}, sha256 {meta["sha256"]}')
        if meta.get('logits_compared') is False:
            print(f'warning: {args.layout} is not installed: its names are right, but its logits were not compared.')
    elif args.what == 'huggingface':
        export_to_hub(args)
    else:
        export_program(args)


OPTIONS = {
    'layout': ('classifier',),
    'prefix': ('backbone',),
    'half': ('backbone', 'classifier'),
    'dynamic': ('onnx', 'torch.export'),
    'size': ('onnx', 'torch.export'),
    'library': ('huggingface',),
    'licence': ('huggingface',),
    'command': ('huggingface',),
    'config': ('classifier', 'onnx', 'torch.export', 'huggingface'),
    'overwrite': ('backbone', 'classifier', 'onnx', 'torch.export'),
}


def check_options(parser: Parser, args: argparse.Namespace) -> None:
    """An option that belongs to another kind of export is a mistake, not a wish to ignore."""
    for option, kinds in OPTIONS.items():
        if getattr(args, option) and args.what not in kinds:
            parser.error(f'--{option} is for {", ".join(kinds)}, not for {args.what}')
    if args.size and len(args.size) > 2:
        parser.error('--size takes height and width, or one number for both')


def export_program(args: argparse.Namespace) -> None:
    """ONNX and torch.export."""
    from ..weights.build import open_run, without_region_branch
    from ..weights.deploy import check_format, export_network
    from ..weights.inputs import describe_input
    from ..weights.provenance import origin

    check_format(args.what, args.out, args.overwrite, args.dynamic)
    run = open_run(args.source, args.config)
    size = (args.size[0], args.size[-1]) if args.size else None
    known = describe_input(run.cfg, size)
    if known.size is None:
        raise UserValueError("the config's test pipeline leaves images in their own sizes: give --size HEIGHT WIDTH.")
    model = without_region_branch(run.model)
    note = dict(known.note(), classes=run.classes, dynamic=args.dynamic, **origin(run.weights, model.state_dict()))
    note.pop('dataset_meta', None)  # the classes again
    apart = export_network(model, args.out, known.size, note, args.what, args.dynamic, args.overwrite)
    where = 'onnxruntime' if args.what == 'onnx' else 'torch'
    shape = f'{known.size[0]} x {known.size[1]}'
    print(f'{args.out}: {len(run.classes)} classes, {shape}, logits in {where} as here (to {apart:.1g} of the largest)')


def export_to_hub(args: argparse.Namespace) -> None:
    """A folder of Hugging Face's kind."""
    from ..weights.build import open_run
    from ..weights.hub import export_folder, show_folder

    run = open_run(args.source, args.config)
    written = export_folder(run, args.out, args.library, args.licence, args.command)
    print(f'{show_folder(args.out)}: {written["how"]}, sha256 {written["sha256"]}')
