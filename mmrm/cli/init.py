"""Look at a folder of images and write a config that trains a network on it with RM."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Optional, Sequence

from ..utils.errors import UserError, UserFileError, UserValueError, cli
from ..utils.paths import find, show_path
from . import new_config
from .checks import check
from .images import inspect_with_progress, odd_lines
from .options import Parser, positive


def share(text: str) -> float:
    """An argument above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a share above 0 and below 1')
    return value


def parser() -> Parser:
    parser = Parser(prog='mmrm init', description=__doc__, allow_abbrev=False)
    parser.add_argument('folder', help='a folder per class in it, or train, val and perhaps test with these')
    parser.add_argument('--out', metavar='FILE.py', help="config to write (default: the folder's name, here)")
    parser.add_argument(
        '--network',
        help=f'one of {", ".join(new_config.NETWORKS)}, or timm/NAME (default: resnet50, or resnet18 for fewer than '
        '2,000 training images)',
    )
    parser.add_argument(
        '--weights',
        metavar='torchvision|timm|FILE|RUN|none',
        help="where training starts; torchvision's and timm's are fetched once (default: torchvision, else timm)",
    )
    parser.add_argument('--size', type=positive, help="side of the network's input (default: 224, or 128)")
    parser.add_argument('--epochs', type=positive, help='how long (default: by the number of images)')
    parser.add_argument('--batch', type=positive, help='images a process (default: 32, fewer for small folders)')
    parser.add_argument(
        '--val', type=share, default=0.2, help='share of each class for validation where there is no val (default: 0.2)'
    )
    parser.add_argument('--quick', action='store_true', help='read headers and ends of the images, do not decode them')
    parser.add_argument('--jobs', type=positive, metavar='N', help='images decoded at a time (default: one a core)')
    return parser


def out_of(args) -> Path:
    """The config to write."""
    name = Path(args.out).expanduser() if args.out else Path(f'{new_config.default_name(Path(args.folder))}.py')
    if name.suffix != '.py':
        raise UserValueError(f'--out {args.out}: the name of a config ends in .py')
    if not name.absolute().parent.is_dir():
        raise UserFileError(f'--out {args.out}: the folder {name.absolute().parent} does not exist.')
    return name.absolute()


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    config = out_of(args)
    new_config.check_free([config])
    folder = new_config.look_at(find(args.folder))
    findings = inspect_with_progress(folder.files(), decode=not args.quick, jobs=args.jobs)
    whole = new_config.without_broken(folder, findings)
    if 'val' not in whole.parts:
        whole = new_config.split_off(whole, args.val)
        whole.notes.append(
            f'there is no val folder: {whole.count("val"):,} images, {args.val:.0%} of each class, are put aside, the '
            'same ones every time'
        )
    print(f'folder      {folder.root}')
    print('\n'.join(new_config.describe(whole, findings)))
    for line in odd_lines(findings):
        print(f'note        {line}')
    broken = [finding for finding in findings if finding.problem]
    for finding in broken:
        print(f'broken      {finding.path} {finding.problem}')
    if broken:
        print(f'note        {len(broken)} broken image(s), left out of the lists')
    size = args.size or new_config.choose_size(findings)
    images = whole.count('train')
    name, network = new_config.choose_network(args.network, images, size)
    start = new_config.choose_weights(args.weights, name, network, config)
    recipe = new_config.choose_recipe(images, size, network.adamw, not start.checkpoint)
    if args.batch:
        recipe = recipe._replace(batch=args.batch, lr=float(f'{recipe.lr * args.batch / recipe.batch:.3g}'))
    if args.epochs:
        recipe = recipe._replace(epochs=args.epochs, warmup=min(recipe.warmup, args.epochs // 2))
    title = (
        f'{folder.root.name}: {len(whole.classes)} classes, {images:,} training and {whole.count("val"):,} validation '
        f'images. Made by: {shlex.join(["mmrm", "init", *argv])}'
    )
    new_config.write(new_config.config_text(whole, network, start, recipe, config, title), whole, start, config)
    made = new_config.files_of(whole, start, config)
    report = check(config)
    if report.problems:
        for path in made:
            path.unlink()
        raise UserError(f'no config was written: {"; ".join(report.problems)}')
    print(
        f'config      {show_path(config)}: {name} {start.words}, {recipe.size} pixels, batch {recipe.batch}, '
        f'{recipe.epochs} epochs, lr {recipe.lr:g}'
    )
    if len(made) > 1:
        print(f'beside it   {", ".join(path.name for path in made[1:])}')
    print(f'next        mmrm check --data {show_path(config)}, then mmrm train {show_path(config)}')
