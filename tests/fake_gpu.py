"""A GPU that computes nothing: fake tensors on ``cuda:0`` have shapes, types and devices, but no numbers.

With it a CPU shows what a step does on a GPU: on which device and in which precision each tensor is, how often the
host waits for the device, and how much memory is in use. Timings and numerics it cannot show.
"""

import contextlib
import heapq
import weakref

import numpy as np
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device('cuda:0')
aten = torch.ops.aten


@contextlib.contextmanager
def fake_gpu(monkeypatch):
    """Inside, tensors are fake, autocast believes in CUDA, and gradients come by :func:`walk`.

    A tensor notes that it was pinned. NumPy gets ones: that is where PuzzleMix leaves the device.
    """

    def pin_memory(tensor, device=None):
        pinned = tensor.clone()
        pinned.is_fake_pinned = True
        return pinned

    def backward(loss):
        for leaf, gradient in walk(loss).items():
            leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient

    with FakeTensorMode(allow_non_fake_inputs=True), monkeypatch.context() as patch:
        for module in (torch.cuda.amp.common, torch.amp.autocast_mode):
            patch.setattr(module, 'amp_definitely_not_available', lambda: False, raising=False)
        patch.setattr(torch.cuda, 'is_bf16_supported', lambda *args, **kwargs: True)
        patch.setattr(torch.Tensor, 'pin_memory', pin_memory)
        patch.setattr(torch.Tensor, 'numpy', lambda tensor: np.ones(tuple(tensor.shape)))
        patch.setattr(torch.Tensor, 'backward', backward)
        patch.setattr(torch.autograd, 'grad', lambda loss, leaf: (walk(loss)[leaf],))
        yield


def to_gpu(module: nn.Module) -> nn.Module:
    """Parameters and buffers on the fake device; torch's own ``to`` swaps tensors, which fake ones do not allow."""
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                child._parameters[name] = nn.Parameter(parameter.detach().to(DEVICE), parameter.requires_grad)
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = buffer.to(DEVICE)
        if hasattr(child, '_device'):  # mmengine's data preprocessor
            child._device = DEVICE
    return module


def walk(loss: torch.Tensor) -> dict:
    """The gradients of a loss by its leaves, without torch's engine, which wants a CUDA context.

    The same walk over ``grad_fn`` nodes, latest first, in Python. Gradients must be on their tensor's device.
    """
    waiting, todo = {loss.grad_fn: 0}, [loss.grad_fn]
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None:
                if node not in waiting:
                    todo.append(node)
                waiting[node] = waiting.get(node, 0) + 1
    gradients, leaves = {loss.grad_fn: {0: torch.ones_like(loss)}}, {}
    ready = [(0, 0, loss.grad_fn)]
    while ready:
        node = heapq.heappop(ready)[-1]
        given = gradients.pop(node, {})
        if hasattr(node, 'variable'):
            leaves[node.variable] = given[0]
            continue
        found = [None] * len(node.next_functions)
        if given:
            found = node(*(given.get(place) for place in range(len(node._input_metadata))))
            found = found if isinstance(found, tuple) else (found,)
        for gradient, (target, place) in zip(found, node.next_functions):
            if target is None:
                continue
            if gradient is not None:
                wanted = target._input_metadata[place]
                assert gradient.device == wanted.device
                gradient = gradient.sum_to_size(wanted.shape).to(wanted.dtype)  # as the engine does
                slots = gradients.setdefault(target, {})
                slots[place] = slots[place] + gradient if place in slots else gradient
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, (-target._sequence_nr(), id(target), target))
    return leaves


class Watch(TorchDispatchMode):
    """Notes what the operations of a step do on the fake device.

    Attributes:
        waits: Names of the operations for which the host waits for the device.
        dtypes: Types of the floating-point tensors on the device.
        peak: The most bytes on the device at a time, of tensors that were made inside.
    """

    READS = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten._unique2)

    def __init__(self):
        super().__init__()
        self.waits, self.dtypes, self.peak, self._bytes = [], set(), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if func.overloadpacket in self.READS and any(each.device == DEVICE for each in given):
            self.waits.append(str(func.overloadpacket))  # a fake tensor has no number to read: it raises
        result = func(*args, **kwargs)
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        if self._copies(func.overloadpacket, given, made, args, kwargs):
            self.waits.append(str(func.overloadpacket))
        for tensor in made:
            if tensor.device == DEVICE:
                self._count(tensor)
        return result

    @staticmethod
    def _copies(packet, given, made, args, kwargs) -> bool:
        """Whether the host waits for a copy from one device to the other."""
        if packet in (aten._to_copy, aten.copy_):
            asynchronous = kwargs.get('non_blocking') or (packet is aten.copy_ and len(args) > 2 and args[2])
            pinned = getattr(given[-1], 'is_fake_pinned', False)
            return given[-1].device != made[0].device and not (asynchronous and pinned)
        if packet in (aten.index, aten.index_put, aten.index_put_):  # an index of the CPU is copied, a mask counted
            indices = [each for each in args[1] if each is not None]
            on_cuda = args[0].device.type == 'cuda'
            return on_cuda and any(i.device.type == 'cpu' or i.dtype in (torch.bool, torch.uint8) for i in indices)
        return False

    def _count(self, tensor) -> None:
        if tensor.is_floating_point():
            self.dtypes.add(tensor.dtype)
        storage = tensor.untyped_storage()
        if not hasattr(storage, '_counted'):
            storage._counted = True
            self._bytes += storage.nbytes()
            self.peak = max(self.peak, self._bytes)
            weakref.finalize(storage, self._release, storage.nbytes())

    def _release(self, size: int) -> None:
        self._bytes -= size


def overwriting_backend():
    """A backend of ``torch.compile`` that does what CUDA graphs do: a forward call overwrites all earlier outputs."""
    kept = []

    def forward(graph, example_inputs):
        def run(*args):
            with torch.no_grad():
                for output in kept:
                    output.fill_(float('nan') if output.is_floating_point() else 0)
            own = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
            outputs = graph(*args)
            kept[:] = [
                each.detach()
                for each in outputs
                if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in own
            ]
            return outputs

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=forward, bw_compiler=lambda graph, example_inputs: make_boxed_func(graph))
