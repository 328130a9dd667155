"""In fresh processes: ``import mmrm`` changes nothing, ``import mmrm.models`` does all that a config needs."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
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
    return done.stdout + done.stderr


def test_import_mmrm_loads_neither_torch_nor_openmmlab():
    loaded = """
import sys, mmrm
print(mmrm.__version__, *{name.partition('.')[0] for name in sys.modules})
mmrm.RecursiveMixModel
print(*{name.partition('.')[0] for name in sys.modules})
"""
    package, method = run(loaded, PYTHONWARNINGS='ignore').splitlines()
    assert not set(package.split()) & {'torch', 'numpy', 'yaml', *OPENMMLAB}
    assert 'torch' in method.split() and not set(method.split()) & {'yaml', *OPENMMLAB}


# Each case in a child of one process that has loaded what all of them load: torch, mmengine and mmcv, nothing of mmrm.
FORKED = """
import importlib, importlib.machinery, os, pkgutil, runpy, sys, traceback, types
import matplotlib.pyplot, pycocotools.mask, scipy.optimize, torchvision
import mmcv, mmengine.fileio.handlers.yaml_handler, mmengine.infer, mmengine.runner, numpy, torch, yaml
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.runner.checkpoint import CheckpointLoader

def run_in_child(case, *arguments):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            case(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, case.__name__

def train_and_resume(tool, folder, arguments):
    os.chdir(folder)
    for epochs in (1, 2):
        sys.argv[:] = [tool, *arguments, f'train_cfg.max_epochs={epochs}', *(['--resume'] if epochs == 2 else [])]
        runpy.run_path(tool, run_name='__main__')
        assert os.path.isfile(f'run/epoch_{epochs}.pth')
"""
CASES = """
def state():
    names = [name for name in sys.modules if name.partition('.')[0] in ('torch', 'mmengine', 'mmcv', 'yaml', 'pkgutil')]
    owners = [*map(sys.modules.get, names), Config, mmengine.infer.BaseInferencer, CheckpointLoader]
    values = {{(str(owner), name): id(value) for owner in owners for name, value in vars(owner).items()}}
    return values, dict(MODULE2PACKAGE), list(torch.serialization.get_safe_globals()), 'mmcv._ext' in sys.modules

def the_method_leaves_openmmlab_as_it_is():
    before = state()
    import mmrm
    mmrm.RecursiveMixModel, mmrm.RecursiveMix, mmrm.Consistency
    after = state()
    changed = [key for key, value in before[0].items() if after[0].get(key) != value]
    assert not changed and after[1:] == before[1:], changed
    assert not {{'mmpretrain', 'mmdet', 'mmseg'}} & sys.modules.keys()

def mmrm_models_repairs_then_registers():
    import mmrm.models, mmpretrain.registry
    for registry, names in {names!r}.items():
        for name in names.split():
            assert getattr(mmpretrain.registry, registry).get(name) is not None, (registry, name)
    assert 'scopes' in [repair.name for repair in mmrm.compat.applied()]
    mmcv.adjust_hue(numpy.zeros((1, 1, 3), numpy.uint8), -0.1)
    assert any('HistoryBuffer' in str(each) for each in torch.serialization.get_safe_globals())
    assert Config._get_cfg_path('mmrm::rm/resnet50_8xb64_in1k.py', '')[0].endswith('rm/resnet50_8xb64_in1k.py')
    importlib.import_module('mmcv.ops'), importlib.import_module('mmdet.models')

def without_mmdet_and_mmseg():
    sys.modules['mmdet'] = sys.modules['mmseg'] = None  # importing them fails
    import mmrm.engine.hooks, mmpretrain.registry
    assert mmpretrain.registry.MODELS.get('RMConsistencyHead') is mmrm.RMConsistencyHead
    assert 'mmseg' in MODULE2PACKAGE

def on_another_machine():
    sys.modules['pkg_resources'] = None  # as with setuptools 82
    sys.path.insert(0, {transformers!r})
    class Compiled(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith('__'):
                raise AttributeError(name)
            return lambda *args, **kwargs: 'compiled'
    fake = sys.modules['mmcv._ext'] = Compiled('mmcv._ext')
    fake.__spec__ = importlib.machinery.ModuleSpec('mmcv._ext', None)
    import mmrm.weights, mmpretrain, mmcv.ops.nms
    from mmengine.utils import get_installed_path, is_installed
    from mmpretrain.registry import MODELS
    assert is_installed('mmpretrain') and is_installed('mmengine') and not is_installed('mmnone')
    assert get_installed_path('mmpretrain') == mmpretrain.__path__[0]
    for base in ('mmpretrain::resnet/resnet50_8xb32_in1k.py', 'mmdet::atss/atss_r50_fpn_1x_coco.py'):
        assert os.path.isfile(Config._get_cfg_path(base, '')[0])
    assert sys.modules['mmcv._ext'] is fake and sys.modules['mmcv.ops.nms'].ext_module is fake
    applied = [repair.name for repair in mmrm.compat.applied()]
    assert 'operators' not in applied and 'multimodal' in applied, applied
    assert MODELS.get('RMConsistencyHead') is mmrm.RMConsistencyHead
    try:
        MODELS.build(dict(type='BlipCaption'))
    except ImportError as error:
        assert 'requires extra multi-modal dependencies' in str(error)

for case in (the_method_leaves_openmmlab_as_it_is, mmrm_models_repairs_then_registers, without_mmdet_and_mmseg,
             on_another_machine):
    run_in_child(case)
run_in_child(train_and_resume, *{train!r})
"""


def own_train_py(toolbox: str, config: Path, folder: Path, *options: str) -> tuple:
    """The arguments of ``train_and_resume``: the train.py that comes with a toolbox, for an epoch and another one."""
    tool = Path(importlib.util.find_spec(toolbox).origin).parent / '.mim' / 'tools' / 'train.py'
    if not tool.is_file():
        pytest.skip(f'{toolbox} is installed without its tools')
    arguments = [str(config), '--work-dir', 'run', '--cfg-options', 'train_cfg.val_interval=9', *options]
    arguments += ['train_dataloader.num_workers=0', 'train_dataloader.persistent_workers=False']
    return str(tool), str(folder), arguments


ENVIRONMENT = dict(OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')


def test_imports_repair_and_register_and_mmpretrains_train_py_trains(tmp_path):
    """The other machine: setuptools 82, compiled operators, and what mmpretrain takes for transformers 5."""
    files = {'transformers/__init__.py': '', 'transformers/modeling_utils.py': 'class PreTrainedModel: ...'}
    files['transformers-5.0.0.dist-info/METADATA'] = 'Metadata-Version: 2.1\nName: transformers\nVersion: 5.0.0\n'
    for name, text in files.items():
        path = tmp_path / 'site' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_run(tmp_path, images=8)
    config = tmp_path / 'own.py'
    config.write_text(
        f'_base_ = [{str(shipped() / "configs/rm/resnet18-w16_2xb64_cifar10.py")!r}]\n'
        f"dataset = dict(_delete_=True, type='CustomDataset', data_root={str(tmp_path / 'data')!r},\n"
        "    pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')])\n"
        'train_dataloader = dict(batch_size=4, dataset=dataset)\nval_dataloader = dict(dataset=dataset)\n'
        'model = dict(data_preprocessor=dict(num_classes=2), head=dict(num_classes=2))\nval_evaluator = dict(topk=1)\n'
    )
    train = own_train_py('mmpretrain', config, tmp_path)
    program = FORKED + CASES.format(names=REGISTERED, transformers=str(tmp_path / 'site'), train=train)
    assert 'resumed epoch: 1' in run(program, **ENVIRONMENT)


@pytest.mark.slow
def test_mmdets_train_py_builds_steps_and_resumes(tmp_path):
    from world import make_world

    make_world(tmp_path, classification=(0, 0))
    config = shipped() / 'configs/rm/atss_r50_fpn_1x_coco.py'
    small = 'train_dataloader.dataset.pipeline.2.scale=(64,64)'
    train = own_train_py('mmdet', config, tmp_path, 'model.init_cfg=None', small)
    program = f'{FORKED}train_and_resume(*{train!r})'
    assert 'resumed epoch: 1' in run(program, MMRM_DATA=str(tmp_path), **ENVIRONMENT)


@pytest.mark.slow
def test_imports_are_fast():
    spec = importlib.util.spec_from_file_location('import_time', shipped() / 'benchmarks' / 'import_time.py')
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    fastest = dict(zip(benchmark.STEPS, map(min, zip(*benchmark.measure(2)))))  # a busy machine only adds
    assert all(fastest[name] < limit for name, limit in benchmark.LIMITS.items()), fastest
