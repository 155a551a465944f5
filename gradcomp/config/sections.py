"""Top-level keys that configuration files reserve for programs other than gradcomp."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["RESERVED_SECTIONS"]

_HOROVODRUN = "horovodrun --config-file"  # as of Horovod 0.28
_TRAIN = "scripts/train.py"

RESERVED_SECTIONS = MappingProxyType(
    {
        "train": _TRAIN,
        "gossip": _TRAIN,
        "outer": _TRAIN,
        "autotune": _HOROVODRUN,
        "controller": _HOROVODRUN,
        "library_options": _HOROVODRUN,
        "logging": _HOROVODRUN,
        "params": _HOROVODRUN,
        "stall_check": _HOROVODRUN,
        "timeline": _HOROVODRUN,
    }
)
"""Key -> owner, which validates it.

All programs of a job can read one file: these keys compose like any other, and gradcomp does not
validate their values.
"""
