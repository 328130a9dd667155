"""Check a config before a long run: the model builds, its weights arrive, its data is there, its images are whole."""

from typing import Optional, Sequence

from ..utils.errors import UserError, cli
from .checks import check
from .options import Parser, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm check', description=__doc__, allow_abbrev=False)
    parser.add_argument('config', help='config file, from the current folder, the checkout or its configs/')
    parser.add_cfg_options('settings that replace those of the config, e.g. model.init_cfg.checkpoint=FILE')
    parser.add_argument('--data', action='store_true', help='decode every image, and list those that are broken')
    parser.add_argument('--jobs', type=positive, metavar='N', help='images decoded at a time (default: one a core)')
    args = parser.parse_args(argv)
    report = check(args.config, args.cfg_options, args.data, args.jobs)
    print('\n'.join(report.facts), flush=True)
    if report.problems:
        raise UserError(f'{len(report.problems)} problem(s)\n- ' + '\n- '.join(report.problems))
    print('ready')
