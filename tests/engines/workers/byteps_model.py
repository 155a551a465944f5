"""A model of BytePS' workers and servers, in numpy and gradcomp's Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcomp import encode_batch, get_codec
from gradcomp.codec.frame import inspect
from gradcomp.codec.spec import Spec, parse
from gradcomp.exchange.make_memory import make_memory
from gradcomp.exchange.memory import Memory, MemoryState
from gradcomp.exchange.patterns.gather import rank_seed
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.rounds import TensorKey

PARTITION_BYTES = 65536
"""BYTEPS_PARTITION_BYTES of the jobs: tensors of some thousand elements have several partitions."""

SERVER = 0xFFFE
HEADER = 11
HEADER_WITH_UNIT = 27


@dataclass
class Partition:
    """A partition on all workers and on its server."""

    spec: Spec
    dtype: np.dtype[Any]
    numel: int
    tensor_id: int
    ranks: int
    seed: int
    feedback: bool
    states: list[MemoryState] = field(init=False)
    server_residual: Any = None
    server_rate: float = 0.0
    rates: Rates = field(default_factory=Rates)
    sent: int = 0

    def __post_init__(self) -> None:
        self.states = [{} for _ in range(self.ranks)]
        width = self.dtype.itemsize
        rounding = 8 * width * width
        registered = -(-self.numel * width // rounding) * rounding
        self.limit = registered - rounding

    @property
    def header(self) -> int:
        return HEADER if self.server_weight() is None else HEADER_WITH_UNIT

    def server_weight(self) -> float | None:
        """Factor of the server's residual; 0 at a rate of 0, None without lr=scale."""
        memory = self.spec.memory
        if memory is None or memory.params.get("lr") != "scale":
            return None
        rate = self.rates.of("partition")
        return 0.0 if rate == 0 else (self.server_rate or rate) / rate

    def step(self, grads: list[Any], step: int) -> Any:
        """The average that workers pull."""
        now = self.spec.at(step, 0)
        codec = get_codec(now.codec)
        common_seed = "summable" in codec.caps
        key = TensorKey("partition", (self.numel,), self.numel)
        total, any_coded = None, False
        for rank, grad in enumerate(grads):
            seed = self.seed if common_seed else rank_seed(self.seed, rank)
            memory = make_memory(now.memory, self.states[rank], self.ranks, self.rates)
            values = grad.astype(np.float32)
            decoded, size = self._decoded(codec, memory, key, values, seed, step)
            coded = self.header + size <= self.limit
            any_coded |= coded
            if not coded:
                decoded = self._raw(now, rank, grad, decoded)
            self.sent += self.header + size if coded else grad.nbytes
            decoded = decoded.astype(self.dtype)
            total = decoded if total is None else total + decoded
        if any_coded:
            seed = self.seed if common_seed else rank_seed(self.seed, SERVER)
            options = {"seed": seed, "step": step, "tensor_id": self.tensor_id}
            values = total.astype(np.float32)
            weight = self.server_weight()
            feedback = self.feedback and weight != 0
            if feedback:
                if self.server_residual is None:
                    self.server_residual = np.zeros(self.numel, np.float32)
                payload = codec.encode_payload_with_residual(
                    values, self.server_residual, beta=1.0 if weight is None else weight, **options
                )
                if weight is not None:
                    self.server_rate = self.rates.of("partition")
            else:
                payload = codec.encode_payload(values, **options)
            if HEADER + payload.nbytes <= self.limit:
                total = codec.decode_payload(payload, self.numel, **options).astype(self.dtype)
            elif feedback:
                decoded = codec.decode_payload(payload, self.numel, **options)
                total = (self.server_residual + decoded).astype(self.dtype)
                self.server_residual[:] = 0
        return total / self.dtype.type(self.ranks)

    def _decoded(
        self, codec: Any, memory: Memory, key: TensorKey, values: Any, seed: int, step: int
    ) -> tuple[Any, int]:
        """The server's decode of a worker's payload, and the payload's bytes."""
        source = memory.source(values, key)
        if codec.name == "identity" and source.correction is not None:
            correction = source.correction._replace(masking=False)
            source = source._replace(correction=correction)
        frame, _ = encode_batch([source.to_encode(codec, seed, step, self.tensor_id)])
        memory.sent(key)
        return codec.decode(frame), inspect(frame).payload_bytes

    def _raw(self, now: Spec, rank: int, grad: Any, decoded: Any) -> Any:
        if now.memory is None or self.server_weight() == 0:
            return grad
        if now.memory.name == "signum":
            return self.states[rank]["momentum"]["partition"].copy()
        residual = self.states[rank]["residual"]["partition"]
        corrected = residual + decoded
        sent = corrected.astype(self.dtype)
        residual[:] = corrected - sent.astype(np.float32)
        return sent


class Tensor:
    """A tensor with all of its partitions."""

    def __init__(
        self,
        spec: str,
        numel: int,
        tensor: int,
        *,
        dtype: Any = np.float32,
        ranks: int = 2,
        seed: int = 0,
        feedback: bool = False,
    ) -> None:
        self.dtype = np.dtype(dtype)
        length = PARTITION_BYTES // self.dtype.itemsize
        self._parts = [slice(at, min(at + length, numel)) for at in range(0, numel, length)]
        self.partitions = [
            Partition(
                parse(spec),
                self.dtype,
                part.stop - part.start,
                tensor << 16 | i,
                ranks,
                seed,
                feedback,
            )
            for i, part in enumerate(self._parts)
        ]

    def set_lr(self, rate: float) -> None:
        """The learning rate of the coming step."""
        for partition in self.partitions:
            partition.rates.set(rate)

    def step(self, grads: list[Any], step: int) -> Any:
        """The average that all workers get."""
        return np.concatenate(
            [
                partition.step([grad[part] for grad in grads], step)
                for partition, part in zip(self.partitions, self._parts, strict=True)
            ]
        )

    @property
    def sent(self) -> int:
        """Bytes that all workers together have pushed."""
        return sum(partition.sent for partition in self.partitions)
