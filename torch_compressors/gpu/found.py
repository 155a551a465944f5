"""The device of a tensor, if kernels can work there; imports Triton only then."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

from gradcomp.errors import GradcompError
from torch_compressors.devices import TensorArray, TensorDevice

__all__ = ["device_array", "device_for", "direct_device"]


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


def direct_device(device: torch.device) -> TensorDevice:
    """A device for messages to those of other ranks, for one job; where `device_for` gives one."""
    from torch_compressors.gpu.direct import DirectDevice  # as in `device_for`

    return DirectDevice(device)


def device_array(tensor: torch.Tensor) -> TensorArray:
    """A tensor on a GPU as an array for ``gradcomp.get_codec(spec)``, without a copy.

    ``encode`` makes the bytes of the host. ``decode_add`` adds to the tensor itself, on the current stream.

    Raises:
        TypeError: the tensor is not contiguous float32.
        GradcompError: the tensor is on the host, which needs no such array, or there is no Triton.
    """
    device = device_for(tensor.device)
    if device is None:
        raise GradcompError(
            f"there are no kernels for tensors on '{tensor.device}': give codecs a tensor on a GPU of a "
            "PyTorch that has Triton, or one on the host without device_array, for example tensor.cpu()"
        )
    return TensorArray(device, tensor.detach())
