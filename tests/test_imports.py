"""In fresh processes: ``import mmrm`` changes nothing, ``import mmrm.models`` does all that a config needs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_run import write_run

from mmrm.utils.paths import shipped

OPENMMLAB = ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg')
# One name per module that registers something; the registry that it is looked up in.
REGISTERED = dict(
    MODELS='RMConsistencyHead RMDataPreprocessor PyramidNetCIFAR DenseNetCIFAR MapPooling',
    BATCH_AUGMENTS='RecursiveMix ResizeFillMix MoEx CutMixMoEx FeatureCutMix ManifoldMixup PuzzleMix StyleCutMix',
    DATASETS='RMCIFAR10 RMCIFAR100 RMImageNet RMImageFolder',
    TRANSFORMS='RMColorJitter RMColors RMCropFlip RMCutout RMLighting RMLoadResizedCrop RMPackInputs',
    HOOKS='BindAugmentsHook CheckClassesHook DropBlockHook MixedBatchesHook RandomStateHook ResetHistoryHook',
    METRICS='ClasswiseIoUMetric',
    PARAM_SCHEDULERS='RMCosineLR RMStepLR',
    OPTIM_WRAPPERS='BFloat16OptimWrapper',
    WEIGHT_INITIALIZERS='StrictPretrained',
)


def run(code: str, **environment: str) -> str:
    """The output of a program in a fresh process."""
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_mmrm_loads_neither_torch_nor_openmmlab():
    loaded = 'import sys, mmrm; print(mmrm.__version__, *{name.partition(".")[0] for name in sys.modules})'
    assert not set(run(loaded).split()) & {'torch', 'numpy', 'yaml', *OPENMMLAB}
    method = loaded.replace('print', 'mmrm.RecursiveMixModel; print')
    assert not set(run(method).split()) & {'yaml', *OPENMMLAB}


UNTOUCHED = """
import pkgutil, sys, torch, yaml, mmengine, mmcv
import mmengine.infer, mmengine.fileio.handlers.yaml_handler
from mmengine.config import Config, utils
from mmengine.runner.checkpoint import CheckpointLoader

def state():
    names = [name for name in sys.modules if name.partition('.')[0] in ('torch', 'mmengine', 'mmcv', 'yaml', 'pkgutil')]
    owners = [*map(sys.modules.get, names), Config, mmengine.infer.BaseInferencer, CheckpointLoader]
    values = {(str(owner), name): id(value) for owner in owners for name, value in vars(owner).items()}
    return values, dict(utils.MODULE2PACKAGE), list(torch.serialization.get_safe_globals()), 'mmcv._ext' in sys.modules

before = state()
import mmrm
mmrm.RecursiveMixModel, mmrm.RecursiveMix, mmrm.Consistency
after = state()
changed = [key for key, value in before[0].items() if after[0].get(key) != value]
assert not changed and after[1:] == before[1:], changed
assert not {'mmpretrain', 'mmdet', 'mmseg'} & sys.modules.keys()
"""


def test_the_method_leaves_openmmlab_as_it_is():
    run(UNTOUCHED)


# Each case in a child of one process that has loaded what all of them load: torch, mmengine and mmcv, nothing of mmrm.
FORKED = """
import importlib, os, sys, traceback
import mmcv, mmengine.registry, mmengine.runner, numpy, torch

def run_in_child(case):
    child = os.fork()
    if not child:
        try:
            case()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, case.__name__
"""
DOORS = (
    FORKED
    + """
def check(door):
    importlib.import_module(door)
    import mmpretrain.registry
    import mmrm.compat
    from mmengine.config import Config
    for registry, names in {names!r}.items():
        for name in names.split():
            assert getattr(mmpretrain.registry, registry).get(name) is not None, (registry, name)
    assert 'scopes' in [repair.name for repair in mmrm.compat.applied()]
    mmcv.adjust_hue(numpy.zeros((1, 1, 3), numpy.uint8), -0.1)
    assert any('HistoryBuffer' in str(each) for each in torch.serialization.get_safe_globals())
    assert Config._get_cfg_path('mmrm::rm/resnet50_8xb64_in1k.py', '')[0].endswith('rm/resnet50_8xb64_in1k.py')
    importlib.import_module('mmcv.ops')
    if door == 'mmrm.models':
        importlib.import_module('mmdet.models')

for door in ('mmrm.models', 'mmrm.engine.runner', 'mmrm.engine.hooks', 'mmrm.weights'):
    run_in_child(lambda: check(door))
"""
)


def test_every_door_repairs_then_registers():
    run(DOORS.format(names=REGISTERED))


MACHINES = (
    FORKED
    + """
def without_pkg_resources():
    sys.modules['pkg_resources'] = None  # as with setuptools 82
    import mmrm.models, mmpretrain
    from mmengine.config import Config
    from mmengine.utils import get_installed_path, is_installed
    assert is_installed('mmpretrain') and is_installed('mmengine') and not is_installed('mmnone')
    assert get_installed_path('mmpretrain') == mmpretrain.__path__[0]
    for base in ('mmpretrain::resnet/resnet50_8xb32_in1k.py', 'mmdet::atss/atss_r50_fpn_1x_coco.py'):
        assert os.path.isfile(Config._get_cfg_path(base, '')[0])

def without_mmdet_and_mmseg():
    sys.modules['mmdet'] = sys.modules['mmseg'] = None  # importing them fails
    import mmrm.models
    from mmengine.config.utils import MODULE2PACKAGE
    assert 'mmseg' in MODULE2PACKAGE

def with_a_compiled_extension():
    import importlib.machinery, types
    class Compiled(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith('__'):
                raise AttributeError(name)
            return lambda *args, **kwargs: 'compiled'
    fake = sys.modules['mmcv._ext'] = Compiled('mmcv._ext')
    fake.__spec__ = importlib.machinery.ModuleSpec('mmcv._ext', None)
    import mmrm.models, mmcv.ops.nms
    assert sys.modules['mmcv._ext'] is fake and sys.modules['mmcv.ops.nms'].ext_module is fake
    assert 'operators' not in [repair.name for repair in mmrm.compat.applied()]

def with_transformers_5():
    sys.path.insert(0, {transformers!r})
    import mmrm.models
    from mmpretrain.registry import MODELS
    assert MODELS.get('RMConsistencyHead') is mmrm.RMConsistencyHead
    assert 'multimodal' in [repair.name for repair in mmrm.compat.applied()]
    try:
        MODELS.build(dict(type='BlipCaption'))
    except ImportError as error:
        assert 'requires extra multi-modal dependencies' in str(error)

for case in (without_pkg_resources, without_mmdet_and_mmseg, with_a_compiled_extension, with_transformers_5):
    run_in_child(case)
"""
)


def test_the_repairs_fit_the_machine(tmp_path):
    """A distribution that mmpretrain takes for transformers 5 can be imported and has nothing in it."""
    files = {'transformers/__init__.py': '', 'transformers/modeling_utils.py': 'class PreTrainedModel: ...'}
    files['transformers-5.0.0.dist-info/METADATA'] = 'Metadata-Version: 2.1\nName: transformers\nVersion: 5.0.0\n'
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    run(MACHINES.format(transformers=str(tmp_path)))


@pytest.mark.slow
def test_the_imports_cost_little():
    spec = importlib.util.spec_from_file_location('import_time', shipped() / 'benchmarks' / 'import_time.py')
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    fastest = dict(zip(benchmark.STEPS, map(min, zip(*benchmark.measure(2)))))  # a busy machine only adds
    assert all(fastest[name] < limit for name, limit in benchmark.LIMITS.items()), fastest


# ------------------------------------------------------------------------------------------ the toolboxes' own train.py
def tool_of(toolbox: str) -> Path:
    tool = Path(importlib.util.find_spec(toolbox).origin).parent / '.mim' / 'tools' / 'train.py'
    if not tool.is_file():
        pytest.skip(f'{toolbox} is installed without its tools')
    return tool


def train(tool: Path, config: Path, folder: Path, epochs: int, *options: str) -> str:
    command = [sys.executable, tool, config, '--work-dir', folder / 'run', *(['--resume'] if epochs > 1 else [])]
    command += ['--cfg-options', f'train_cfg.max_epochs={epochs}', 'train_cfg.val_interval=9', *options]
    command += ['train_dataloader.num_workers=0', 'train_dataloader.persistent_workers=False']
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '', 'MMRM_DATA': str(folder)}
    done = subprocess.run(
        list(map(str, command)), env=environment, cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / f'run/epoch_{epochs}.pth').is_file()
    return done.stdout + done.stderr


def test_mmpretrains_train_py_builds_steps_and_resumes(tmp_path):
    write_run(tmp_path, images=8)
    config = tmp_path / 'own.py'
    config.write_text(
        f'_base_ = [{str(shipped() / "configs/rm/resnet18-w16_2xb64_cifar10.py")!r}]\n'
        f"dataset = dict(_delete_=True, type='CustomDataset', data_root={str(tmp_path / 'data')!r},\n"
        "    pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')])\n"
        'train_dataloader = dict(batch_size=4, dataset=dataset)\nval_dataloader = dict(dataset=dataset)\n'
        'model = dict(data_preprocessor=dict(num_classes=2), head=dict(num_classes=2))\nval_evaluator = dict(topk=1)\n'
    )
    tool = tool_of('mmpretrain')
    train(tool, config, tmp_path, 1)
    assert 'resumed epoch: 1' in train(tool, config, tmp_path, 2)


def pixels(folder: Path, name: str, shape: tuple, most: int = 256) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, most, shape).astype('uint8')).save(folder / name)


def write_coco(folder: Path) -> list:
    """Two images with a box each where the shipped configs look for COCO's; returns options that make them small."""
    images = [dict(id=index, file_name=f'{index}.png', width=64, height=64) for index in range(2)]
    boxes = [dict(id=1 + i, image_id=i, category_id=1, bbox=[8, 8, 40, 40], area=1600, iscrowd=0) for i in range(2)]
    labels = dict(images=images, annotations=boxes, categories=[dict(id=1, name='person')])
    (folder / 'coco/annotations').mkdir(parents=True)
    for split in ('train2017', 'val2017'):
        for image in images:
            pixels(folder / 'coco' / split, image['file_name'], (64, 64, 3))
        (folder / f'coco/annotations/instances_{split}.json').write_text(json.dumps(labels))
    return ['train_dataloader.dataset.pipeline.2.scale=(64,64)']


@pytest.mark.slow
def test_mmdets_train_py_builds_steps_and_resumes(tmp_path):
    options = ['model.init_cfg=None', *write_coco(tmp_path)]
    tool, config = tool_of('mmdet'), shipped() / 'configs/rm/atss_r50_fpn_1x_coco.py'
    train(tool, config, tmp_path, 1, *options)
    assert 'resumed epoch: 1' in train(tool, config, tmp_path, 2, *options)
