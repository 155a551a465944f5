"""Trials of PyTorch for ``gradcomp doctor``; each imports what it tries."""

from __future__ import annotations

import importlib
from importlib.metadata import version

from gradcomp.errors import NotBuiltError, ProbeError

__all__ = ["cuda", "torch", "triton"]


def torch() -> str:
    """The sum of a tensor."""
    package = importlib.import_module("torch")
    importlib.import_module("gradcomp_torch.compat")
    importlib.import_module("gradcomp_torch.gpu.device_lookup")
    if float(package.ones(3).sum()) != 3:
        raise ProbeError("a sum is wrong")
    return f"torch {package.__version__}"


def cuda() -> str:
    """The sum of a tensor on a GPU."""
    package = importlib.import_module("torch")
    if package.version.cuda is None:
        raise NotBuiltError("torch is a build for CPUs alone")
    if not package.cuda.is_available():
        raise NotBuiltError(f"torch is a build for CUDA {package.version.cuda}, but sees no device")
    if float(package.ones(3, device="cuda").sum()) != 3:
        raise ProbeError("a sum is wrong")
    return f"CUDA {package.version.cuda}, {package.cuda.get_device_name()}"


def triton() -> str:
    """The import of Triton."""
    package = importlib.import_module("triton")
    refusal = importlib.import_module("gradcomp_torch.compat").kernels_refusal(package.__version__)
    if refusal:
        raise ProbeError(refusal)
    return f"triton {version('triton')}"
