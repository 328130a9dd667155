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
    folder = write_session(tmp_path / 'rm', '20260101_000000', epochs(1, [50.0]), config.read_text())
    cfg = Config.fromfile(config)
    init_default_scope('mmpretrain')
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=dict(epoch=1)), folder / 'epoch_1.pth')
    return folder


def test_a_classifiers_pictures_come_from_its_data_and_are_kept(classifier, monkeypatch):
    collected = collect([classifier])
    found = pictures.of_runs(collected, log=lambda line: None)[str(classifier)]
    assert found['notes'] == [] and len(found['fed']) == pictures.FED
    first, second = found['fed'][:2]
    assert 'λ = 0.00' in first['caption'] and 'λ' in second['caption'] and 'class' in first['caption']
    assert pixels(first['image']).shape == (128, 128, 3)
    assert len(found['maps']) >= pictures.IMAGES
    wrong = sum(each['count'] for each in found['confusions'])
    assert 0 < wrong <= 12 and all(each['images'] for each in found['confusions'])
    monkeypatch.setattr(pictures, '_draw', lambda *_: pytest.fail('drawn again'))
    assert pictures.of_run(collected.runs[0]) == found
    html = page.build(collected, {str(classifier): found})
    assert 'What the networks were fed' in html and 'Worst confusions' in html and html.count('data:image') > 6


def test_another_checkpoint_is_drawn_again_and_kept_next_to_the_report_if_need_be(classifier, tmp_path, monkeypatch):
    run = collect([classifier]).runs[0]
    for note in ('first', 'second'):
        (classifier / 'epoch_1.pth').write_text(note)
        monkeypatch.setattr(pictures, '_draw', lambda *_, note=note: (dict(notes=[note]), True))
        assert pictures.of_run(run)['notes'] == [note]
    (classifier / pictures.FILE).unlink()
    monkeypatch.setattr('os.access', lambda path, mode: path != classifier)
    pictures.of_run(run, cache=tmp_path)
    assert not (classifier / pictures.FILE).exists() and len(list((tmp_path / 'report_pictures').iterdir())) == 1


def test_missing_images_and_a_missing_checkpoint_are_told(classifier):
    for path in sorted((classifier.parent / 'data' / 'class0').iterdir())[:2]:
        path.write_bytes(b'no image')
    run = collect([classifier]).runs[0]
    found = pictures.of_run(run)
    assert 'confusions: 2 images could not be read' in found['notes'] and found['maps']
    (classifier / 'epoch_1.pth').unlink()
    found = pictures.of_run(run)
    assert 'no checkpoint' in found['notes'][0] and 'confusions' not in found
    assert 'no checkpoint' in page.build(collect([classifier]), {str(classifier): found})


@pytest.mark.parametrize(
    'name, kind', [('atss_cells', 'Detection'), pytest.param('pspnet_cells', 'Segmentation', marks=pytest.mark.slow)]
)
def test_detectors_and_segmentors_stand_beside_the_truth(tmp_path, monkeypatch, name, kind):
    from projects.demo.photographs import make_photographs

    make_photographs(tmp_path / 'photographs', train=4, val=4)
    monkeypatch.setenv('MMRM_PHOTOGRAPHS', 'photographs')  # found from the folder of the run
    monkeypatch.setenv('MMRM_BACKBONE', 'random')
    cfg = Config.fromfile(page.FOLDER.parents[1] / 'projects' / 'demo' / 'configs' / f'{name}.py')
    key = 'coco/bbox_mAP' if kind == 'Detection' else 'mIoU'
    folder = write_session(tmp_path / name, '20260101_000000', epochs(1, [0.1], key=key), cfg.pretty_text)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    torch.save(dict(state_dict=model.state_dict(), meta={}), folder / 'epoch_1.pth')
    run = collect([folder]).runs[0]
    found = pictures.of_run(run)
    assert run.task.startswith(kind) and found['notes'] == [] and len(found['predictions']) == 4
    first = found['predictions']['scene 0']
    truth, guess = pixels(first['truth']['image']), pixels(first['image'])
    assert truth.shape == guess.shape and np.abs(truth.astype(int) - guess).max() > 60, 'the truth is drawn, too'
    assert json.loads((folder / pictures.FILE).read_text())['pictures'] == found
