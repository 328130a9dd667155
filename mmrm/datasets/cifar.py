"""CIFAR in its original batch files, and CIFAR-10 as ``tools/get_cifar10.py`` writes it.

Both kinds of file are pickles, which can run code when they are opened: every file is compared with a known checksum
first, and a file with another one is never opened.
"""

from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mmpretrain.datasets import CIFAR10, CIFAR100
from mmpretrain.datasets.utils import calculate_md5
from mmpretrain.registry import DATASETS

from ..utils.errors import UserFileError, UserValueError
from ..utils.paths import find

# MD5 sums of the files that ``tools/get_cifar10.py`` writes, by name.
REWRITTEN = {
    'data_batch_1': 'f205d339e2feeb10b1280212383d2b23',
    'data_batch_2': '316cdf63237f5031148771029bd2c3a1',
    'data_batch_3': '20aec033e5118cb2ce7f6461bf7b03df',
    'data_batch_4': 'b604c07b3dcb5fe8ee369e2c261cfe11',
    'data_batch_5': 'c51c35da4f446bcb2d1f8a0a410e7610',
    'test_batch': '0319504e271ee94782c3f2e06651dff2',
}


def find_faults(folder: Path, known: Dict[str, List[str]]) -> List[str]:
    """What is wrong with the files of a CIFAR folder: 'data_batch_1 is missing', 'test_batch has another checksum' ...

    Args:
        folder (Path): ``cifar-10-batches-py`` or ``cifar-100-python``.
        known (dict): The MD5 sums that each file may have, by name.
    """
    faults = []
    for name, sums in known.items():
        if not (folder / name).is_file():
            faults.append(f'{name} is missing')
        elif calculate_md5(str(folder / name)) not in sums:
            faults.append(f'{name} has another checksum')
    return faults


def known_sums(dataset: type) -> Dict[str, List[str]]:
    """The MD5 sums that each file of a CIFAR data set may have, by name: the original ones and the rewritten ones."""
    known = {name: [md5] for name, md5 in dataset.train_list + dataset.test_list}
    for name, md5 in dataset.rewritten.items():
        known[name].append(md5)
    return known


class _CheckedCIFAR:
    """Looks at the files first: what is missing or broken is an error that names it, before anything is opened."""

    rewritten: Dict[str, str] = {}
    how_to_get = ''

    def __init__(
        self, data_root: str = '', *args, download: bool = False, per_class: Optional[Sequence[int]] = None, **kwargs
    ):
        self.per_class = per_class
        if per_class is not None and not (
            isinstance(per_class, (list, tuple))
            and len(per_class) == 2
            and all(isinstance(number, int) for number in per_class)
            and 0 <= per_class[0] < per_class[1]
        ):
            raise UserValueError(f'per_class={per_class!r} must be (first, last + 1), such as (0, 500).')
        super().__init__(str(find(data_root)) if data_root else '', *args, download=download, **kwargs)

    def _check_integrity(self) -> bool:
        if not getattr(self, '_verified', False):
            folder = Path(self.data_prefix['root']) / self.base_folder
            faults = find_faults(folder, known_sums(type(self)))
            if faults and not self.download:
                what = 'does not exist' if not folder.exists() else f'is not complete: {", ".join(faults)}'
                how = self.how_to_get.format(root=folder.parent)
                raise UserFileError(f'the data folder {folder} {what}. {how} See docs/data.md; MMRM_DATA moves it.')
            self._verified = not faults
        return self._verified

    def load_data_list(self) -> list:
        # In every process: if only the first one looked, the others would wait for it until they time out.
        self._check_integrity()
        return self._some_of(super().load_data_list())

    def _some_of(self, data_list: list) -> list:
        """The images of each class that ``per_class`` asks for, in the order of the files."""
        if self.per_class is None:
            return data_list
        first, stop = self.per_class
        seen, chosen = Counter(), []
        for sample in data_list:
            label = sample['gt_label']
            if first <= seen[label] < stop:
                chosen.append(sample)
            seen[label] += 1
        if min(seen.values()) < stop:
            raise UserValueError(f'per_class={self.per_class!r}: a class has only {min(seen.values())} images.')
        return chosen


@DATASETS.register_module()
class RMCIFAR10(_CheckedCIFAR, CIFAR10):
    """mmpretrain's CIFAR10 that also takes the files of ``tools/get_cifar10.py``.

    Args:
        data_root (str): The folder that holds ``cifar-10-batches-py``. A relative one is looked up from the current
            folder, then from the project's.
        split (str): 'train' or 'test'. Defaults to 'train'.
        download (bool): Whether to fetch missing files as mmpretrain does. Defaults to False.
        per_class (Sequence[int], optional): Only some images of each class, ``(first, past the last)``, counted in the
            order of the files, which is random. Defaults to None, all.
        **kwargs: Other arguments of :class:`mmpretrain.datasets.CIFAR10`.
    """

    rewritten = REWRITTEN
    how_to_get = 'Get it: python tools/get_cifar10.py.'


@DATASETS.register_module()
class RMCIFAR100(_CheckedCIFAR, CIFAR100):
    """mmpretrain's CIFAR100, with the errors of :class:`RMCIFAR10` and without a download unless asked for.

    Args: As :class:`RMCIFAR10`.
    """

    how_to_get = 'Get it: python -c "import torchvision; torchvision.datasets.CIFAR100(\'{root}\', download=True)".'
