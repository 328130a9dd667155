"""ImageNet, with its folders looked at first."""

from pathlib import Path

from mmpretrain.datasets import ImageNet
from mmpretrain.registry import DATASETS

from ..utils.errors import UserFileError
from ..utils.paths import find
from .images import SkipsBrokenImages


@DATASETS.register_module()
class RMImageNet(SkipsBrokenImages, ImageNet):
    """mmpretrain's ImageNet, where a folder that is missing or half there is an error that names it.

    Args:
        data_root (str): The folder that holds ``train`` and ``val`` (and perhaps ``meta``). A relative one is looked up
            from the current folder, then from the project's.
        split (str): 'train', 'val' or 'test'.
        skip_broken (bool): Train past a broken image instead of naming it. Defaults to False.
        **kwargs: Other arguments of :class:`mmpretrain.datasets.ImageNet`.
    """

    def __init__(self, data_root: str = '', *args, **kwargs):
        local = data_root and '://' not in data_root
        super().__init__(str(find(data_root)) if local else data_root, *args, **kwargs)

    def load_data_list(self) -> list:
        """The images' paths and labels, after a look at the folders."""
        folder = Path(self.img_prefix)
        hint = 'See docs/data.md; MMRM_DATA moves the data folder.'
        if '://' in self.img_prefix:
            return super().load_data_list()
        if not folder.is_dir():
            raise UserFileError(f'the data folder {folder} does not exist. {hint}')
        if self.with_label and not self.ann_file:
            self._check_classes(folder, hint)
        images = super().load_data_list()
        if not images:
            raise UserFileError(f'{self.ann_file or folder} lists no images. {hint}')
        # With an annotation file nothing else looks at the images before the first epoch reaches them.
        missing = [entry['img_path'] for entry in (images[0], images[-1]) if not Path(entry['img_path']).is_file()]
        if missing:
            raise UserFileError(f'{self.ann_file or folder} lists {missing[0]}, which does not exist. {hint}')
        return images

    def _check_classes(self, folder: Path, hint: str) -> None:
        classes = sorted(each for each in folder.iterdir() if each.is_dir())
        empty = [each.name for each in classes if not any(each.iterdir())]
        wanted = len(self.CLASSES or classes)
        if len(classes) != wanted or not classes:
            raise UserFileError(f'the data folder {folder} has {len(classes)} class folders, not {wanted}. {hint}')
        if empty:
            names = ', '.join(empty[:5]) + (' ...' if len(empty) > 5 else '')
            raise UserFileError(f'the data folder {folder} has {len(empty)} empty class folders: {names}. {hint}')
