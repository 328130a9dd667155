"""mmengine's loader in mmrm's tools: reads mmengine's own checkpoints, executes nothing."""

import builtins
import contextlib
import functools
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.hooks import EMAHook
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner import Runner, load_checkpoint
from mmengine.runner.checkpoint import CheckpointLoader
from safetensors.torch import save_file

from mmrm import compat
from mmrm.compat import safe_classes
from mmrm.utils.checkpoints import read_checkpoint
from mmrm.utils.errors import UserError, UserFileError


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return dict(x=torch.full((3,), float(index)))


class Line(BaseModel):
    def __init__(self, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        self.fc = torch.nn.Linear(3, 1)

    def forward(self, x, mode='tensor'):
        return dict(loss=self.fc(torch.stack(list(x))).mean())


def runner(work_dir, epochs=2, **kwargs) -> Runner:
    return Runner(
        model=Line(), work_dir=str(work_dir), experiment_name=f'{work_dir.name}-{epochs}-{len(kwargs)}',
        train_dataloader=dict(dataset=Numbers(), batch_size=4, num_workers=0,
                              sampler=dict(type='DefaultSampler', shuffle=True)),
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=.01)),
        default_hooks=dict(logger=dict(type='LoggerHook', interval=1)),
        custom_hooks=[dict(type='EMAHook')], default_scope='mmengine', **kwargs)  # yapf: disable


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_weights_alone_start_a_run_with_averaged_weights(suffix, tmp_path):
    """mmengine's EMAHook asks for a state_dict in what is read."""
    model, file = Line(), tmp_path / f'weights{suffix}'
    torch.save(model.state_dict(), file) if suffix == '.pth' else save_file(model.state_dict(), file)
    run = runner(tmp_path / 'run', epochs=1, load_from=str(file))
    run.optim_wrapper['optimizer']['lr'] = 0
    run.train()
    (hook,) = (hook for hook in run.hooks if isinstance(hook, EMAHook))
    assert torch.equal(hook.ema_model.module.fc.weight, model.fc.weight)


def test_numpy_values_of_a_checkpoint_round_trip(tmp_path):
    values = dict(
        scalars=[np.float64(0.1), np.float32(0.1), np.float16(0.1), np.int64(-3), np.uint8(200), np.bool_(True)],
        arrays=[
            np.random.rand(3, 4),
            np.asfortranarray(np.random.rand(2, 3)),
            np.zeros((0, 2)),
            np.array([True, False]),
            np.arange(5, dtype=np.int16),
        ],
        buffer=HistoryBuffer([1.0, 2.0], [1, 1]),
        state=np.random.get_state(),
    )
    torch.save(values, tmp_path / 'numbers.pth')
    back = read_checkpoint(tmp_path / 'numbers.pth')
    for a, b in zip(values['scalars'] + values['arrays'], back['scalars'] + back['arrays']):
        assert a.dtype == b.dtype and np.array_equal(a, b) and isinstance(b, type(a))
    assert back['state'][0] == 'MT19937' and np.array_equal(back['state'][1], values['state'][1])
    assert back['buffer'].max() == 2.0 and back['buffer'].statistics('current') == 2.0


@pytest.mark.parametrize('name', ['numpy.core.multiarray', 'numpy._core.multiarray'])
def test_numpy_1_and_2_read_each_other(name, tmp_path):
    torch.save(
        dict(array=np.arange(3.0), scalar=np.float64(1.5)), tmp_path / 'own.pth', _use_new_zipfile_serialization=False
    )
    data = (tmp_path / 'own.pth').read_bytes()
    other = data.replace(b'cnumpy.core.multiarray\n', f'c{name}\n'.encode())
    other = other.replace(b'cnumpy._core.multiarray\n', f'c{name}\n'.encode())
    assert f'c{name}\n'.encode() in other
    (tmp_path / 'other.pth').write_bytes(other)
    back = read_checkpoint(tmp_path / 'other.pth')
    assert np.array_equal(back['array'], np.arange(3.0)) and back['scalar'] == 1.5


class Harm:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *args):
        self.call = function, args

    def __call__(self):
        """pickle wants a function, or what looks like one."""

    def __reduce__(self):
        return self.call


def harmful(kind: str, marker) -> dict:
    """A checkpoint that leaves ``marker`` behind when it is executed."""
    harm = dict(
        system=Harm(os.system, f'touch "{marker}"'),
        exec=Harm(builtins.exec, f'open({str(marker)!r}, "w").close()'),
        eval=Harm(builtins.eval, f'open({str(marker)!r}, "w").close()'),
        method=Harm(Harm(getattr, HistoryBuffer, 'register_statistics'), Harm(open, str(marker), 'w')),
    )[kind]
    return dict(state_dict=Line().state_dict(), meta=dict(epoch=1, iter=1), message_hub=harm)


LOADERS = dict(
    read_checkpoint=lambda path, tmp_path: read_checkpoint(path),
    load_checkpoint=lambda path, tmp_path: load_checkpoint(Line(), str(path)),
    resume=lambda path, tmp_path: runner(tmp_path, load_from=str(path), resume=True).train(),
    init_cfg=lambda path, tmp_path: Line(dict(type='Pretrained', checkpoint=str(path))).init_weights(),
)


KINDS = ('system', 'exec', 'eval', 'method')


@pytest.mark.parametrize(
    'kind, loader', [*((kind, 'read_checkpoint') for kind in KINDS), *(('system', loader) for loader in LOADERS)]
)
def test_no_loader_executes_a_harmful_checkpoint(kind, loader, tmp_path):
    marker, path = tmp_path / 'marker', tmp_path / 'harmful.pth'
    torch.save(harmful(kind, marker), path)
    with pytest.raises(UserError, match=r'harmful.pth asks for'):
        LOADERS[loader](path, tmp_path)
    assert not marker.exists()
    with contextlib.suppress(AttributeError, TypeError):  # executed, then failed
        torch.load(path, weights_only=False)
    assert marker.exists()  # it is harmful


@pytest.mark.parametrize('protocol', [2, 4])
@pytest.mark.parametrize('old_format', [False, True])
@pytest.mark.parametrize('variable', [None, 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'])
def test_formats_and_environment_variables_do_not_allow_code(variable, old_format, protocol, tmp_path, monkeypatch):
    marker, path = tmp_path / 'marker', tmp_path / 'harmful.pth'
    options = dict(_use_new_zipfile_serialization=not old_format, pickle_protocol=protocol)
    torch.save(harmful('system', marker), path, **options)
    if variable:
        monkeypatch.setenv(variable, '1')
    before = dict(os.environ)
    for loader in ('read_checkpoint', 'load_checkpoint'):
        with pytest.raises(UserError, match=r'(posix|nt).system|cannot be checked'):
            LOADERS[loader](path, tmp_path)
    assert not marker.exists()
    assert dict(os.environ) == before


def test_a_harmful_file_from_the_web_is_not_executed(tmp_path, monkeypatch):
    torch.save(harmful('system', tmp_path / 'marker'), tmp_path / 'harmful.pth')
    torch.save(Line().state_dict(), tmp_path / 'good.pth')
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'cache'))
    fetch = lambda url, target, *args, **kwargs: shutil.copy(tmp_path / Path(url).name, target)  # noqa: E731
    monkeypatch.setattr(torch.hub, 'download_url_to_file', fetch)
    assert 'fc.weight' in load_checkpoint(Line(), 'http://example.org/good.pth')['state_dict']
    with pytest.raises(UserFileError, match=r'harmful.pth asks for (posix|nt).system'):
        load_checkpoint(Line(), 'http://example.org/harmful.pth')
    assert not (tmp_path / 'marker').exists()


@pytest.mark.parametrize(
    'owner, name', [(HistoryBuffer, 'register_statistics'), (HistoryBuffer, '__subclasses__'), (dict, 'mean')]
)
def test_the_allow_list_has_no_getattr(owner, name, tmp_path):
    assert getattr not in torch.serialization.get_safe_globals()
    with pytest.raises(pickle.UnpicklingError, match=r'getattr'):
        safe_classes.statistic(owner, name)
    if owner is HistoryBuffer:
        torch.save(Harm(getattr, owner, name), tmp_path / 'getattr.pth')
        for read in (read_checkpoint, functools.partial(load_checkpoint, Line())):
            with pytest.raises(UserFileError, match=rf'asks for getattr\(.*HistoryBuffer.*{name}'):
                read(str(tmp_path / 'getattr.pth'))


@pytest.mark.skipif(not hasattr(torch.serialization, 'safe_globals'), reason='torch before 2.5')
def test_a_loader_with_a_list_of_its_own_leaves_ours(tmp_path):
    """OneDL's mmengine has one for each file."""
    torch.save(dict(buffer=HistoryBuffer(), number=np.float64(1.5)), tmp_path / 'numbers.pth')
    with torch.serialization.safe_globals([HistoryBuffer, np.ndarray, type(np.dtype('f8'))]):
        pass
    assert not safe_classes.needed() and read_checkpoint(tmp_path / 'numbers.pth')['number'] == 1.5


@pytest.mark.parametrize(
    'value',
    [
        np.array([dict()], dtype=object),
        np.zeros(2, dtype=[('a', 'f8'), ('b', 'O')]),
        np.array(['text']),
        np.ma.masked_array([1.0]),
    ],
)
def test_arrays_of_anything_but_numbers_are_refused(value, tmp_path):
    torch.save(value, tmp_path / 'array.pth')
    with pytest.raises(UserFileError, match=r'asks for numpy'):
        read_checkpoint(tmp_path / 'array.pth')


def test_a_damaged_checkpoint_is_named_by_mmengine_too(tmp_path):
    torch.save({'fc.weight': torch.randn(100, 100)}, tmp_path / 'whole.pth')
    data = bytearray((tmp_path / 'whole.pth').read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    (tmp_path / 'flipped.pth').write_bytes(data)
    (tmp_path / 'shorter.pth').write_bytes(data[:100] + data[164:])  # all offsets in it are wrong then
    torch.save({'fc.weight': torch.zeros(1).expand(10**6, 10**6)}, tmp_path / 'bomb.pth')  # one number, repeated
    for name, message in (
        ('flipped.pth', 'is damaged'),
        ('shorter.pth', 'is damaged'),
        ('bomb.pth', r'is refused: .*fc.weight alone 4,000,000'),
    ):
        with pytest.raises(UserFileError, match=f'{name} {message}'):
            load_checkpoint(Line(), str(tmp_path / name))
    with pytest.raises(FileNotFoundError):
        load_checkpoint(Line(), str(tmp_path / 'none.pth'))


def test_applying_twice_changes_nothing():
    before, known = CheckpointLoader.load_checkpoint.__func__, len(torch.serialization.get_safe_globals())
    assert not safe_classes.needed()
    compat.apply()
    compat.police()
    assert CheckpointLoader.load_checkpoint.__func__ is before
    assert len(torch.serialization.get_safe_globals()) == known


class Built:
    """Pickled as a call and the state that the result is given."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize(
    'state',
    [
        (3, 'N', None, -1, -1, 0),  # NumPy's own dtype reads memory that is not there
        (3,),
        'text',
    ],
)
def test_a_wrong_state_of_a_number_type_is_refused(state, tmp_path):
    torch.save(dict(a=Built(np.dtype, ('f8', False, True), state)), tmp_path / 'dtype.pth')
    with pytest.raises(UserFileError, match=r'numpy\.dtype with the state'):
        read_checkpoint(tmp_path / 'dtype.pth')


@pytest.mark.parametrize(
    'state',
    [
        (1, (1 << 40,), np.dtype('f8'), False, b''),
        (1, (2,), np.dtype('f8'), False, b'1234'),
        (1, (2,), 'f8', False, bytes(16)),
        (1, (-1, -1), np.dtype('f8'), False, bytes(16)),
        (1,),
        3,
    ],
)
def test_a_wrong_state_of_an_array_is_refused(state, tmp_path):
    make = np.zeros(1).__reduce__()[0]
    torch.save(dict(a=Built(make, (np.ndarray, (0,), b'b'), state)), tmp_path / 'array.pth')
    with pytest.raises(UserFileError):
        read_checkpoint(tmp_path / 'array.pth')


def test_arrays_that_were_read_are_saved_as_numpys_own(tmp_path):
    arrays = dict(a=np.arange(6.0).reshape(2, 3), f=np.asfortranarray(np.ones((2, 3))), big=np.arange(3).astype('>i4'))
    torch.save(arrays, tmp_path / 'a.pth')
    read = read_checkpoint(tmp_path / 'a.pth')
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())
    read['a'][0, 0] = 7
    torch.save(dict(read, buffer=HistoryBuffer([1.0], [1])), tmp_path / 'b.pth')
    again = torch.load(tmp_path / 'b.pth', weights_only=False)
    assert type(again['a']) is np.ndarray and again['a'][0, 0] == 7
