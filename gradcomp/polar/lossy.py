"""Lossy compression of bits with polar codes."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gradcomp.polar.arguments import (
    BitArray,
    Construction,
    DoubleArray,
    bits_of,
    integer,
    rows_of,
    seed_of,
)
from gradcomp.polar.code import PolarCode
from gradcomp.polar.theory import distortion_rate

__all__ = ["PolarLossy"]


class PolarLossy:
    """Lossy compression of N bits to K: Korada and Urbanke (2010).

    ``compress`` decodes the source by successive cancellation, as a codeword received over a noisy
    channel, and keeps the K information bits; ``decompress`` encodes them. Frozen bits are 0
    instead of random bits known to both ends: equivalent for fair coin flips.

    Args:
        N: source bits in a block, from 1 to 1048576; longer blocks lose less.
        K: compressed bits, from 0 to N.
        construction, design_snr_db, seed, trials: as for PolarCode.
        channel: the channel that the decoder assumes.
            ``"bsc"``: the output of a binary symmetric channel that flips bits with probability D,
            where 1 - h(D) = K/N: the test channel of rate-distortion theory.
            ``"snr"``: LLRs of +-2 Es/N0 of the design SNR, for the known shortened positions, too;
            as Kamu1403/Polarcode-Gradient-Compression does.
        min_sum: approximate the check-node rule; faster, with slightly more distortion.

    Attributes:
        code: the PolarCode. N, K, rate and channel: as above.
        llr: magnitude of the LLR of a source bit.

    Raises: as PolarCode.
    """

    def __init__(
        self,
        N: int,
        K: int,
        construction: Construction = "bec",
        design_snr_db: float = 5.0,
        *,
        channel: Literal["bsc", "snr"] = "bsc",
        min_sum: bool = False,
        seed: int = 0,
        trials: int = 1000,
    ) -> None:
        self.code = PolarCode(N, K, construction, design_snr_db, seed=seed, trials=trials)
        self.N, self.K, self.rate = self.code.N, self.code.K, self.code.rate
        self.channel = channel
        self.min_sum = bool(min_sum)
        if channel == "bsc":
            flipped = distortion_rate(self.rate)
            self.llr = math.log1p(-flipped) - math.log(flipped) if flipped > 0 else math.inf
            shortened = math.inf
        elif channel == "snr":
            self.llr = 2 * 10 ** (self.code.design_snr_db / 10) * self.rate
            shortened = self.llr
        else:
            raise ValueError(f"channel is {channel!r}; it must be 'bsc' or 'snr'")
        self._llrs = min(self.llr, 1e30), min(shortened, 1e30)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.N}, {self.K}, {self.code.construction!r}, "
            f"{self.code.design_snr_db}, channel={self.channel!r}, min_sum={self.min_sum})"
        )

    def compress(
        self,
        bits: npt.ArrayLike,
        *,
        rounding: Literal["deterministic", "random"] = "deterministic",
        list_size: int = 1,
        seed: int = 0,
        uniforms: npt.ArrayLike | None = None,
    ) -> BitArray:
        """The compressed bits [..., K] of source bits [..., N], both of 0 and 1.

        Args:
            bits: uint8 or bool.
            rounding: ``"deterministic"``: a bit is 1 if its LLR L is negative. ``"random"``: with
                probability 1/(1 + e^L), as in the proof of Korada and Urbanke; at practical lengths
                its distortion is larger.
            list_size: number of paths, up to 64; the path with the fewest wrong bits is kept.
                More than 1 needs deterministic rounding and channel ``"bsc"``.
            seed: seed of random rounding, from 0 to 2^64 - 1; rows draw different numbers.
            uniforms: [..., K] numbers in [0, 1] in order of decision, instead of drawn ones, to
                replay an experiment.
        """
        rows, lead = rows_of("bits", bits_of("bits", bits), self.N, "N")
        if rounding not in ("deterministic", "random"):
            raise ValueError(f"rounding is {rounding!r}; it must be 'deterministic' or 'random'")
        if integer("list_size", list_size) != 1:
            return self._compress_with_list(rows, list_size, rounding).reshape(*lead, self.K)
        draws: DoubleArray | None = None
        if uniforms is not None:
            if rounding != "random":
                raise ValueError("uniforms are given; rounding must then be 'random'")
            draws = np.ascontiguousarray(uniforms, np.float64)
            if draws.shape != (*lead, self.K):
                raise ValueError(
                    f"uniforms have shape {draws.shape}; it must be {(*lead, self.K)}, one for "
                    "each compressed bit"
                )
            if not ((draws >= 0) & (draws <= 1)).all():
                raise ValueError("uniforms hold a number outside of [0, 1], or NaN")
        messages, _ = self.code._core.compress(
            rows,
            *self._llrs,
            self.min_sum,
            seed_of(seed) if rounding == "random" else None,
            draws,
        )
        return messages.reshape(*lead, self.K)

    def _compress_with_list(self, rows: BitArray, list_size: int, rounding: str) -> BitArray:
        if rounding != "deterministic" or self.channel != "bsc":
            raise ValueError(
                f"list_size is {list_size}; with rounding {rounding!r} and channel "
                f"{self.channel!r} it must be 1: use 'deterministic' and 'bsc' for lists"
            )
        if rows.size and rows.max() > 1:
            raise ValueError(f"bits holds {rows.max()}; bits must be 0 or 1, one to a byte")
        # A path's metric grows with the number of wrong bits, so the first path has the fewest.
        llr = np.where(rows == 0, self._llrs[0], -self._llrs[0])
        found, _ = self.code._core.list_decode(llr, list_size, False, self.min_sum)
        return found[:, 0]

    def decompress(self, message: npt.ArrayLike) -> BitArray:
        """The reconstruction [..., N] of compressed bits [..., K]: exact integer arithmetic."""
        return self.code.encode(message)

    def distortion(self, bits: npt.ArrayLike, **options: Any) -> float:
        """The fraction of bits that come back wrong; ``options`` go to compress."""
        source = bits_of("bits", bits)
        if source.size == 0:
            raise ValueError("bits is empty; give at least one block")
        return float(np.mean(self.decompress(self.compress(source, **options)) != source))
