"""Errors of gradcomp. Every message names the value, the allowed range and the remedy."""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "ConfigError",
    "GradcompError",
    "PeerError",
    "ProtocolError",
    "SpecError",
    "StateError",
    "TopologyError",
    "WireError",
]


class GradcompError(Exception):
    """Base class of all errors of gradcomp."""


class SpecError(GradcompError, ValueError):
    """A spec string is wrong; the message points at the character."""


class WireError(GradcompError, ValueError):
    """Received bytes are not a valid frame or payload of the codec that reads them."""


class CapacityError(GradcompError, ValueError):
    """A buffer is too small, a tensor is too large, or memory ran out."""


class ConfigError(GradcompError, ValueError):
    """A configuration file or override is wrong."""


class StateError(GradcompError, ValueError):
    """A checkpointed state does not fit the model or the configuration that loads it."""


class ProtocolError(GradcompError, RuntimeError):
    """Ranks do not agree on what to communicate."""


class TopologyError(GradcompError, ValueError):
    """A graph of peers cannot be built as asked, or an algorithm does not accept it."""


class PeerError(GradcompError, RuntimeError):
    """A peer has died or does not answer; the message names it."""
