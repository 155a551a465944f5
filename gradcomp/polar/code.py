"""Polar codes as channel codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.polar.arguments import (
    BitArray,
    Construction,
    DoubleArray,
    bits_of,
    integer,
    number,
    rows_of,
    seed_of,
)

__all__ = ["PolarCode"]


class PolarCode:
    """A polar code of N code bits and K message bits.

    Other lengths than powers of two shorten the code of the next power of two by bit reversal
    (BRS): the positions decided last are frozen, so they are 0 in every codeword and left out.

    Args:
        N: length, from 1 to 1048576.
        K: message bits, from 0 to N. The rate is K/N.
        construction: rule that chooses the K positions:
            ``"bec"``: erasure probabilities z -> 2z - z^2, z^2 from 1 - K/N on, in 63-bit fixed
            point, so alike on every machine. Ties: the later decision is better.
            ``"bhattacharyya"``: the same recursion as a bound for the AWGN channel, on ln z from
            -Es/N0 on. Ties: the lower index is better.
            ``"ga"``: Gaussian approximation (Chung, Richardson, Urbanke 2001; Trifonov 2012).
            ``"mc"``: Monte Carlo, the mean error probability of each decision given the ones
            before it (Arikan 2009, section IX).
        design_snr_db: Eb/N0 in dB, from -50 to 50; Es/N0 is K/N of it. ``"bec"`` ignores it.
        seed: seed of ``"mc"``, from 0 to 2^64 - 1.
        trials: words transmitted by ``"mc"``, from 1 to 1000000. Time is proportional to it.

    Deviation: ``"bhattacharyya"`` treats shortened positions as transmitted, as in the public code:
    its sets are the same. The others treat them as known.

    Attributes:
        N, K, construction, design_snr_db, rate: as above.
        mother_N: length of the code before shortening, a power of two.
        information: K indices below mother_N, ascending: message bit i is input information[i].
        frozen: the other indices; the most reliable first, shortened ones last.
        kept: N indices below mother_N, ascending: code bit i is output kept[i].
        info_mask: [mother_N], 1 at information positions.
        reliability: [mother_N], for each input: the erasure probability, ln z, the mean LLR
            (certainty is 1e30) or the error probability.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: an argument has another type.
        MemoryError: memory runs out.
    """

    def __init__(
        self,
        N: int,
        K: int,
        construction: Construction = "bec",
        design_snr_db: float = 5.0,
        *,
        seed: int = 0,
        trials: int = 1000,
    ) -> None:
        self.N = integer("N", N)
        self.K = integer("K", K)
        self.construction = construction
        self.design_snr_db = number("design_snr_db", design_snr_db)
        if not isinstance(construction, str):
            raise TypeError(
                f"construction is {construction!r}; it must be 'bec', 'bhattacharyya', 'ga' or 'mc'"
            )
        self._core = _core.PolarCode(
            self.N,
            self.K,
            construction,
            self.design_snr_db,
            seed_of(seed),
            min(integer("trials", trials), 2**32 - 1),
        )
        self.mother_N = self._core.mother
        self.rate = self.K / self.N
        self.information = self._core.information.astype(np.int64)
        self.frozen = self._core.frozen.astype(np.int64)
        self.kept = self._core.kept.astype(np.int64)
        self.reliability = self._core.reliability
        self.info_mask = np.zeros(self.mother_N, np.uint8)
        self.info_mask[self.information] = 1

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.N}, {self.K}, {self.construction!r}, "
            f"{self.design_snr_db})"
        )

    def encode(self, message: npt.ArrayLike, *, systematic: bool = False) -> BitArray:
        """Codewords [..., N] of messages [..., K], both of 0 and 1.

        Args:
            message: uint8 or bool.
            systematic: the codeword holds the message itself, as the outputs at ``information``
                (Arikan, "Systematic Polar Coding", IEEE Commun. Lett. 15(8), 2011).
        """
        array = bits_of("message", message)
        rows, lead = rows_of("message", array, self.K, "K")
        return self._core.encode(rows, systematic).reshape(*lead, self.N)

    def decode(
        self,
        llr: npt.ArrayLike,
        *,
        list_size: int = 1,
        systematic: bool = False,
        min_sum: bool = False,
    ) -> BitArray:
        """Messages [..., K] for the log-likelihood ratios [..., N] of received code bits.

        Args:
            llr: ln P(0)/P(1) of each code bit, float32 or float64: positive for a probable 0, 0 for
                an unknown bit; not NaN. Values beyond +-1e30, infinity included, are clipped.
            list_size: 1: successive cancellation (SC); 2 to 64: the most probable path of a list
                decoder with as many paths (SCL).
            systematic: the encoder was systematic.
            min_sum: approximate the check-node rule by signs and the smaller magnitude; faster.
        """
        rows, lead = self._llr_rows(llr)
        if integer("list_size", list_size) == 1:
            messages, _ = self._core.decode(rows, systematic, min_sum)
        else:
            found, _ = self._core.list_decode(rows, list_size, systematic, min_sum)
            messages = found[:, 0]
        return messages.reshape(*lead, self.K)

    def decode_list(
        self,
        llr: npt.ArrayLike,
        list_size: int,
        *,
        systematic: bool = False,
        min_sum: bool = False,
    ) -> tuple[BitArray, DoubleArray]:
        """All messages of the list, best first, and their path metrics.

        Returns:
            Messages [..., L, K] and metrics [..., L], ascending, with L = min(list_size, 2^K). A
            metric is -ln of the probability of the decisions, given ``llr``.
        """
        rows, lead = self._llr_rows(llr)
        found, metrics = self._core.list_decode(
            rows, integer("list_size", list_size), systematic, min_sum
        )
        return found.reshape(*lead, *found.shape[1:]), metrics.reshape(*lead, metrics.shape[1])

    def _llr_rows(self, llr: npt.ArrayLike) -> tuple[DoubleArray, tuple[int, ...]]:
        array = np.asarray(llr)
        if array.dtype not in (np.float32, np.float64):
            raise TypeError(
                f"llr has dtype {array.dtype}; it must be float32 or float64: use astype"
            )
        rows, lead = rows_of("llr", array.astype(np.float64, copy=False), self.N, "N")
        return rows, lead
