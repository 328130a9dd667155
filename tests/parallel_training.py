"""Two processes that train a wrapped network under DDP and FSDP. It imports little: every process does."""

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mmrm.wrapper import RecursiveMixModel


def small_network():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 64, 5))


def wrap(network):
    return RecursiveMixModel(network, '2', alpha=1.0, input_size=32, layout='NCHW')


def shard(model):
    """FSDP2 of a layer, of ``fc_roi`` by itself, and of the rest."""
    mesh = init_device_mesh('cpu', (2,))
    for module in (model.module[0], model.consistency.fc_roi, model):
        fully_shard(module, mesh=mesh)
    return model


PARALLEL = dict(
    DDP=nn.parallel.DistributedDataParallel,
    static=lambda model: nn.parallel.DistributedDataParallel(model, static_graph=True),
    FSDP=shard,
)


def train_in_parallel(rank, folder):
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    found = {}
    for name, parallel in PARALLEL.items():
        torch.manual_seed(0)
        model, data = wrap(small_network()), torch.Generator().manual_seed(rank)
        model.rm.rng = np.random.RandomState(rank)
        trained, losses = parallel(model), []
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for step in range(5):
            if step == 3 and rank == 1:  # it has nothing to compare while the other process has
                model.reset_history()
            loss = trained(torch.randn(4, 3, 32, 32, generator=data), torch.arange(4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(torch.stack([loss.detach(), model.losses['consistency']]))
        weight = model.consistency.fc_roi.weight.detach()
        found[name] = [torch.stack(losses), weight.full_tensor() if hasattr(weight, 'full_tensor') else weight.clone()]
    torch.save(found, f'{folder}/{rank}.pth')
    dist.destroy_process_group()
