"""Images back from what the network sees, in the right colours; files that are never lost."""

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from mmpretrain.models import ClsDataPreprocessor
from PIL import Image

from mmrm.utils import figures
from mmrm.utils.errors import UserFileError, UserValueError
from tools.analysis import plots

# The colours of a flag: red, green and blue columns, in RGB.
FLAG = np.zeros((4, 6, 3), np.uint8)
FLAG[:, 0:2, 0], FLAG[:, 2:4, 1], FLAG[:, 4:6, 2] = 250, 200, 150
NORMAL = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])


TO_PIL = dict(type='NumpyToPIL', to_rgb=True)


@pytest.mark.parametrize('to_rgb', [True, False])
@pytest.mark.parametrize(
    'steps, loaded',
    [
        ([dict(type='LoadImageFromFile')], 'bgr'),
        ([dict(type='LoadImageFromFile'), TO_PIL, dict(type='PILToNumpy')], 'rgb'),  # swapped on the way
        ([dict(type='RMLoadResizedCrop', scale=4)], 'bgr'),
        ([], 'rgb'),  # the data set holds the pixels
    ],
)
def test_an_image_comes_back_in_its_own_colours(steps, loaded, to_rgb, tmp_path):
    Image.fromarray(FLAG).save(tmp_path / 'flag.png')
    init_default_scope('mmpretrain')
    pipeline = [*steps, dict(type='PackInputs')]
    data = Compose(pipeline)(dict(img_path=str(tmp_path / 'flag.png'), img=FLAG))
    preprocessor = ClsDataPreprocessor(to_rgb=to_rgb, **NORMAL)
    inputs = preprocessor(dict(inputs=[data['inputs']]), training=False)['inputs']
    cfg = Config(dict(train_dataloader=dict(dataset=dict(pipeline=pipeline))))
    before = np.random.get_state()[1].tolist()
    order = figures.channel_order(cfg, preprocessor)
    assert np.random.get_state()[1].tolist() == before
    assert (order == loaded) != to_rgb and figures.channel_order(cfg) == loaded
    if 'scale' not in pipeline[0]:
        assert np.array_equal(figures.to_images(inputs, preprocessor, order)[0], FLAG)


def test_labels_in_words_keep_the_sum():
    found = figures.label_text([0.5, 0.0, 0.3, 0.15, 0.03, 0.02], ['cat, tabby', 'b', 'dog', 'frog', 'e', 'f'])
    assert found == ['cat 0.50', 'dog 0.30', 'frog 0.15', '2 more 0.05']
    assert figures.label_text([0.999, 0.001]) == ['class 0 1.00', 'class 1 <0.01']


def test_a_picture_is_written_by_its_ending_never_over_another_and_always_the_same(tmp_path):
    for suffix, start in (('png', b'\x89PNG'), ('svg', b'<?xml'), ('pdf', b'%PDF')):
        for name in 'ab':
            figure = figures.new_figure(1, 1)
            figure.subplots().plot([1, 2], marker='o')
            figures.save(figure, tmp_path / 'new' / f'{name}.{suffix}')
        path, again = (tmp_path / 'new' / f'{name}.{suffix}' for name in 'ab')
        assert path.read_bytes().startswith(start) and path.read_bytes() == again.read_bytes()
        with pytest.raises(UserFileError, match='already exists'):
            figures.save(figure, path)
        figures.save(figure, path, overwrite=True)
    with pytest.raises(UserValueError, match=r'must end in \.png, \.svg, \.pdf'):
        figures.check_picture(tmp_path / 'a.jpg')


def test_the_caption_stays_inside_the_figure():
    """Also a long path without a blank."""
    figure = figures.new_figure(2, 3)
    figure.subplots()
    plots.provenance(figure, [f'RM: work_dirs/{"a_long_name/" * 20}epoch_300.pth, epoch 300', 'data: noise'])
    pixels = figures.to_array(figure)
    assert (pixels[:, -2:] == 255).all() and (pixels[-60:] < 255).any()
    text = figure._supxlabel.get_text()
    assert text.replace('\n    ', '').count('a_long_name/') == 20 and 'epoch_300.pth' in text
