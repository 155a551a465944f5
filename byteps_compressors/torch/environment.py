"""BytePS' environment in this process: it is set at import, and checked before the first gradient."""

from __future__ import annotations

import ctypes
import os

import byteps.torch.ops as ops

from byteps_compressors import process
from gradcomp.errors import ConfigError, GradcompError

__all__ = ["check_environment", "check_initialized"]

# BytePS reads these in bps.init(). It aborts without the first. The second turns off BytePS' own
# limit of 64 KiB: the rules of a Config decide which tensors are compressed.
_DEFAULTS = {"BYTEPS_THREADPOOL_SIZE": "4", "BYTEPS_MIN_COMPRESS_BYTES": "0"}

# BytePS' own flag; its rank and size do not tell, as they have values before bps.init(), too.
_FLAG = "_ZN6byteps6common12BytePSGlobal12_initializedE"


def _initialized() -> bool:
    return ctypes.c_bool.in_dll(ops._basics.C_LIB_CTYPES, _FLAG).value


_late = sorted(set(_DEFAULTS) - set(os.environ)) if _initialized() else []
for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)

process.end_at_once()
process.resolve_scheduler()


def check_initialized() -> None:
    """Raise GradcompError before ``bps.init()``."""
    if not _initialized():
        raise GradcompError("BytePS is not initialized: call bps.init() first")


def check_environment() -> None:
    """Raise if BytePS is not initialized, or if its servers would not decompress.

    Raises:
        GradcompError: BytePS is not initialized, or was before this package was imported.
        ConfigError: an environment variable makes servers add messages as they are.
    """
    check_initialized()
    if _late:
        raise GradcompError(
            f"BytePS was initialized without {', '.join(_late)}, which it reads in bps.init(): "
            "import byteps_compressors.torch before bps.init()"
        )
    for name, reason in (
        ("BYTEPS_ENABLE_ASYNC", "asynchronous servers add"),
        ("BYTEPS_SERVER_ENGINE_BLOCKING", "the blocking engine of servers adds"),
    ):
        if os.environ.get(name, "0") != "0":
            raise ConfigError(
                f"{name}={os.environ[name]}: {reason} up messages without decompressing them; unset "
                "it, or use the stock bps.DistributedOptimizer"
            )
