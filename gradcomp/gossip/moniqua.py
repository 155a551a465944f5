"""Moniqua: values modulo B in a few bits each; a receiver restores the rest from its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.codec import derive_stream
from gradcomp.gossip.base import CompressedGossip, Tensor
from gradcomp.gossip.topology import Topology

__all__ = ["Moniqua"]


class Moniqua(CompressedGossip):
    """Gossip of values modulo B, quantized; a receiver takes the nearest match to its own value.

    Lu, De Sa: "Moniqua: Modulo Quantized Communication in Decentralized SGD" (ICML 2020), algorithm
    1: ::

        send c_i = Q(x_i / B mod 1);  x'_j = x_i + ((B c_j - x_i) mod B);  x'_i = likewise of c_i
        x_i += gamma sum_j W_ij (x'_j - x'_i)

    with mod B into [-B/2, B/2). Q rounds to one of 2^bits points of the circle, with an error of at
    most d = 2^-bits (stochastic) or half of it (nearest), and B = 2 theta / (1 - 2 d). Where peers'
    values differ by less than theta, |x'_j - x_j| <= `error_bound` = d B. Where they differ by
    more, a receiver takes a wrong multiple: choose theta large enough.

    Args:
        topology: doubly stochastic; it may change with the step.
        rank: this rank.
        shapes: the tensors' shapes by name; see `Layout`.
        theta: above 0: a bound on the difference of peers' values.
        bits: bits of each value on the wire, 1 to 8, packed.
        rounding: "stochastic" or "nearest"; 1 bit needs "nearest".
        gamma: step size in (0, 2]; below 1 it is the paper's slack matrix.
        seed: seed of the stochastic rounding; the same on every rank.

    Deviations: points lie evenly on the circle of the modulo, not on an interval with both its ends
    (which are one point of the circle): with 2 bits d is 1/4, not 1/3. Every rank rounds with the
    same random numbers (the paper's shared randomness), drawn from seed, step and tensor. Tensors
    of fewer than two dimensions are averaged dense, with step size 1.
    """

    name = "Moniqua"

    def __init__(
        self,
        topology: Topology,
        rank: int,
        shapes: Mapping[str, Sequence[int]],
        *,
        theta: float = 0.25,
        bits: int = 2,
        rounding: str = "stochastic",
        gamma: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not theta > 0:
            raise ValueError(f"theta is {theta}; it must be above 0")
        if rounding not in ("stochastic", "nearest"):
            raise ValueError(f"rounding is {rounding!r}; it must be 'stochastic' or 'nearest'")
        least = 2 if rounding == "stochastic" else 1
        if not least <= bits <= 8:
            raise ValueError(f"bits is {bits}; with {rounding} rounding it must be {least} to 8")
        super().__init__(topology, rank, shapes, gamma)
        self._bits = bits
        self._stochastic = rounding == "stochastic"
        self._seed = seed
        error = 2.0**-bits if self._stochastic else 2.0 ** -(bits + 1)
        self.modulus = 2 * theta / (1 - 2 * error)
        """B."""
        self.error_bound = error * self.modulus
        """Largest error of a restored value, if peers differ by less than theta."""

    def _body_size(self) -> int:
        return sum(-(-tensor.key.numel * self._bits // 8) for tensor in self.layout.large)

    def _encode(self, x: FloatArray) -> ByteArray:
        packed = [self._pack(self._codes(tensor, x)) for tensor in self.layout.large]
        return np.concatenate(packed) if packed else np.empty(0, np.uint8)

    def _codes(self, tensor: Tensor, x: FloatArray) -> npt.NDArray[np.uint8]:
        points = 1 << self._bits
        at = tensor.of(x).astype(np.float64) / self.modulus * points
        if self._stochastic:
            stream = derive_stream(self._seed, self._step, tensor.key.tensor_id)
            at += (_core.uniform_signed(stream, tensor.key.numel).astype(np.float64) + 1) / 2
        else:
            at += 0.5
        with np.errstate(invalid="ignore"):  # NaN and Inf get any code
            codes: npt.NDArray[np.uint8] = np.mod(np.floor(at), points).astype(np.uint8)
        return codes

    def _pack(self, codes: npt.NDArray[np.uint8]) -> ByteArray:
        planes = np.unpackbits(codes[:, None], axis=1)[:, 8 - self._bits :]
        return np.packbits(planes)

    def _unpack(self, data: ByteArray, numel: int) -> npt.NDArray[np.uint8]:
        planes = np.unpackbits(data, count=numel * self._bits).reshape(numel, self._bits)
        padded = np.zeros((numel, 8), np.uint8)
        padded[:, 8 - self._bits :] = planes
        return np.packbits(padded, axis=1).reshape(-1)

    def _offsets(self, data: ByteArray, tensor: Tensor, x: FloatArray) -> npt.NDArray[np.float64]:
        """x'_j - x_i, in [-B/2, B/2)."""
        values = self._unpack(data, tensor.key.numel) * (self.modulus / (1 << self._bits))
        half = self.modulus / 2
        offsets: npt.NDArray[np.float64] = (
            np.mod(values - tensor.of(x).astype(np.float64) + half, self.modulus) - half
        )
        return offsets

    def _mix(
        self,
        x: FloatArray,
        row: np.ndarray[Any, np.dtype[np.float64]],
        own_body: ByteArray,
        bodies: Mapping[int, ByteArray],
    ) -> None:
        begin = 0
        for tensor in self.layout.large:
            end = begin - (-tensor.key.numel * self._bits // 8)
            mine = self._offsets(own_body[begin:end], tensor, x)
            change = np.zeros(tensor.key.numel)
            for source in sorted(bodies):
                theirs = self._offsets(bodies[source][begin:end], tensor, x)
                change += row[source] * (theirs - mine)
            tensor.of(x)[:] += (self._gamma * change).astype(np.float32)
            begin = end
