"""Trials of TensorFlow and of Horovod for ``gradcomp doctor``; each imports what it tries."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version

from gradcomp.errors import NotBuiltError, ProbeError

__all__ = ["horovod_tensorflow", "horovod_torch", "tensorflow"]

_ONE_RANK = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    **{f"HOROVOD_{kind}RANK": "0" for kind in ("", "LOCAL_", "CROSS_")},
    **{f"HOROVOD_{kind}SIZE": "1" for kind in ("", "LOCAL_", "CROSS_")},
}
"""Settings under which one process is a whole job, without horovodrun."""


def tensorflow() -> str:
    """The sum of a tensor."""
    package = importlib.import_module("tensorflow")
    if float(package.reduce_sum(package.ones(3))) != 3:
        raise ProbeError("a sum is wrong")
    gpus = len(package.config.list_physical_devices("GPU"))
    return f"tensorflow {package.__version__}, Keras {version('keras')}, {gpus} GPUs"


def horovod_torch() -> str:
    """An average of one rank with PyTorch."""
    return _horovod("torch")


def horovod_tensorflow() -> str:
    """An average of one rank with TensorFlow."""
    return _horovod("tensorflow")


def _horovod(framework: str) -> str:
    os.environ.update(_ONE_RANK)
    try:
        hvd = importlib.import_module(f"horovod.{framework}")
    except ImportError as error:
        if "has not been built" in str(error):
            raise NotBuiltError(f"Horovod was built without {framework}") from error
        raise
    built = [name for name in ("gloo", "mpi", "nccl") if getattr(hvd, f"{name}_built")()]
    if not {"gloo", "mpi"} & {*built}:
        raise ProbeError("Horovod was built without Gloo and without MPI")
    importlib.import_module(f"horovod_compressors.{framework}")
    if "gloo" in built:
        hvd.init()
        ones = importlib.import_module(framework).ones(3)
        if float(hvd.allreduce(ones).numpy().sum()) != 3:
            raise ProbeError("an average is wrong")
        hvd.shutdown()
    return f"horovod {version('horovod')}, built for {', '.join(built)}"
