"""Convert a checkpoint of the RecursiveMix authors' code to mmpretrain's layout."""

from typing import Optional, Sequence

from ..utils.errors import cli
from ..weights.convert import convert
from .options import Parser


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm convert', description=__doc__)
    parser.add_argument('source', metavar='SRC', help='checkpoint: ResNet-50, or CIFAR ResNet, DenseNet, PyramidNet')
    parser.add_argument('out', metavar='OUT', help='file to write, .pth or .safetensors')
    parser.add_argument('--overwrite', action='store_true', help='replace OUT if it exists')
    args = parser.parse_args(argv)
    meta = convert(args.source, args.out, args.overwrite)
    print(f'{args.out}: {meta["content"]}, from {meta["converted_from"]}, sha256 {meta["sha256"]}')
