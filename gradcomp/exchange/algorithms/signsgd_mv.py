"""signSGD with majority vote: one bit per element from and to each rank.

Bernstein, Wang, Azizzadenesheli, Anandkumar: "signSGD: Compressed Optimisation for Non-Convex
Problems" (ICML 2018), algorithm 3; with momentum: Bernstein, Zhao, Azizzadenesheli, Anandkumar:
"signSGD with Majority Vote is Communication Efficient and Fault Tolerant" (ICLR 2019), algorithm 1.
docs/algorithms/signsgd_mv.md has the formulas and the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.batch_items import EncodeItem
from gradcomp.codec.codec import derive_stream, get_codec
from gradcomp.codec.spec import Spec
from gradcomp.exchange.algorithms.base import Algorithm
from gradcomp.exchange.make_memory import make_memory
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.patterns.chunks import Chunk, cut, encode_pieces, scatter_reduce_allgather
from gradcomp.exchange.patterns.gather import rank_seed
from gradcomp.exchange.rounds import BucketRound
from gradcomp.stopwatch import timed

__all__ = ["MajorityVote"]


class MajorityVote(Algorithm):
    """Each rank counts the votes on its own chunk, and every rank gets the majority's signs.

    1. ``g`` = the gradient; after ``signum`` its moving average. On each rank.
    2. ``sign(g)``: +1 or -1. A zero has a random sign; ``ties=plus``: +1.
    3. Each rank gets all ranks' signs of its chunk of the elements (all-to-all).
    4. ``V = sign(sum over the ranks of sign(g))`` of its chunk, ties as in step 2.
    5. The ranks gather V of all chunks (all-gather). It is the result on every rank.

    Deviation from the papers: no server counts all votes. The result is the same.

    Signs travel as frames of the codec ``sign``; their scale is 1, as all elements are +1 or -1.
    """

    exchange: ClassVar[str] = (
        "each rank gets all ranks' signs of its own chunk; the majority's signs of all chunks are "
        "all-gathered"
    )

    def __init__(self, spec: Spec, context: Context) -> None:
        assert spec.algorithm is not None
        self._random_ties = spec.algorithm.params["ties"] == "random"
        self._codec = get_codec("sign")
        self._memory = make_memory(spec.memory, context.state, context.world_size, context.rates)
        self._context = context
        self.bucket = self

    def takes(self, shape: tuple[int, ...]) -> bool:
        """All but empty tensors."""
        return 0 not in shape

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        own_seed = rank_seed(self._context.seed, self._context.rank)
        signs = []
        for member in members:
            average = self._memory.compensate(member.grad, member.key)
            stream = derive_stream(own_seed, member.step, member.key.tensor_id)
            signs.append(self._signs(average, stream))
            self._memory.update(member.key, signs[-1])
        chunks = cut([member.key for member in members], self._context.world_size)
        data = encode_pieces(
            [
                EncodeItem(self._codec, signs[piece.member][piece.begin : piece.end])
                for chunk in chunks
                for piece in chunk
            ]
        )

        def settle(chunk: Chunk, sums: list[FloatArray]) -> ByteArray:
            winners = []
            for piece, votes in zip(chunk, sums, strict=True):
                step = members[piece.member].step
                stream = derive_stream(self._context.seed, step, piece.tensor_id(0))
                winners.append(EncodeItem(self._codec, self._signs(votes, stream)))
            frames, _ = encode_pieces(winners)
            return frames

        codecs = [self._codec] * len(members)
        outputs = [member.out for member in members]
        return (
            yield from scatter_reduce_allgather(
                name, chunks, codecs, self._context.rank, data, 1.0, settle, outputs
            )
        )

    @timed("encode")
    def _signs(self, values: FloatArray, stream: int) -> FloatArray:
        """The signs of gradients or of sums of votes, which are exact.

        +1 or -1; NaN for an element that is not finite, so that it does not count as a vote.
        """
        signs = np.copysign(np.float32(1), values)
        if not values.all():
            undecided = np.flatnonzero(values == 0)
            signs[undecided] = 1  # also for -0
            if self._random_ties:
                draws = _core.uniform_signed(stream, undecided.size)
                signs[undecided] = np.where(draws >= 0, np.float32(1), np.float32(-1))
        finite = np.isfinite(values)
        if not finite.all():
            signs[~finite] = np.nan
        return signs
