"""ImageNet, with its folders looked at first."""

from pathlib import Path

from mmpretrain.datasets import ImageNet
from mmpretrain.registry import DATASETS

from ..utils.errors import UserFileError, abbreviate
from .images import CheckedImages


@DATASETS.register_module()
class RMImageNet(CheckedImages, ImageNet):
    """mmpretrain's ImageNet, where a folder that is missing or half there is an error that names it.

    Args:
        data_root (str): The folder that holds ``train`` and ``val`` (and perhaps ``meta``). A relative one is looked up
            from the current folder, then from the project's.
        split (str): 'train', 'val' or 'test'.
        skip_broken (bool): Train past a broken image instead of naming it. Defaults to False.
        **kwargs: Other arguments of :class:`mmpretrain.datasets.ImageNet`.
    """

    hint = ' See docs/data.md; MMRM_DATA moves the data folder.'

    def load_data_list(self) -> list:
        """The images' paths and labels, after a look at the folders."""
        local, folder = '://' not in self.img_prefix, Path(self.img_prefix)
        if local and folder.is_dir() and self.with_label and not self.ann_file:
            self._check_classes(folder)
        images = super().load_data_list()
        if not local:
            return images
        if not images:
            raise UserFileError(f'{self.ann_file or folder} lists no images.{self.hint}')
        # With an annotation file nothing else looks at the images before the first epoch reaches them.
        missing = [entry['img_path'] for entry in (images[0], images[-1]) if not Path(entry['img_path']).is_file()]
        if missing:
            raise UserFileError(f'{self.ann_file or folder} lists {missing[0]}, which does not exist.{self.hint}')
        return images

    def _check_classes(self, folder: Path) -> None:
        classes = sorted(each for each in folder.iterdir() if each.is_dir())
        empty = [each.name for each in classes if not any(each.iterdir())]
        wanted = len(self.CLASSES or classes)
        if len(classes) != wanted or not classes:
            raise UserFileError(f'the data folder {folder} has {len(classes)} class folders, not {wanted}.{self.hint}')
        if empty:
            names = abbreviate(empty)
            raise UserFileError(f'the data folder {folder} has {len(empty)} empty class folders: {names}.{self.hint}')
