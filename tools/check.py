"""Check a config before a long run, without training: the model builds, its weights arrive, its data is there."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a checkout runs without being installed

from mmrm.apis.check import check  # noqa: E402
from mmrm.apis.launch import KeyValues, Parser  # noqa: E402
from mmrm.utils.errors import UserError, cli  # noqa: E402


@cli
def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument('config', help='config file, from the current folder, the checkout or its configs/')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=KeyValues,
        default={},
        metavar='KEY=VALUE',
        help='settings that replace those of the config, e.g. model.init_cfg.checkpoint=FILE',
    )
    args = parser.parse_args()
    report = check(args.config, args.cfg_options)
    print('\n'.join(report.facts), flush=True)
    if report.problems:
        raise UserError(f'{len(report.problems)} problem(s)\n- ' + '\n- '.join(report.problems))
    print('ready')


if __name__ == '__main__':
    main()
