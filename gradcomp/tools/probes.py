"""Trials of the parts of an installation: ``python -m gradcomp.tools.probes NAME FILE`` runs one.

Each runs in a process of its own, as a broken library may end it or hang. It writes one JSON object
to FILE: ``detail``, or ``problem`` and perhaps ``built``, which is false if a package lacks the part.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["FRAME_CRC", "PROBES", "FaultError", "NotBuiltError", "one_frame"]


class FaultError(Exception):
    """A part does not work."""


class NotBuiltError(FaultError):
    """An installed package was built without this part."""


FRAME_CRC = 0x31674589
"""CRC-32 of the bytes of `one_frame`."""


def one_frame() -> bytes:
    """A frame of 4096 elements, which has the same bytes on every machine."""
    numpy = importlib.import_module("numpy")
    codecs = importlib.import_module("gradcomp.codec.codec")
    codec = codecs.get_codec("int8")
    grad = ((numpy.arange(4096) * 7919 % 1009 - 504) / 256).astype(numpy.float32)
    frame: bytes = codec.encode(grad).tobytes()
    error = float(abs(codec.decode(frame) - grad).max())
    if not error < 0.01:
        raise FaultError(f"a decoded frame is off by {error}")
    return frame


def _core() -> str:
    core = importlib.import_module("gradcomp._core")
    own = core.simd_level()
    for level in core.simd_levels():
        core.set_simd_level(level)
        if zlib.crc32(one_frame()) != FRAME_CRC:
            raise FaultError(f"a frame has the wrong bytes with SIMD level {level}")
    levels = ", ".join(core.simd_levels())
    return f"gradcomp {version('gradcomp')}, SIMD level {own} of {levels}: same bytes"


def _torch() -> str:
    torch = importlib.import_module("torch")
    importlib.import_module("torch_compressors.ddp")
    if float(torch.ones(3).sum()) != 3:
        raise FaultError("a sum is wrong")
    return f"torch {torch.__version__}"


def _cuda() -> str:
    torch = importlib.import_module("torch")
    if torch.version.cuda is None:
        raise NotBuiltError("torch is a build for CPUs alone")
    if not torch.cuda.is_available():
        raise NotBuiltError(f"torch is a build for CUDA {torch.version.cuda}, but sees no device")
    if float(torch.ones(3, device="cuda").sum()) != 3:
        raise FaultError("a sum is wrong")
    return f"CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}"


def _distributed() -> str:
    """Averages on a process group of one rank; other back ends are only listed."""
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    if not dist.is_available():
        raise NotBuiltError("torch was built without torch.distributed")
    if not dist.is_gloo_available():
        raise NotBuiltError("torch was built without Gloo")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        dist.destroy_process_group()
    if float(tensor.sum()) != 3:
        raise FaultError("an average is wrong")
    others = ("nccl", "mpi", "ucc", "xccl")
    there = [name for name in others if getattr(dist, f"is_{name}_available", bool)()]
    return f"gloo averages; also built: {', '.join(there) or 'none'}"


def _tensorflow() -> str:
    tensorflow = importlib.import_module("tensorflow")
    if float(tensorflow.reduce_sum(tensorflow.ones(3))) != 3:
        raise FaultError("a sum is wrong")
    gpus = len(tensorflow.config.list_physical_devices("GPU"))
    return f"tensorflow {tensorflow.__version__}, Keras {version('keras')}, {gpus} GPUs"


_ALONE = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    **{f"HOROVOD_{kind}RANK": "0" for kind in ("", "LOCAL_", "CROSS_")},
    **{f"HOROVOD_{kind}SIZE": "1" for kind in ("", "LOCAL_", "CROSS_")},
}
"""Settings under which one process is a whole job, without horovodrun."""


def _horovod(framework: str) -> str:
    os.environ.update(_ALONE)
    try:
        hvd = importlib.import_module(f"horovod.{framework}")
    except ImportError as error:
        if "has not been built" in str(error):
            raise NotBuiltError(f"Horovod was built without {framework}") from error
        raise
    built = [name for name in ("gloo", "mpi", "nccl") if getattr(hvd, f"{name}_built")()]
    if not {"gloo", "mpi"} & {*built}:
        raise FaultError("Horovod was built without Gloo and without MPI")
    importlib.import_module(f"horovod_compressors.{framework}")
    if "gloo" in built:
        hvd.init()
        ones = importlib.import_module(framework).ones(3)
        if float(hvd.allreduce(ones).numpy().sum()) != 3:
            raise FaultError("an average is wrong")
        hvd.shutdown()
    return f"horovod {version('horovod')}, built for {', '.join(built)}"


def _byteps() -> str:
    importlib.import_module("byteps.torch")
    importlib.import_module("byteps_compressors.torch")
    return f"byteps {version('byteps')}, which runs on this CPU"


def _byteps_plugin() -> str:
    build = importlib.import_module("byteps_compressors.build")
    return f"compiled: {build.plugin()}"


def _package(package: str, *modules: str) -> Callable[[], str]:
    def probe() -> str:
        for module in (package, *modules):
            importlib.import_module(module)
        return f"{package} {version(package)}"

    return probe


PROBES: dict[str, Callable[[], str]] = {
    "core": _core,
    "torch": _torch,
    "distributed": _distributed,
    "cuda": _cuda,
    "triton": _package("triton"),
    "tensorflow": _tensorflow,
    "horovod.torch": lambda: _horovod("torch"),
    "horovod.tensorflow": lambda: _horovod("tensorflow"),
    "byteps": _byteps,
    "byteps plug-in": _byteps_plugin,
    "accelerate": _package("accelerate", "torch_compressors.trainers.accelerate"),
    "lightning": _package("lightning", "torch_compressors.trainers.lightning"),
    "transformers": _package("transformers", "torch_compressors.trainers.transformers"),
    "torchft": _package("torchft", "torch_compressors.torchft"),
}


def _answer(name: str) -> dict[str, Any]:
    try:
        return {"detail": PROBES[name]()}
    except FaultError as error:
        return {"problem": str(error), "built": not isinstance(error, NotBuiltError)}
    except PackageNotFoundError as error:
        return {"problem": f"{error.name} has no metadata: it was not installed by pip"}
    except Exception as error:  # whatever a broken package raises
        return {"problem": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    # Libraries write to standard output, too.
    Path(sys.argv[2]).write_text(json.dumps(_answer(sys.argv[1])))
