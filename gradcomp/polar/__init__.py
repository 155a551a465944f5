"""Polar codes for study: channel codes, and the lossy compression of bits by Korada and Urbanke.

With lossy compression the roles are swapped: the channel decoder compresses, and the channel
encoder decompresses. docs/polar.md explains how, and why it works.

Indices are natural: of the transform's input and output. Decisions are made in bit-reversed order.
Arrays may have any leading dimensions; each row of the last dimension is a block, and blocks are
shared among the threads of the core. The same arguments give the same results at any number of
threads; a machine with an ``exp`` that rounds differently may decide a tie differently.
"""

from __future__ import annotations

from gradcomp.polar.array import PolarLossyArray
from gradcomp.polar.code import PolarCode
from gradcomp.polar.lossy import PolarLossy
from gradcomp.polar.theory import distortion_rate, rate_distortion
from gradcomp.polar.transform import bit_reversal, polar_transform

__all__ = [
    "PolarCode",
    "PolarLossy",
    "PolarLossyArray",
    "bit_reversal",
    "distortion_rate",
    "polar_transform",
    "rate_distortion",
]
