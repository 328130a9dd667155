"""Pictures of the report: made from a run's own checkpoint and data, kept, and never in the way of the page."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from mmrm.report import page, pictures
from mmrm.report.collect import collect

from run_logs import epochs, write_session  # isort: skip
from tiny_run import write_run  # isort: skip


def pixels(address: str) -> np.ndarray:
    kind, _, data = address.partition(';base64,')
    assert kind in ('data:image/png', 'data:image/jpeg')
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


@pytest.fixture
def classifier(tmp_path):
    """A run of the tiny classifier: its log, its config and a checkpoint."""
    config = write_run(tmp_path, epochs=1)
    cfg = Config.fromfile(config)
    folder = write_session(tmp_path / 'rm', '20260101_000000', epochs(1, [50.0]), cfg.pretty_text)
    init_default_scope('mmpretrain')
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=dict(epoch=1)), folder / 'epoch_1.pth')
    return folder


def test_a_classifiers_pictures_come_from_its_data_and_are_kept(classifier, monkeypatch):
    collected = collect([classifier])
    found = pictures.of_runs(collected, log=lambda line: None)[str(classifier)]
    assert found['notes'] == [] and len(found['maps']) >= pictures.IMAGES
    assert pixels(next(iter(found['maps'].values()))['image']).shape == (128, 128, 3)
    wrong = sum(each['count'] for each in found['confusions'])
    assert 0 < wrong <= 12 and all(each['images'] for each in found['confusions'])
    monkeypatch.setattr(pictures, '_draw', lambda *_: pytest.fail('drawn again'))
    assert pictures.of_run(collected.runs[0]) == found
    html = page.build(collected, {str(classifier): found})
    assert 'Class activation maps' in html and 'Worst confusions' in html and html.count('data:image') > 6


def test_another_checkpoint_is_drawn_again_and_a_folder_may_be_read_only(classifier, monkeypatch):
    run = collect([classifier]).runs[0]
    for note in ('first', 'second'):
        (classifier / 'epoch_1.pth').write_text(note)
        monkeypatch.setattr(pictures, '_draw', lambda *_, note=note: (dict(notes=[note]), True))
        assert pictures.of_run(run)['notes'] == [note]
    (classifier / pictures.FILE).unlink()
    monkeypatch.setattr('os.access', lambda path, mode: path != classifier)
    assert pictures.of_run(run)['notes'] == ['second'] and not (classifier / pictures.FILE).exists()


def test_missing_images_and_checkpoints_are_named(classifier):
    for path in sorted((classifier.parent / 'data' / 'class0').iterdir())[:2]:
        path.write_bytes(b'no image')
    run = collect([classifier]).runs[0]
    found = pictures.of_run(run)
    assert 'confusions: 2 images could not be read' in found['notes'] and found['maps']
    (classifier / 'epoch_1.pth').unlink()
    found = pictures.of_run(run)
    assert 'no checkpoint' in found['notes'][0] and 'confusions' not in found
    assert 'no checkpoint' in page.build(collect([classifier]), {str(classifier): found})


SHOT = dict(image='data:image/png;base64,', caption='a', alt='b')
WRONG_SHOTS = [dict(SHOT, image='https://example.org/seen.png'), dict(SHOT, image=['x']), dict(image=SHOT['image'])]
FOREIGN = [
    '[' * 100_000,
    '{"maps": {}}',
    '{"notes": [], "maps": []}',
    '{"notes": [], "confusions": [1]}',
    *(json.dumps(dict(notes=[], maps=dict(a=dict(wrong, truth=SHOT)))) for wrong in WRONG_SHOTS),
]


@pytest.mark.parametrize('text', FOREIGN)
def test_pictures_in_a_foreign_folder_that_were_not_drawn_here_are_drawn_again(text, classifier, monkeypatch):
    run = collect([classifier]).runs[0]
    monkeypatch.setattr(pictures, '_draw', lambda *_: (dict(notes=['<b>drawn</b>']), True))
    pictures.of_run(run)
    key = json.loads((classifier / pictures.FILE).read_text())['key']
    (classifier / pictures.FILE).write_text(f'{{"key": "{key}", "pictures": {text}}}')
    found = pictures.of_run(run)
    assert found['notes'] == ['<b>drawn</b>']
    assert '&lt;b&gt;drawn' in page.build(collect([classifier]), {str(classifier): found})
