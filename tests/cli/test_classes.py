"""Head, preprocessor and data must have the same classes: one line names the difference and the options that fix it."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from tiny_run import BESIDE, write_run, write_trained

from mmrm import cli
from mmrm.engine.classes import check_classes, check_runner_classes
from mmrm.utils.config import read_config
from mmrm.utils.errors import UserValueError

# What a config of tiny_run needs to read other folders of its data; its own are class0 and class1.
FOLDERS = """
train_dataloader = dict(train_dataloader, dataset=dict(dataset, data_prefix='train'))
val_dataloader = dict(val_dataloader, dataset=dict(dataset, data_prefix='val'))
test_dataloader = val_dataloader
"""
IMAGENET = """
train_dataloader['dataset'] = dict(dataset, type='ImageNet', split='train')
val_dataloader['dataset'] = dict(dataset, type='ImageNet', split='val')
"""
pytestmark = pytest.mark.usefixtures('environment')


def write_folders(root: Path, val='abcd', empty=()) -> Path:
    """Two images of each class in ``train`` (a, b, c, d) and ``val``; ``empty`` are folders without one."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype('uint8')
    for folder in (*(f'train/{name}' for name in 'abcd'), *(f'val/{name}' for name in val)):
        (root / folder).mkdir(parents=True)
        for index in range(2):
            Image.fromarray(pixels).save(root / folder / f'{index}.png')
    for folder in empty:
        (root / folder).mkdir()
    return root


def tiny(tmp_path, more='', classes=2, **folders) -> Path:
    """tiny_run's config on folders of :func:`write_folders`."""
    config = write_run(tmp_path, epochs=1, images=0, more=FOLDERS + more)
    write_folders(tmp_path / 'data', **folders)
    config.write_text(config.read_text().replace('num_classes=2', f'num_classes={classes}'))
    return config


def report(config, **options):
    return check_classes(read_config(config, options), ('train', 'val'))


def options_of(line: str) -> list:
    """The arguments after ``--cfg-options`` of a message."""
    return line.partition('--cfg-options ')[2].split()


# -------------------------------------------------------------------------------------------------------- class folders
@pytest.mark.parametrize(
    'change, message, options',
    [
        (dict(classes=4), None, {}),
        (dict(classes=3), 'model.head.num_classes=3', {'model.head': 4, 'model.data_preprocessor': 4}),
        (dict(classes=5), 'model.head.num_classes=5', {'model.head': 4, 'model.data_preprocessor': 4}),
        (dict(more=BESIDE), 'data_preprocessor.num_classes=2', {'model.head': 4, 'data_preprocessor': 4}),
        (
            dict(classes=4, more="model['data_preprocessor']['num_classes'] = 7"),
            'the model has model.data_preprocessor.num_classes=7.',
            {'model.data_preprocessor': 4},
        ),
        (
            dict(classes=4, more='val_evaluator = dict(type="Accuracy", topk=(1, 5))'),
            'val_evaluator.topk asks for more classes than the 4 there are',
            {'val_evaluator.topk': 1},
        ),
        (dict(classes=1000, more=IMAGENET), None, {}),  # a folder that lacks classes must not change the model
        (
            dict(classes=4, empty=('train/tmp', 'val/tmp')),
            'has 5 classes (the folders a, b, c, d, tmp of {data}/train), the model has model.head.num_classes=4',
            {'model.head': 5, 'model.data_preprocessor': 5},
        ),
        (
            dict(classes=4, val='abd'),
            'val_dataloader.dataset has 3 classes, train_dataloader.dataset has 4 (not in both: c): '
            "'d' would be label 2 in one and 3 in the other",
            {},
        ),
        (dict(classes=4, val='abd', empty=('val/c',)), None, {}),
    ],
)
def test_class_folders_and_heads_are_compared(tmp_path, change, message, options):
    config = tiny(tmp_path, **change)
    found = report(config)
    if message is None:
        assert not found.problems and not found.warnings
        return
    assert message.format(data=tmp_path / 'data') in found.text()
    assert found.options == {key if 'topk' in key else f'{key}.num_classes': options[key] for key in options}
    if options:
        assert report(config, **found.options).problems == []
    with pytest.raises(UserValueError):
        found.check()


def test_the_options_of_the_message_train_and_images_are_listed_once(tmp_path, error, monkeypatch):
    """A thousand folders of a thousand images take minutes to list on a slow disk."""
    from mmpretrain.datasets import custom

    read, original = [], custom.get_samples
    monkeypatch.setattr(
        custom, 'get_samples', lambda root, *more, **kw: (read.append(root), original(root, *more, **kw))[1]
    )
    config = tiny(tmp_path, more='val_evaluator = [dict(type="Accuracy", topk=(1, 3, 5))]\n')
    options = options_of(error(cli.main, 'train', config, '--work-dir', tmp_path / 'work'))
    assert options[2] == 'val_evaluator.0.topk=[1,3]' and not read
    cli.main(['train', str(config), '--work-dir', str(tmp_path / 'work'), '--cfg-options', *options])
    assert (tmp_path / 'work' / 'epoch_1.pth').exists()
    assert sorted(Path(root).name for root in read) == ['train', 'val']


# ----------------------------------------------------------------------------------------------------- annotation files
@pytest.mark.parametrize(
    'labels, classes, metainfo, message',
    [
        ([0, 1, 2], 2, '', 'has the label 2 (line 3 of {file}); with 2 classes 0 to 1 are allowed'),
        ([0, -1, 1], 2, '', 'has the label -1 (line 2 of {file})'),
        ([0, 'cat', 1], 2, '', 'has the label cat (line 2 of {file})'),
        (
            [0, 1],
            2,
            ", metainfo=dict(classes=['x', 'y', 'z'])",
            'has 3 classes, the model has model.head.num_classes=2',
        ),
        ([0, 1], 1000, '', None),
    ],
)
def test_labels_of_annotation_files(tmp_path, labels, classes, metainfo, message):
    config = write_run(tmp_path, images=2)
    text = config.read_text().replace('num_classes=2', f'num_classes={classes}')
    config.write_text(text.replace("type='CustomDataset'", f"type='CustomDataset', ann_file='list.txt'{metainfo}"))
    file = tmp_path / 'data' / 'list.txt'
    file.write_text(''.join(f'class{index % 2}/{index}.png {label}\n' for index, label in enumerate(labels)))
    found = report(config)
    if message:
        assert message.format(file=file) in found.text()
    else:  # more outputs than labels may be intended
        assert not found.problems and 'has labels up to 1, model.head.num_classes=1000' in found.warnings[0]
        assert 'model.head.num_classes=2' in options_of(found.warnings[0])


# ---------------------------------------------------------------------------------------------------- what a run builds
def test_labels_of_a_data_set_that_finds_its_samples_itself(tmp_path, error, monkeypatch):
    (tmp_path / 'own_data_of_test_classes.py').write_text("""
from mmpretrain.datasets import CustomDataset
from mmpretrain.registry import DATASETS

@DATASETS.register_module(force=True)
class OwnDataOfTestClasses(CustomDataset):
    def load_data_list(self):
        found = super().load_data_list()
        self._metainfo.pop('classes', None)
        return [dict(each, gt_label=each['gt_label'] + 1) for each in found]
""")
    more = """
custom_imports = dict(imports=['mmrm.models', 'own_data_of_test_classes'], allow_failed_imports=False)
train_dataloader['dataset'] = dict(type='RepeatDataset', times=2, dataset=dict(dataset, type='OwnDataOfTestClasses'))
"""
    config = write_run(tmp_path, epochs=1, more=more)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = error(cli.main, 'train', config, '--work-dir', tmp_path / 'work')
    assert 'train_dataloader.dataset.dataset (OwnDataOfTestClasses) has the label 2 (sample' in line


def test_test_compares_too(tmp_path, error):
    (tmp_path / 'any.pth').write_bytes(b'')
    line = error(cli.main, 'test', tiny(tmp_path), tmp_path / 'any.pth')
    assert 'test_dataloader.dataset (CustomDataset) has 4 classes' in line


@pytest.mark.parametrize('command', ['test', 'train'])
def test_a_checkpoint_with_the_classes_in_another_order_is_refused(command, tmp_path, error):
    config, checkpoint = write_trained(tmp_path)
    saved = torch.load(checkpoint, weights_only=True)
    saved['meta']['dataset_meta'] = dict(classes=('class1', 'class0'))
    torch.save(saved, checkpoint)
    use = [checkpoint] if command == 'test' else ['--cfg-options', f'load_from={checkpoint}']
    line = error(cli.main, command, config, '--work-dir', tmp_path / 'work', *use)
    assert 'in another order: class0 is class 1 in it and class 0 in the data' in line


@pytest.mark.parametrize(
    'base',
    [
        'mmdet::glip/glip_atss_swin-t_a_fpn_dyhead_16xb2_ms-2x_funtune_coco.py',
        'mmdet::qdtrack/qdtrack_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval.py',
    ],
)
def test_models_whose_numbers_are_not_classes_are_not_compared(tmp_path, base):
    config = tmp_path / 'own.py'
    config.write_text(f"_base_ = ['{base}']\ncustom_imports = dict(imports=['mmrm.models'])\n")
    assert check_classes(read_config(config)).problems == []


@pytest.mark.parametrize(
    'number, preprocessor, message',
    [
        (None, 5, None),
        (5, 5, None),
        (
            7,
            5,
            r'val_dataloader.dataset \(Data\) has 7 classes, the model has model.head.num_classes=5, model.data_prep',
        ),
        (None, 6, r'5.* model.data_preprocessor.num_classes=6'),
    ],
)
def test_a_config_is_compared_with_built_data(number, preprocessor, message):
    data = type('Data', (), dict(metainfo=dict(classes=list(map(str, range(number))))) if number else {})()
    loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=data))
    cfg = Config(dict(model=dict(head=dict(num_classes=5), data_preprocessor=dict(num_classes=preprocessor))))
    run = SimpleNamespace(cfg=cfg, _train_loop=None, _val_loop=loop, _test_loop={})
    with pytest.raises(UserValueError, match=message) if message else contextlib.nullcontext():
        check_runner_classes(run)
