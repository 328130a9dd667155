"""What training costs: memory, FLOPs, parameters, and time relative to the first config, measured in turn."""

import json
from typing import Optional, Sequence

from ..analysis import efficiency
from ..report import grids
from ..utils.errors import cli
from ..utils.files import check_out, write_text
from .options import Parser, natural, positive


@cli
def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = Parser(prog='mmrm efficiency', description=__doc__, allow_abbrev=False)
    parser.add_argument(
        'configs',
        nargs='*',
        default=efficiency.CONFIGS,
        metavar='CONFIG',
        help="classifiers' configs; times are relative to the first (default: the paper's four)",
    )
    parser.add_argument('--batch', type=positive, help="images of the step whose memory is counted (default: config's)")
    parser.add_argument(
        '--timing-batch',
        type=positive,
        help='images of the step that is timed (default: 8 on the CPU, else as --batch)',
    )
    parser.add_argument('--rounds', type=natural, default=10, help='timed steps of each, 0 for none (default: 10)')
    parser.add_argument('--size', type=positive, help="side of the images (default: the pipeline's)")
    parser.add_argument('--no-memory', action='store_true', help='leave the memory out')
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='default: cuda if there is one')
    parser.add_argument('--format', choices=grids.FORMATS, help='default: terminal, or by the ending of --out')
    parser.add_argument('--out', help='write the table to a file, .md, .csv or .tex')
    parser.add_argument('--json', help='write the numbers to a file; work_dirs/efficiency.json is read by tables.py')
    parser.add_argument('--overwrite', action='store_true', help='replace existing files')
    args = parser.parse_args(argv)
    form = grids.choose_format(args.format, args.out)
    for path in filter(None, (args.out, args.json)):
        check_out(path, args.overwrite)
    device = efficiency.choose_device(args.device)
    costs = efficiency.measure(
        args.configs, args.batch, args.timing_batch, args.rounds, args.size, device, not args.no_memory
    )
    lines = grids.render(form, efficiency.HEADERS, efficiency.table_lines(costs), right=range(1, 7))
    below = dict(terminal=[efficiency.EXPLAINED], markdown=['', efficiency.EXPLAINED]).get(form, [])
    text = '\n'.join([*lines, *below]) + '\n'
    if args.json:
        print(write_text(args.json, json.dumps(efficiency.as_json(costs), indent=2) + '\n', args.overwrite))
    print(write_text(args.out, text, args.overwrite) if args.out else text)
