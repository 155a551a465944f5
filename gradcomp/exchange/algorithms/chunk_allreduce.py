"""Coarse-grained sparsification: all ranks send the same chunks, so that they can be all-reduced.

Sun, Feng, Han, Yan, Wen: "Optimizing Network Performance for Distributed DNN Training on GPU
Clusters" (arXiv:1902.06855), section 3.2. docs/algorithms/chunk_allreduce.md has the details.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, split
from gradcomp.codec.spec import Spec
from gradcomp.exchange.algorithms.base import Algorithm
from gradcomp.exchange.algorithms.low_rank import values_codec
from gradcomp.exchange.algorithms.top_parts import largest
from gradcomp.exchange.make_memory import make_memory
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.rounds import AllReduce, BucketRound
from gradcomp.stopwatch import timed

__all__ = ["ChunkAllReduce"]


class ChunkAllReduce(Algorithm):
    """Two all-reduces for all tensors of a bucket: the chunks' norms, then the chosen chunks.

    1. ``v`` = the gradient, corrected by the memory if there is one; in chunks of ``chunk`` elements.
    2. ``norm[i]`` = the L1 norm of chunk i of v, all-reduced to the mean over the ranks.
    3. ``chosen`` = the ``ratio`` of the chunks with the largest norms, at least one; equal on all ranks.
    4. ``v[chosen]``, all-reduced to the mean over the ranks; it is the average, which is 0 elsewhere.
    5. The memory keeps v minus the chunks that this rank has sent.

    Deviation from the paper: chunks are chosen in each tensor, not in the whole model.
    """

    exchange: ClassVar[str] = (
        "norms of chunks are all-reduced, then the elements of the chunks with the largest norms; "
        "the volume does not grow with the number of ranks"
    )

    def __init__(self, spec: Spec, context: Context) -> None:
        assert spec.algorithm is not None
        params: dict[str, Any] = dict(spec.algorithm.params)
        self._ratio: float = params["ratio"]
        self._chunk: int = params["chunk"]
        self._codec = values_codec(params["values"])
        self._memory = make_memory(spec.memory, context.state, context.world_size, context.rates)
        # Tensors of one spec may be at different ratios of a schedule.
        self.bucket = (ChunkAllReduce, self._codec.name)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """All but empty tensors."""
        return 0 not in shape

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        chunked = [
            member.aggregator for member in members if isinstance(member.aggregator, ChunkAllReduce)
        ]
        assert len(chunked) == len(members)  # ensured by `bucket`
        corrected = [
            aggregator._memory.compensate(member.grad, member.key)
            for aggregator, member in zip(chunked, members, strict=True)
        ]
        counts = [
            -(-flat.size // aggregator._chunk)
            for aggregator, flat in zip(chunked, corrected, strict=True)
        ]
        norms = np.empty(sum(counts), np.float32)
        for aggregator, flat, part in zip(chunked, corrected, split(norms, counts), strict=True):
            _core.chunk_norms(flat, aggregator._chunk, part)
        norms = yield AllReduce(f"{name}.norms", norms)
        chosen = [
            aggregator._elements(part, flat.size)
            for aggregator, part, flat in zip(chunked, split(norms, counts), corrected, strict=True)
        ]
        values = [flat[elements] for flat, elements in zip(corrected, chosen, strict=True)]
        sizes = [value.size for value in values]
        payload = self._codec.encode_payload(np.concatenate(values))
        own_values = split(self._codec.decode_payload(payload, sum(sizes)), sizes)
        for aggregator, member, elements, sent in zip(
            chunked, members, chosen, own_values, strict=True
        ):
            whole = np.zeros(member.key.numel, np.float32)
            aggregator._memory.update(member.key, _scattered(elements, sent, whole))
        mean = yield AllReduce(name, payload)
        averages = split(self._codec.decode_payload(mean, sum(sizes)), sizes)
        return [
            _scattered(elements, average, member.zeros())
            for member, elements, average in zip(members, chosen, averages, strict=True)
        ]

    @timed("encode")
    def _elements(self, norms: FloatArray, numel: int) -> npt.NDArray[np.intp]:
        """Indices of the elements of the chunks with the largest norms; the same on all ranks."""
        count = max(1, round(self._ratio * norms.size))
        starts = largest(norms, count) * self._chunk
        elements = (starts[:, np.newaxis] + np.arange(self._chunk)).reshape(-1)
        return elements[elements < numel]


def _scattered(elements: npt.NDArray[np.intp], values: FloatArray, whole: FloatArray) -> FloatArray:
    """Write values to these elements of ``whole``; returns ``whole``."""
    whole[elements] = values
    return whole
