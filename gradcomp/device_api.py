"""The names that `gradcomp_torch` uses besides `gradcomp.adapter_api`, most of them for devices.

A `Device` keeps gradients and residuals in its memory. It chooses and rounds elements, and the core
makes frames of the parts. A `PeerDevice` sends what it has made to other ranks' devices, and a
`FactorDevice` multiplies the factors of low-rank algorithms. gradcomp_torch/gpu implements all three.
An import-linter contract refuses imports of the packages behind this module.
"""

from __future__ import annotations

from gradcomp import _core
from gradcomp.codec.batch_items import AdvanceItem, DifferItem, GiveItem, PeerItem
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.devices import Device, DeviceArray, Encoded, PeerDevice
from gradcomp.codec.frame_parts import (
    KeptParts,
    PayloadParts,
    clip_of_normal,
    frames_of_parts,
    kept_count,
    kept_of_frames,
    payloads_of_frames,
    rotation_of,
    sample_of,
)
from gradcomp.codec.shares import SHARE_BLOCK, Shares
from gradcomp.codec.spec import Stage, parse
from gradcomp.exchange.algorithms.factor_device import (
    ApplyItem,
    FactorDevice,
    MultiplyItem,
    ProductItem,
    SettleItem,
)
from gradcomp.exchange.state_kinds import STATE_KINDS

MAX_NUMEL = _core.MAX_NUMEL
"""Most elements of a tensor that a codec takes."""

__all__ = [
    "MAX_NUMEL",
    "SHARE_BLOCK",
    "STATE_KINDS",
    "AdvanceItem",
    "ApplyItem",
    "Device",
    "DeviceArray",
    "DifferItem",
    "Encoded",
    "FactorDevice",
    "GiveItem",
    "KeptParts",
    "MultiplyItem",
    "PayloadParts",
    "PeerDevice",
    "PeerItem",
    "ProductItem",
    "SettleItem",
    "Shares",
    "Stage",
    "clip_of_normal",
    "derive_stream",
    "frames_of_parts",
    "kept_count",
    "kept_of_frames",
    "parse",
    "payloads_of_frames",
    "rotation_of",
    "sample_of",
]
