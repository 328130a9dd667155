"""Loops of other libraries: a run that is killed in mid-epoch and resumed is the run that was never stopped."""

import contextlib
import functools
import runpy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from parallel_training import train_in_parallel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mmrm import RecursiveMix, RecursiveMixModel
from mmrm.utils.paths import shipped

EPOCHS, STEPS, KILLED_AFTER = 3, 5, 8


class Killed(Exception):
    pass


def build(seed=0):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU())
    net = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    rng = np.random.RandomState(seed)
    return RecursiveMixModel(net, '0', alpha=1.0, omega=0.5, input_size=16, rng=rng, prob=0.9)


def images_and_labels(seed=0):
    generator = torch.Generator().manual_seed(seed)
    number = 4 * STEPS
    return TensorDataset(
        torch.randn(number, 3, 16, 16, generator=generator), torch.randint(5, (number,), generator=generator)
    )


def stateful_loader(seed=0):
    torchdata = pytest.importorskip('torchdata.stateful_dataloader')
    return torchdata.StatefulDataLoader(images_and_labels(seed), 4, shuffle=True)


def train(model, loader, optimizer, save, kill, step=0, call=None, backward=torch.Tensor.backward):
    """The steps after ``step``; after step ``kill`` the state is saved and the run ends."""
    losses = []
    for epoch in range(step // STEPS, EPOCHS):
        if hasattr(loader, 'set_epoch'):
            loader.set_epoch(epoch)
        for images, labels in loader:
            loss = (call or model)(images, labels)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            losses.append((float(loss), float(model.losses['lam'])))
            step += 1
            if step == kill:
                save()
                return losses, model
        model.reset_history()
    return losses, model


def plain_loop(folder, kill=None, resume=False, rank=0, wrap=lambda model: model):
    model, loader, file = build(rank), stateful_loader(rank), folder / f'last_{rank}.pth'
    parallel = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts = dict(model=model, rm=model.rm, optimizer=optimizer, loader=loader)
    for name, state in torch.load(file).items() if resume else ():
        parts[name].load_state_dict(state)

    def save():
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)

    return train(model, loader, optimizer, save, kill, KILLED_AFTER if resume else 0, parallel)


def accelerate_loop(folder, kill=None, resume=False):
    accelerate = pytest.importorskip('accelerate')
    pytest.importorskip('torchdata')
    configuration = accelerate.DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(images_and_labels(), 4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(model.rm)
    if resume:
        accelerator.load_state(folder)
    save = functools.partial(accelerator.save_state, folder, safe_serialization=False)
    return train(model, loader, optimizer, save, kill, KILLED_AFTER if resume else 0, backward=accelerator.backward)


def lightning_loop(folder, kill=None, resume=False):
    lightning = pytest.importorskip('lightning')
    losses = []
    example = runpy.run_path(shipped() / 'examples' / 'lightning_module.py')

    class Module(example['RecursiveMixClassifier']):
        def __init__(self):
            lightning.LightningModule.__init__(self)
            self.model = build()
            self.save_hyperparameters(dict(lr=0.1, epochs=EPOCHS, off_epochs=0))

        def on_train_batch_start(self, batch, number):
            super().on_train_batch_start(batch, number)
            if self.global_step == kill:
                raise Killed

        def training_step(self, batch, number):
            loss = super().training_step(batch, number)
            losses.append((float(loss), float(self.model.losses['lam'])))
            return loss

    module = Module()
    checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(folder, 'last', every_n_train_steps=KILLED_AFTER)
    trainer = lightning.Trainer(
        accelerator='cpu', max_epochs=EPOCHS, callbacks=[] if resume else [checkpoint], logger=False,
        enable_checkpointing=not resume, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with contextlib.suppress(Killed):
        trainer.fit(module, stateful_loader(), ckpt_path=folder / 'last.ckpt' if resume else None)
    return losses, module.model


@pytest.mark.parametrize('loop', [plain_loop, accelerate_loop, lightning_loop])
def test_run_killed_in_mid_epoch_resumes_exactly(loop, tmp_path):
    whole, model = loop(tmp_path)
    before, _ = loop(tmp_path, kill=KILLED_AFTER)
    after, resumed = loop(tmp_path, resume=True)
    assert [*before, *after] == whole and len(whole) == EPOCHS * STEPS and len(before) == KILLED_AFTER
    assert sum(lam > 0 for _, lam in whole) > EPOCHS * STEPS / 2
    assert after[0][1] > 0, 'the first batch after the resume is mixed with that before it'
    for (name, one), other in zip(model.state_dict().items(), resumed.state_dict().values()):
        assert torch.equal(one, other), name


def _two_processes(rank, folder):
    train_in_parallel(rank, folder)
    dist.init_process_group('gloo', init_method=f'file://{folder}/group', rank=rank, world_size=2)
    ddp = nn.parallel.DistributedDataParallel
    whole, model = plain_loop(folder, rank=rank, wrap=ddp)
    before, _ = plain_loop(folder, kill=KILLED_AFTER, rank=rank, wrap=ddp)
    after, resumed = plain_loop(folder, resume=True, rank=rank, wrap=ddp)
    assert [*before, *after] == whole
    for one, other in zip(model.state_dict().values(), resumed.state_dict().values()):
        assert torch.equal(one, other)
    torch.save(whole, folder / f'losses_{rank}.pth')
    dist.destroy_process_group()


@pytest.fixture(scope='module')
def two_processes(tmp_path_factory):
    """The folder of two processes that train in every way."""
    folder = tmp_path_factory.mktemp('two_processes')
    torch.multiprocessing.spawn(_two_processes, (folder,), nprocs=2)
    return folder


def test_two_processes_save_a_history_each(two_processes):
    one, other = (torch.load(two_processes / f'losses_{rank}.pth') for rank in range(2))
    assert one != other


def test_static_graphs_and_sharded_weights_train_as_ddp(two_processes):
    for rank in range(2):
        found = torch.load(two_processes / f'{rank}.pth')
        mixed = found['DDP'][0][:, 1] > 0
        assert mixed.sum() > 1 and mixed[3] == (rank == 0)
        torch.testing.assert_close(found['static'], found['DDP'])
        torch.testing.assert_close(found['FSDP'], found['DDP'])


def test_a_state_holds_tensors_only_and_that_of_0_3_loads():
    rm = RecursiveMix(alpha=1.0, num_classes=5, rng=np.random.RandomState(0))
    rm.mix(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))
    state = rm.state_dict()
    assert set(state) == {'copy_images', 'images', 'scores', 'rng'}
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    old = {name: state[name] for name in ('copy_images', 'images', 'scores')}
    other = RecursiveMix(alpha=1.0, num_classes=5)
    other.load_state_dict(old)
    assert other.mix(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))[2].lam > 0
    with pytest.raises(ValueError, match=r'includes a generator.*rng=np.random.RandomState\(\)'):
        other.load_state_dict(state)
