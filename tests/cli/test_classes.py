"""Head, preprocessor and data must mean the same classes: said in one line, by every way to start a training."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_run import BESIDE, write_run

from mmrm.cli import launch, test, train
from mmrm.cli.checks import check
from mmrm.engine.classes import check_classes
from mmrm.utils.config import read_config

TOOLS = Path(__file__).parents[2] / 'tools'
# README's "Add RM to your own config", on a folder of the user's own.
SNIPPET = """
_base_ = ['mmpretrain::convnext/convnext-tiny_32xb128_in1k.py']  # yours
custom_imports = dict(imports=['mmrm'], allow_failed_imports=False)
data_preprocessor = dict(
    type='RMDataPreprocessor', batch_augments=dict(augments=dict(type='RecursiveMix', alpha=0.5)))
model = dict(
    backbone=dict(gap_before_final_norm=False),
    neck=None,
    head=dict(type='RMConsistencyHead', omega=0.5))
custom_hooks = [*_base_.custom_hooks, dict(type='ResetHistoryHook'), dict(type='RandomStateHook')]
"""
OWN_DATA = """
train_dataloader = dict(dataset=dict(_delete_=True, type='CustomDataset', data_root={root!r}, data_prefix='train',
                                     pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(_delete_=True, type='CustomDataset', data_root={root!r}, data_prefix='val',
                                   pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader
"""
# What a config of tiny_run needs to read other folders of its data; its own are class0 and class1.
FOLDERS = """
train_dataloader = dict(train_dataloader, dataset=dict(dataset, data_prefix='train'))
val_dataloader = dict(val_dataloader, dataset=dict(dataset, data_prefix='val'))
test_dataloader = val_dataloader
"""


pytestmark = pytest.mark.usefixtures('environment')


def write_folders(root: Path, train='abcd', val='abcd', empty=(), size=32) -> Path:
    """An image of each class in ``train`` and ``val``; ``empty`` are folders without one, such as 'train/tmp'."""
    rng = np.random.default_rng(0)
    for part, names in (('train', train), ('val', val)):
        for name in names:
            (root / part / name).mkdir(parents=True)
            for index in range(2):
                pixels = rng.integers(0, 256, (size, size, 3)).astype('uint8')
                Image.fromarray(pixels).save(root / part / name / f'{index}.png')
    for folder in empty:
        (root / folder).mkdir()
    return root


def tiny(tmp_path, more='', classes=None, **folders) -> Path:
    """tiny_run's config on folders of :func:`write_folders`."""
    config = write_run(tmp_path, epochs=1, images=0, more=FOLDERS + more)
    write_folders(tmp_path / 'data', **folders)
    if classes is not None:
        config.write_text(config.read_text().replace('num_classes=2', f'num_classes={classes}'))
    return config


def mended(line: str) -> list:
    """The arguments after ``--cfg-options`` of a message."""
    return line.partition('--cfg-options ')[2].split()


# ---------------------------------------------------------------------------------------------------------- own folders
@pytest.fixture
def snippet(tmp_path):
    write_folders(tmp_path / 'own')
    config = tmp_path / 'mine.py'
    config.write_text(SNIPPET + OWN_DATA.format(root=str(tmp_path / 'own')))
    return config


def test_readme_s_snippet_on_four_classes_of_one_s_own_stops_and_says_how_to_go_on(snippet, error, tmp_path):
    told = error(train.main, snippet, '--work-dir', tmp_path / 'work')
    assert 'have 4 classes (the folders a, b, c, d of' in told
    assert 'model.head.num_classes=1000, data_preprocessor.num_classes=1000' in told
    assert mended(told) == ['model.head.num_classes=4', 'data_preprocessor.num_classes=4', 'val_evaluator.topk=1']
    assert not (tmp_path / 'work').exists()
    report = check(snippet)
    assert [each for each in report.problems if 'classes' in each] == [
        told[len('error: ') :]
        .replace('val_dataloader.dataset', 'val_dataloader.dataset and test_dataloader.dataset')
        .replace('val_evaluator.topk asks', 'val_evaluator.topk, test_evaluator.topk asks')
        + ' test_evaluator.topk=1'
    ]


def test_check_py_does_not_call_it_ready(snippet, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setattr(sys, 'argv', ['check.py', str(snippet)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(TOOLS / 'check.py'), run_name='__main__')
    told = capsys.readouterr()
    assert stop.value.code == 2 and 'ready' not in told.out and 'model.head.num_classes=1000' in told.err


def test_the_options_that_the_message_names_mend_it(tmp_path, error):
    config = tiny(tmp_path, more='val_evaluator = [dict(type="Accuracy", topk=(1, 3, 5))]\n')
    told = error(train.main, config, '--work-dir', tmp_path / 'work')
    assert mended(told) == [
        'model.head.num_classes=4',
        'model.data_preprocessor.num_classes=4',
        'val_evaluator.0.topk=[1,3]',
    ]
    train.main([str(config), '--work-dir', str(tmp_path / 'work'), '--cfg-options', *mended(told)])
    assert (tmp_path / 'work' / 'epoch_1.pth').exists()


def test_the_place_of_the_preprocessor_is_the_config_s(tmp_path, error):
    told = error(train.main, tiny(tmp_path, more=BESIDE), '--work-dir', tmp_path / 'work')
    assert mended(told)[:2] == ['model.head.num_classes=4', 'data_preprocessor.num_classes=4']


@pytest.mark.parametrize('classes', [3, 5])
def test_too_few_and_too_many_are_both_told(tmp_path, error, classes):
    config = tiny(tmp_path, classes=classes)
    assert f'model.head.num_classes={classes}' in error(train.main, config, '--work-dir', tmp_path / 'work')
    assert f'model.head.num_classes={classes}' in check(config).problems[0]


def test_a_preprocessor_alone_that_disagrees_is_told(tmp_path, error):
    config = tiny(tmp_path, classes=4)
    told = error(
        train.main, config, '--work-dir', tmp_path / 'work', '--cfg-options', 'model.data_preprocessor.num_classes=7'
    )
    assert 'the model has model.data_preprocessor.num_classes=7.' in told
    assert mended(told) == ['model.data_preprocessor.num_classes=4']


def test_agreement_is_no_problem(tmp_path):
    assert check(tiny(tmp_path, classes=4)).problems == []


def test_a_data_set_of_fixed_classes_on_other_folders_is_told_with_the_folders(tmp_path, error):
    """Today's assertion of mmpretrain, in one line, with what makes it a data set of one's own."""
    config = tiny(
        tmp_path,
        more="""
train_dataloader['dataset'] = dict(dataset, type='ImageNet', split='train')
val_dataloader['dataset'] = dict(dataset, type='ImageNet', split='val')
""",
    )
    told = error(train.main, config, '--work-dir', tmp_path / 'work')
    assert f'(ImageNet) stands for 1000 classes, and {tmp_path}/data/train has 4 class folders: a, b, c, d' in told
    assert 'train_dataloader.dataset.metainfo.classes=a,b,c,d' in mended(told)
    train.main([str(config), '--work-dir', str(tmp_path / 'work'), '--cfg-options', *mended(told)])


def test_topk_beyond_the_classes_is_told_before_the_first_epoch(tmp_path, error):
    config = tiny(tmp_path, classes=4, more='val_evaluator = dict(type="Accuracy", topk=(1, 5))\n')
    told = error(train.main, config, '--work-dir', tmp_path / 'work')
    assert 'val_evaluator.topk asks for more classes than the 4 there are' in told
    assert mended(told) == ['val_evaluator.topk=1']


# -------------------------------------------------------------------------------------------------------- empty folders
def test_an_extra_empty_folder_is_named(tmp_path, error):
    config = tiny(tmp_path, classes=4, empty=('train/tmp', 'val/tmp'))
    told = error(train.main, config, '--work-dir', tmp_path / 'work')
    assert 'have 5 classes' in told and '1 of them empty (tmp: remove it if it is no class)' in told
    assert not mended(told)  # without the folder all is well
    (tmp_path / 'data/train/tmp').rmdir()
    (tmp_path / 'data/val/tmp').rmdir()
    assert check(config).problems == []


def test_a_folder_with_other_files_than_images_is_empty_too(tmp_path):
    config = tiny(tmp_path, classes=4, empty=('train/cache', 'val/cache'))
    (tmp_path / 'data/train/cache/thumbs.db').write_text('')
    assert '1 of them empty (cache:' in check(config).problems[0]


def test_an_empty_folder_that_all_count_is_a_warning(tmp_path, capsys):
    config = tiny(tmp_path, classes=5, empty=('train/e', 'val/e'))
    train.prepare(train.parser().parse_args([str(config), '--work-dir', str(tmp_path / 'work')]))
    assert re.search(r'warning: .*1 class folder without an image.*: e', capsys.readouterr().err)
    assert check(config).problems == []


def test_a_class_that_validation_lacks_would_move_the_labels(tmp_path, error):
    config = tiny(tmp_path, classes=4, val='abd')
    told = error(train.main, config, '--work-dir', tmp_path / 'work')
    assert 'val_dataloader.dataset has 3 classes, train_dataloader.dataset has 4 (c missing)' in told
    assert "'d' would be label 2 in one and 3 in the other" in told and not mended(told)
    (tmp_path / 'data/val/c').mkdir()  # as the message says
    assert check(config).problems == []


# ----------------------------------------------------------------------------------------------------- annotation files
def with_lists(tmp_path, train, classes=2, metainfo='') -> Path:
    config = write_run(
        tmp_path,
        epochs=1,
        more=f"""
for loader in (train_dataloader, val_dataloader):
    loader['dataset'] = dict(dataset, ann_file='list.txt'{metainfo})
test_dataloader = val_dataloader
""",
    )
    config.write_text(config.read_text().replace('num_classes=2', f'num_classes={classes}'))
    lines = [f'class{index % 2}/{index}.png {label}' for index, label in enumerate(train)]
    (tmp_path / 'data' / 'list.txt').write_text('\n'.join(lines) + '\n')
    return config


@pytest.mark.parametrize('labels, wrong', [([0, 1, 2], 'the label 2 (line 3 of'), ([0, -1, 1], 'the label -1 (line 2')])
def test_labels_out_of_range_are_told_with_their_line(tmp_path, error, labels, wrong):
    config = with_lists(tmp_path, labels)
    told = error(train.main, config, '--work-dir', tmp_path / 'work')
    assert wrong in told and 'with 2 classes 0 to 1 are allowed' in told
    assert wrong in check(config).problems[0]


def test_a_line_without_a_label_is_told(tmp_path, error):
    config = with_lists(tmp_path, [0, 'cat', 1])
    assert 'line 2 of' in error(train.main, config, '--work-dir', tmp_path / 'work')


def test_names_in_metainfo_count_for_a_list(tmp_path):
    config = with_lists(tmp_path, [0, 1], metainfo=", metainfo=dict(classes=['x', 'y', 'z'])")
    assert 'have 3 classes, the model has model.head.num_classes=2' in check(config).problems[0]


def test_a_head_beyond_the_labels_of_a_list_is_a_warning(tmp_path, capsys):
    config = with_lists(tmp_path, [0, 1], classes=1000)
    assert check(config).problems == []
    train.prepare(train.parser().parse_args([str(config), '--work-dir', str(tmp_path / 'work')]))
    told = capsys.readouterr().err
    assert 'has labels up to 1, model.head.num_classes=1000' in told and 'model.head.num_classes=2' in told


def test_what_only_the_built_data_knows_is_checked_before_the_first_iteration(tmp_path, error):
    """A class of the user's own that finds its samples itself, and does not say how many classes it has."""
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
    config = write_run(
        tmp_path,
        epochs=1,
        more="""
custom_imports = dict(imports=['mmrm', 'own_data_of_test_classes'], allow_failed_imports=False)
train_dataloader['dataset'] = dict(type='RepeatDataset', times=2, dataset=dict(dataset, type='OwnDataOfTestClasses'))
""",
    )
    sys.path.insert(0, str(tmp_path))
    try:
        told = error(train.main, config, '--work-dir', tmp_path / 'work')
    finally:
        sys.path.remove(str(tmp_path))
    assert 'train_dataloader.dataset.dataset (OwnDataOfTestClasses) has the label 2 (sample' in told


def test_a_label_that_a_transform_makes_is_one_line_too(tmp_path, error):
    (tmp_path / 'own_transform_of_test_classes.py').write_text("""
from mmpretrain.registry import TRANSFORMS

@TRANSFORMS.register_module(force=True)
class OwnTransformOfTestClasses:
    def __call__(self, results):
        return dict(results, gt_label=7)
""")
    config = write_run(
        tmp_path,
        epochs=1,
        more="""
custom_imports = dict(imports=['mmrm', 'own_transform_of_test_classes'], allow_failed_imports=False)
dataset['pipeline'].insert(1, dict(type='OwnTransformOfTestClasses'))
""",
    )
    sys.path.insert(0, str(tmp_path))
    try:
        told = error(train.main, config, '--work-dir', tmp_path / 'work')
    finally:
        sys.path.remove(str(tmp_path))
    assert 'a label is none of the classes 0 to num_classes - 1' in told


# ----------------------------------------------------------------------------------------------------- other ways, cost
def test_dist_train_tells_it_once_before_it_starts_processes(tmp_path, error, monkeypatch):
    started = []
    monkeypatch.setattr(launch, 'run_processes', lambda *args, **kwargs: started.append(args))
    told = error(launch.dist, 'train', tiny(tmp_path), 2, '--work-dir', tmp_path / 'work')
    assert 'model.head.num_classes=2' in told and not started


@pytest.mark.slow
def test_the_processes_of_dist_train_check_what_only_they_build(tmp_path, free_port):
    """The parent is kept from looking; of the two processes one tells."""
    config = tiny(
        tmp_path,
        more="""
train_dataloader['dataset'] = dict(dataset, data_prefix='train', metainfo=dict(classes=['a', 'b', 'c', 'd']))
""",
    )
    code = (
        'import sys, mmrm.cli.launch as launch; launch.compare_classes = lambda *args: None; launch.train(sys.argv[1:])'
    )
    script = tmp_path / 'train.py'
    script.write_text(f'import os; os.environ["CUDA_VISIBLE_DEVICES"] = ""\n{code}\n')
    run = subprocess.run(
        [
            sys.executable,
            '-m',
            'torch.distributed.run',
            '--nproc_per_node=2',
            f'--master_port={free_port}',
            script,
            config,
            '--work-dir',
            tmp_path / 'work',
            '--launcher',
            'pytorch',
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=dict(os.environ, PYTHONPATH=str(TOOLS.parent)),
    )
    assert run.returncode != 0
    assert len(re.findall('^error: .*have 4 classes, the model has model.head.num_classes=2', run.stderr, re.M)) == 1
    assert not list((tmp_path / 'work').glob('*.pth'))


def test_test_py_compares_too(tmp_path, error):
    config = tiny(tmp_path)
    (tmp_path / 'any.pth').write_bytes(b'')
    assert 'test_dataloader.dataset (CustomDataset) has 4 classes' in error(test.main, config, tmp_path / 'any.pth')


def test_images_are_listed_once_in_a_run(tmp_path, monkeypatch):
    """A thousand folders of a thousand images take minutes to list on a slow disk."""
    from mmpretrain.datasets import custom

    listed, original = [], custom.get_samples
    monkeypatch.setattr(
        custom, 'get_samples', lambda root, *args, **kwargs: (listed.append(root), original(root, *args, **kwargs))[1]
    )
    looked, walk = [], os.walk

    def first_only(folder, *args, **kwargs):
        for found in walk(folder, *args, **kwargs):
            looked.append(found)
            yield found

    monkeypatch.setattr('mmrm.engine.classes.os.walk', first_only)
    config = tiny(tmp_path, classes=4)
    for index in range(3):
        (tmp_path / 'data/train/a/more' / str(index)).mkdir(parents=True)
    train.main([str(config), '--work-dir', str(tmp_path / 'work')])
    assert sorted(Path(root).name for root in listed) == ['train', 'val']
    assert len(looked) == 8  # a look at each class folder, none below it


def test_models_whose_numbers_are_not_classes_are_left_alone(tmp_path):
    for base in (
        'mmdet::glip/glip_atss_swin-t_a_fpn_dyhead_16xb2_ms-2x_funtune_coco.py',
        'mmdet::qdtrack/qdtrack_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval.py',
    ):
        config = tmp_path / 'own.py'
        config.write_text(f"_base_ = ['{base}']\ncustom_imports = dict(imports=['mmrm'])\n")
        assert check_classes(read_config(config)).problems == []
