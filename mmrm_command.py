"""What the console script ``mmrm`` calls: ``mmrm/cli``, without the package around it, whose import loads torch."""

import importlib.util
from pathlib import Path


def main() -> None:
    package = Path(importlib.util.find_spec('mmrm').origin).parent
    spec = importlib.util.spec_from_file_location('mmrm_cli', package / 'cli' / '__init__.py')
    cli = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cli)
    cli.main()
