"""The drawing of the method."""

import cv2
import numpy as np
import pytest

from tools.analysis import method


def test_the_method_figure_pastes_the_history_and_its_label(tmp_path, capsys):
    files = [str(tmp_path / f'{index}.png') for index in range(3)]
    for index, file in enumerate(files):
        cv2.imwrite(file, np.full((60, 80, 3), 80 * index, np.uint8))
    images = [method.read_square(file) for file in files]
    figure = method.draw(images)
    history, current, mixed = (image.get_array() for image in figure.axes[0].images)
    assert set(np.unique(history)) == {0, 80} and set(np.unique(current)) == {160}
    assert set(np.unique(mixed)) == {0, 80, 160}
    shares = [float(text.get_text()) for text in figure.axes[0].texts if text.get_text().startswith(('0.', '1.'))]
    assert shares[-1] == pytest.approx((mixed == 160).mean(), abs=0.01)
    method.main([str(tmp_path / 'a.svg'), *files])
    assert (tmp_path / 'a.svg').read_text().startswith('<?xml')
    with pytest.raises(SystemExit):
        method.main([str(tmp_path / 'b.svg'), files[0], files[1], 'missing.jpg'])
    assert 'missing.jpg does not exist' in capsys.readouterr().err
