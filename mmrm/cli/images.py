"""Every image of a config or of a folder, decoded side by side: which are broken, which are odd, how large they are."""

import collections
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, Iterable, List, Optional, Sequence

from mmengine.config import Config
from mmengine.registry import DATASETS
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..datasets.images import Finding, inspect_image
from ..utils.config import datasets, type_name
from ..utils.errors import one_line

SHOWN = 3  # names beside a count


def inspect_images(
    files: Sequence[str], decode: bool = True, jobs: Optional[int] = None, tell: Optional[Callable[[], None]] = None
) -> List[Finding]:
    """Look at image files, several at a time; Pillow and OpenCV let go of Python's lock while they decode.

    Args:
        files (Sequence[str]): The files.
        decode (bool): Whether to decode all of each, see :func:`~mmrm.datasets.images.inspect_image`.
        jobs (int, optional): How many at a time. Defaults to None, a few more than cores.
        tell (callable, optional): Called after each.
    """

    def look(path: str) -> Finding:
        finding = inspect_image(path, decode)
        if tell is not None:
            tell()
        return finding

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return list(pool.map(look, files))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def inspect_with_progress(files: Sequence[str], decode: bool = True, jobs: Optional[int] = None) -> List[Finding]:
    """:func:`inspect_images` with a bar on stderr."""
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task('decoding images' if decode else 'reading headers', total=len(files))
        return inspect_images(files, decode, jobs, lambda: progress.advance(task))


def image_files(cfg: Config, problems: List[str], facts: List[str]) -> Dict[str, List[str]]:
    """The files that a config's data sets read, by part; what cannot be listed is added to ``problems`` or ``facts``.

    Args:
        cfg (Config): The config, its paths as they are to be opened.
        problems (list[str]): Of data sets that cannot be built.
        facts (list[str]): Of data sets that have no image files, such as CIFAR.
    """
    found: Dict[str, List[str]] = {}
    for part in ('train', 'val', 'test'):
        for config, field in datasets(
            (cfg.get(f'{part}_dataloader') or {}).get('dataset'), f'{part}_dataloader.dataset'
        ):
            try:
                with DATASETS.switch_scope_and_registry(config.get('_scope_', cfg.get('default_scope'))) as registry:
                    dataset = registry.build(dict(config, pipeline=[], lazy_init=False))
                    dataset.full_init()
                paths = [dataset.get_data_info(index).get('img_path') for index in range(len(dataset))]
            except Exception as error:  # whatever a data set raises
                problems.append(f'{field} ({type_name(config)}): {one_line(error)}')
                continue
            if any(path is None for path in paths):
                facts.append(
                    f'{part:5} data  {len(paths):,} images inside the files of {type_name(config)}, not decoded'
                )
            else:
                found.setdefault(part, []).extend(paths)
    return found


def odd_lines(findings: Iterable[Finding]) -> List[str]:
    """``12 images: grey ... (a.jpg, b.jpg, c.jpg, ...)`` for each kind of image that is not 8-bit RGB."""
    kinds = collections.defaultdict(list)
    for finding in findings:
        if finding.note:
            kinds[finding.note].append(finding.path)
    lines = []
    for note, paths in sorted(kinds.items()):
        more = ', ...' if len(paths) > SHOWN else ''
        lines.append(f'{len(paths):,} x {note} ({", ".join(paths[:SHOWN])}{more})')
    return lines


def check_images(cfg: Config, facts: List[str], problems: List[str], jobs: Optional[int] = None) -> None:
    """Decode every image of a config; adds what was found to ``facts``, the broken ones by name to ``problems``."""
    parts = image_files(cfg, problems, facts)
    files = list(dict.fromkeys(path for paths in parts.values() for path in paths))
    if not files:
        return
    findings = {finding.path: finding for finding in inspect_with_progress(files, jobs=jobs)}
    for part, paths in parts.items():
        broken = sum(bool(findings[path].problem) for path in paths)
        facts.append(f'{part:5} data  {len(paths):,} images decoded, {broken} broken')
    facts.extend(f'note        {line}' for line in odd_lines(findings.values()))
    problems.extend(f'{finding.path} {finding.problem}' for finding in findings.values() if finding.problem)
