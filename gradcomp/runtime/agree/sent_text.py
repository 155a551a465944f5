"""Compares a text of each rank: by the sum of digests, and as a whole only where they differ."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.exchange.engine import Driver
from gradcomp.exchange.rounds import AllReduce, Broadcast

__all__ = ["SentText"]

_DIGEST_BYTES = 4
"""Of a digest. Texts that differ by mistake do so in many steps, so a difference is not missed for long."""


class SentText:
    """A text that is being compared with those of all other ranks, which send theirs at the same time.

    The bits of its digest are averaged: the averages are all 0 or 1 exactly if no digest differs. So the cost
    for a rank hardly depends on their number.

    Args:
        driver: of this rank.
        ranks: their number.
        text: this rank's.
    """

    def __init__(self, driver: Driver, ranks: int, text: ByteArray) -> None:
        self._driver = driver
        self._ranks = ranks
        self._text = text
        request = AllReduce("step.check", _bits(text), overwrite=True, alone=True)
        self.nbytes = request.nbytes
        self._handle = driver.post(request)

    def differing(self) -> ByteArray | None:
        """Wait for the other ranks; returns all texts, in rank order, if they differ, and None otherwise."""
        means: FloatArray = self._driver.reply(self._handle)
        # A sum of ones over the ranks, times 1 / ranks, may be off by a rounding.
        margin = 0.5 / self._ranks
        if np.all((means < margin) | (means > 1 - margin)):
            return None
        texts: ByteArray = self._driver.reply(
            self._driver.post(Broadcast("step.texts", self._text))
        )
        return texts


def _bits(text: ByteArray) -> FloatArray:
    digest = blake2b(text.tobytes(), digest_size=_DIGEST_BYTES).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(np.float32)
