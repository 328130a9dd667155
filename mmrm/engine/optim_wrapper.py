"""Mixed precision in bfloat16, which mmengine has for GPUs only."""

from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import autocast


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """``OptimWrapper`` whose forward passes run in bfloat16, on the CPU as on a GPU.

    The weights, their gradients and the optimizer stay in float32. bfloat16 has float32's range, so no loss is scaled.
    Validation runs in float32 unless ``val_cfg.fp16`` is set. Arguments are those of ``OptimWrapper``.
    """

    @contextmanager
    def optim_context(self, model: torch.nn.Module):
        """Cast what runs inside, and synchronise gradients as ``OptimWrapper`` does."""
        device = next(model.parameters()).device.type
        with super().optim_context(model), autocast(device_type=device, dtype=torch.bfloat16):
            yield


def bfloat16_is_fast(device: str = 'cpu') -> bool:
    """Whether a device computes in bfloat16: a CPU with AVX-512 or ARM's kernels, NVIDIA's GPUs from Ampere on, AMD's.

    Others emulate it, far slower than float32.
    """
    if device != 'cpu':
        return device == 'cuda' and (torch.version.hip is not None or torch.cuda.get_device_capability()[0] >= 8)
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
