"""The device of a tensor, if kernels can work there; imports Triton only then."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

from torch_compressors.devices import TensorDevice

__all__ = ["device_for"]


@cache
def device_for(device: torch.device) -> TensorDevice | None:
    """The device of tensors on a GPU; None for the host, and where kernels cannot be compiled.

    Triton comes with PyTorch's builds for GPUs on Linux, but not with all others.
    """
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    # Not at the top: Triton takes a second, and is not everywhere.
    from torch_compressors.gpu.device import TorchDevice

    return TorchDevice(device)
