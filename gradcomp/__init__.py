"""Gradient compression for distributed training.

``get_codec(spec)`` turns gradients into bytes and back; ``Loopback`` averages gradients of several
ranks in one process; the adapters (``horovod_compressors``, ``torch_compressors``,
``byteps_compressors``) do the same inside real engines.

A name's module is imported at its first use: codecs need neither configurations nor rounds, and the
help of the ``gradcomp`` command needs no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradcomp.errors import (
    CORE_REMEDY,
    CapacityError,
    ConfigError,
    CoreError,
    GradcompError,
    ProtocolError,
    SpecError,
    StateError,
    WireError,
)
from gradcomp.version import installed_version

if TYPE_CHECKING:
    from gradcomp.codec.batch import decode_batch_add, encode_batch
    from gradcomp.codec.batch_items import DecodeItem, EncodeItem
    from gradcomp.codec.codec import Codec, get_codec, list_algorithms, list_codecs
    from gradcomp.codec.plugins import CodecPlugin, PluginParam, load_plugin, register_codec
    from gradcomp.config.schema import Config, load_config
    from gradcomp.exchange.explain import explain
    from gradcomp.runtime.loopback import Loopback
    from gradcomp.runtime.measure.stats import Stats
    from gradcomp.runtime.outer.loopback import OuterLoopback
    from gradcomp.runtime.pipeline import Pipeline
    from gradcomp.tools.metrics import Metrics

    __version__: str

__all__ = [
    "CapacityError",
    "Codec",
    "CodecPlugin",
    "Config",
    "ConfigError",
    "DecodeItem",
    "EncodeItem",
    "GradcompError",
    "Loopback",
    "Metrics",
    "OuterLoopback",
    "Pipeline",
    "PluginParam",
    "ProtocolError",
    "SpecError",
    "StateError",
    "Stats",
    "WireError",
    "decode_batch_add",
    "encode_batch",
    "explain",
    "get_codec",
    "list_algorithms",
    "list_codecs",
    "load_config",
    "load_plugin",
    "register_codec",
]

_MODULES = {
    "Codec": "codec.codec",
    "CodecPlugin": "codec.plugins",
    "Config": "config.schema",
    "Loopback": "runtime.loopback",
    "Metrics": "tools.metrics",
    "OuterLoopback": "runtime.outer.loopback",
    "Pipeline": "runtime.pipeline",
    "PluginParam": "codec.plugins",
    "Stats": "runtime.measure.stats",
    "DecodeItem": "codec.batch_items",
    "EncodeItem": "codec.batch_items",
    "decode_batch_add": "codec.batch",
    "encode_batch": "codec.batch",
    "explain": "exchange.explain",
    "get_codec": "codec.codec",
    "list_algorithms": "codec.codec",
    "list_codecs": "codec.codec",
    "load_config": "config.schema",
    "load_plugin": "codec.plugins",
    "register_codec": "codec.plugins",
}

try:
    from gradcomp.codec.environment import warn_of_ignored_variables
except ImportError:
    pass  # The core does not load: whatever uses it says so, and `gradcomp doctor` works.
else:
    warn_of_ignored_variables()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    if name == "_core":
        return _import_core()
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def _import_core() -> Any:
    """The extension; ``from gradcomp import _core`` comes here if it is not loaded yet."""
    try:
        return importlib.import_module("gradcomp._core")
    except ImportError as error:
        raise CoreError(
            f"the compiled core of gradcomp does not load ({error}): run {CORE_REMEDY}; "
            "gradcomp doctor shows what else is missing"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
