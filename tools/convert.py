"""Convert a checkpoint of the RecursiveMix authors' code to mmpretrain's layout."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.apis.launch import Parser  # noqa: E402
from mmrm.utils.errors import cli  # noqa: E402
from mmrm.weights.convert import convert  # noqa: E402


@cli
def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument('source', metavar='SRC', help='checkpoint: ResNet-50, or CIFAR ResNet, DenseNet, PyramidNet')
    parser.add_argument('out', metavar='OUT', help='file to write, .pth or .safetensors')
    parser.add_argument('--overwrite', action='store_true', help='replace OUT if it exists')
    args = parser.parse_args()
    meta = convert(args.source, args.out, args.overwrite)
    print(f'{args.out}: {meta["content"]}, from {meta["converted_from"]}, sha256 {meta["sha256"]}')


if __name__ == '__main__':
    main()
