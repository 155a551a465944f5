"""Gradient compression for distributed training.

``get_codec(spec)`` turns gradients into bytes and back; ``Loopback`` averages gradients of several
ranks in one process; the adapters (``horovod_compressors``) do the same inside real engines.
"""

from __future__ import annotations

from importlib.metadata import version

from gradcomp.codec.batch import ToDecode, ToEncode, decode_batch_add, encode_batch
from gradcomp.codec.codec import Codec, get_codec, list_algorithms, list_codecs
from gradcomp.codec.plugins import CodecPlugin, PluginParam, load_plugin, register_codec
from gradcomp.config.schema import Config, load_config
from gradcomp.errors import (
    CapacityError,
    ConfigError,
    GradcompError,
    ProtocolError,
    SpecError,
    StateError,
    WireError,
)
from gradcomp.exchange.explain import explain
from gradcomp.runtime.loopback import Loopback
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.runtime.stats import Stats

__version__ = version("gradcomp")

__all__ = [
    "CapacityError",
    "Codec",
    "CodecPlugin",
    "Config",
    "ConfigError",
    "GradcompError",
    "Loopback",
    "Pipeline",
    "PluginParam",
    "ProtocolError",
    "SpecError",
    "StateError",
    "Stats",
    "ToDecode",
    "ToEncode",
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
