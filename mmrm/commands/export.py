"""Export trained weights: the backbone for mmdet and mmseg, or the classifier without RecursiveMix's RoI layer."""

from typing import Optional, Sequence

from ..apis.launch import Parser
from ..utils.errors import cli
from ..weights.export import LAYOUTS, export_backbone, export_classifier


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm export', description=__doc__)
    parser.add_argument('what', choices=('backbone', 'classifier'))
    parser.add_argument('source', metavar='SRC', help="checkpoint, or a run's folder (its best, else its last)")
    parser.add_argument('out', metavar='OUT', help='file to write, .pth or .safetensors')
    parser.add_argument('--layout', choices=LAYOUTS, help='names in a classifier (default: mmpretrain)')
    parser.add_argument('--prefix', help="what a backbone's names begin with in SRC, if not backbone.")
    parser.add_argument('--overwrite', action='store_true', help='replace OUT if it exists')
    args = parser.parse_args(argv)
    if args.what == 'backbone':
        if args.layout not in (None, 'mmpretrain'):
            parser.error(f'--layout {args.layout} is for classifiers; a backbone has the names of mmdet and mmseg')
        meta = export_backbone(args.source, args.out, args.overwrite, args.prefix)
    else:
        if args.prefix:
            parser.error('--prefix is for backbones; a classifier has the names of a known layout')
        meta = export_classifier(args.source, args.out, args.layout or 'mmpretrain', args.overwrite)
    print(f'{args.out}: {meta["content"]}, sha256 {meta["sha256"]}')
