"""What a classifier says of image files."""

from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union

import torch

from ..utils.errors import UserError, UserFileError, one_line
from ..weights.build import Run
from ..weights.inputs import Reader, normalise

# What OpenCV and Pillow read.
ENDINGS = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm', '.gif')


class Prediction(NamedTuple):
    """What is said of one file.

    Args:
        file (Path): The image.
        classes (list[tuple]): Name, index and score of the likeliest classes, the likeliest first; empty for a file
            that could not be read.
        error (str): Why it could not be read; '' if it could.
    """

    file: Path
    classes: List[Tuple[str, int, float]]
    error: str = ''

    def plain(self) -> Dict[str, Any]:
        """As JSON has it."""
        if self.error:
            return dict(file=str(self.file), error=self.error)
        classes = [dict(name=name, index=index, score=round(score, 6)) for name, index, score in self.classes]
        return dict(file=str(self.file), classes=classes)


def find_images(given: Sequence[Union[str, Path]]) -> List[Path]:
    """The files that are given, and all images below the folders that are.

    Raises:
        UserFileError: If something is not there, or a folder has no image.
    """
    found: List[Path] = []
    for each in given:
        path = Path(each).expanduser()
        if path.is_dir():
            images = sorted(file for file in path.rglob('*') if file.suffix.lower() in ENDINGS and file.is_file())
            if not images:
                raise UserFileError(f'{path} is a folder without images ({", ".join(ENDINGS)}).')
            found += images
        elif path.exists():
            found.append(path)
        else:
            raise UserFileError(f'image {each} does not exist.')
    return list(dict.fromkeys(found))


def predict(run: Run, files: Sequence[Path], top: int = 5) -> Iterator[Prediction]:
    """What a classifier says of files, one by one; a broken one does not end it.

    Args:
        run: The classifier.
        files: Images.
        top: How many classes.
    """
    reader = Reader(run.cfg)
    for file in files:
        try:
            image = reader(file)
            with torch.no_grad():
                scores = run.model(normalise(image, run.model), mode='tensor').float().softmax(1)[0].cpu()
        except UserError as error:
            yield Prediction(file, [], one_line(error))
            continue
        best = scores.topk(min(top, len(scores)))
        classes = [(run.classes[index], index, score) for score, index in zip(*map(torch.Tensor.tolist, best))]
        yield Prediction(file, classes)


def write_maps(run: Run, prediction: Prediction, out: Path, overwrite: bool = False) -> Path:
    """Draw the image and, for each class of a prediction, where in the image it is seen (GradCAM)."""
    from ..report import cam
    from ..utils import figures

    reader = Reader(run.cfg)
    image = reader(prediction.file)
    shown = reader.to_rgb(image)
    indices = [index for _, index, _ in prediction.classes]
    maps, _ = cam.activation_maps(run.model, normalise(image, run.model), indices)
    side = 1.6
    wide = shown.shape[1] / shown.shape[0]
    figure = figures.new_figure((len(indices) + 1) * side * wide + 0.2, side + 0.5, images=True)
    axes = figure.subplots(1, len(indices) + 1, squeeze=False)[0]
    axes[0].imshow(shown, interpolation='nearest')
    axes[0].set_title(figures.short_name(prediction.file.name, 24), fontsize=7)
    for place, heat, (name, _, score) in zip(axes[1:], maps, prediction.classes):
        heat = heat[: shown.shape[0], : shown.shape[1]]
        place.imshow(cam.overlay(shown, heat), interpolation='nearest')
        nothing = '' if heat.any() else '\nnothing in the image speaks for it'
        place.set_title(f'{figures.short_name(name)} {figures.share_text(score)}{nothing}', fontsize=7)
    for place in axes:
        figures.hide_axes(place)
    return figures.save(figure, out, overwrite)
