"""Gossip through any codec: of differences (ChocoSGD, push-sum), or with error feedback (DeepSqueeze)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.codec import Codec, get_codec
from gradcomp.codec.frame import split_frames
from gradcomp.errors import ProtocolError, SpecError, StateError, TopologyError
from gradcomp.exchange.arrays_of_state import arrays_like, check_mapping
from gradcomp.exchange.patterns.gather import rank_seed
from gradcomp.gossip.base import CompressedGossip, Tensor
from gradcomp.gossip.dense import WeightedGossip
from gradcomp.gossip.topology import Topology

__all__ = ["Choco", "DeepSqueeze", "QuantizedPushSum"]

Row = np.ndarray[Any, np.dtype[np.float64]]

_WEIGHT_BYTES = 8


class _Coded(CompressedGossip):
    """Base class of algorithms that send each large tensor as one frame."""

    kinds: tuple[str, ...]
    """Kinds of state of each large tensor, initially zero."""

    usual_gamma: float
    """Default step size."""

    sizes_vary = True

    def __init__(
        self,
        topology: Topology,
        rank: int,
        shapes: Mapping[str, Sequence[int]],
        *,
        codec: str | Mapping[str, str] = "topk(ratio=0.01)",
        gamma: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(topology, rank, shapes, self.usual_gamma if gamma is None else gamma)
        self._codecs = {tensor.key.name: _codec_of(codec, tensor) for tensor in self.layout.large}
        self._seed = seed
        self._kept = {
            kind: {
                tensor.key.name: np.zeros(tensor.key.numel, np.float32)
                for tensor in self.layout.large
            }
            for kind in self.kinds
        }

    def _body_size(self) -> int:
        return sum(
            self._codecs[tensor.key.name].max_encoded_size(tensor.key.numel)
            for tensor in self.layout.large
        )

    def _frame(self, tensor: Tensor, values: FloatArray) -> ByteArray:
        codec = self._codecs[tensor.key.name]
        seed = self._seed
        if "private_noise" in codec.caps:
            # Rounding noise must be independent between ranks.
            seed = rank_seed(seed, self.rank)
        return codec.encode(values, seed=seed, step=self._step, tensor_id=tensor.key.tensor_id)

    def _frames(self, body: ByteArray) -> list[ByteArray]:
        return split_frames(body, len(self.layout.large))

    def _decode(self, tensor: Tensor, frame: ByteArray) -> FloatArray:
        return self._codecs[tensor.key.name].decode(frame, numel=tensor.key.numel)

    def _sums(
        self, row: Row, own_body: ByteArray, bodies: Mapping[int, ByteArray]
    ) -> list[FloatArray]:
        """For each large tensor, the weighted sum of decoded values over peers and this rank."""
        sums = [np.zeros(tensor.key.numel, np.float32) for tensor in self.layout.large]
        for source, body in sorted([*bodies.items(), (self.rank, own_body)]):
            for tensor, frame, total in zip(
                self.layout.large, self._frames(body), sums, strict=True
            ):
                codec = self._codecs[tensor.key.name]
                codec.decode_add(frame, total, float(row[source]))
        return sums

    def state_dict(self) -> dict[str, Any]:
        """See `Gossip.state_dict`."""
        kept = {
            kind: {name: array.copy() for name, array in arrays.items()}
            for kind, arrays in self._kept.items()
        }
        return super().state_dict() | kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Gossip.load_state_dict`."""
        sizes = {tensor.key.name: tensor.key.numel for tensor in self.layout.large}
        kept = {kind: arrays_like(state, kind, sizes) for kind in self.kinds}
        super().load_state_dict(state)
        self._kept = kept


class Choco(_Coded):
    """Gossip of compressed differences to the peers' estimate x_hat: ::

        q = C(x - x_hat);  x_hat += q;  s += sum_j W_ij q_j;  x += gamma (s - x_hat)

    Koloskova, Stich, Jaggi: "Decentralized Stochastic Optimization and Gossip Algorithms with
    Compressed Communication" (ICML 2019), algorithm 1 (Choco-Gossip) in its memory-efficient form:
    one sum for all peers; with an optimizer's step before each round, ChocoSGD. It converges
    linearly where the matrix is symmetric and gamma small enough for it and the codec (theorem 2).

    Args:
        topology: doubly stochastic and static, as ``s`` belongs to one graph.
        rank: this rank.
        shapes: the tensors' shapes by name; see `Layout`.
        codec: the spec of a codec for all large tensors, or for each by name.
        gamma: step size in (0, 2], by default 0.1.
        seed: seed for codecs that draw random numbers; the same on every rank.

    State, by tensor name: ``x_hat``, the peers' estimate of this rank's values; ``s``, the weighted
    sum of the estimates of all ranks, including this one. ``topology``: a digest of the graph.

    Deviation: tensors of fewer than two dimensions are averaged dense, with step size 1.
    """

    name = "Choco"
    kinds = ("x_hat", "s")
    usual_gamma = 0.1

    def _check_topology(self, topology: Topology) -> None:
        super()._check_topology(topology)
        _check_static(topology, self.name)

    def change_topology(self, topology: Topology) -> None:
        """Refused: ``s`` is a sum with the weights of one graph."""
        raise TopologyError(
            f"{self.name} cannot change its topology: its state belongs to one graph"
        )

    def state_dict(self) -> dict[str, Any]:
        """See `Gossip.state_dict`."""
        return super().state_dict() | {"topology": self.topology.digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Gossip.load_state_dict`."""
        check_mapping(state)
        found = state.get("topology", self.topology.digest)
        if not isinstance(found, str) or found != self.topology.digest:
            raise StateError(
                f"the state's 'topology' has the digest {found!r:.80}, and "
                f"'{self.topology.name}' has {self.topology.digest}: s is a sum with the weights of "
                "one graph; take the topology of the job that has saved"
            )
        super().load_state_dict(state)

    def _encode(self, x: FloatArray) -> ByteArray:
        kept = self._kept["x_hat"]
        frames = [
            self._frame(tensor, tensor.of(x) - kept[tensor.key.name])
            for tensor in self.layout.large
        ]
        return np.concatenate(frames) if frames else np.empty(0, np.uint8)

    def _mix(
        self, x: FloatArray, row: Row, own_body: ByteArray, bodies: Mapping[int, ByteArray]
    ) -> None:
        sums = self._sums(row, own_body, bodies)
        for tensor, frame, total in zip(
            self.layout.large, self._frames(own_body), sums, strict=True
        ):
            x_hat, s = self._kept["x_hat"][tensor.key.name], self._kept["s"][tensor.key.name]
            x_hat += self._decode(tensor, frame)
            s += total
            tensor.of(x)[:] += np.float32(self._gamma) * (s - x_hat)


class QuantizedPushSum(WeightedGossip, Choco):
    """Push-sum of compressed differences, on directed graphs: ::

        q = C(x - x_hat);  x_hat += q;  s += sum_j P_ij q_j;  x += gamma (s - x_hat)
        w += gamma (sum_j P_ij w_j - w)

    x / w estimates the average. Taheri, Mokhtari, Hassani, Pedarsani: "Quantized Decentralized
    Stochastic Learning over Directed Graphs" (ICML 2020), algorithm 1, in the memory-efficient form
    of `Choco`. With gradients taken at x / w, and an optimizer's step on x before each round, it
    trains.

    Args:
        topology: column-stochastic and static; edges may be directed.
        rank, shapes, codec, gamma, seed: as in `Choco`.

    State, by tensor name: ``x_hat`` and ``s`` as in `Choco`; ``weight``. ``topology``: a digest of
    the graph.

    Deviations: the paper has gamma = 1, for a quantizer of small error; a smaller one also allows
    top-k, as in Choco. It is applied to w and to tensors of fewer than two dimensions, too, which
    travel dense. Optimizers step before a round instead of after it.
    """

    name = "QuantizedPushSum"

    def __init__(
        self, topology: Topology, rank: int, shapes: Mapping[str, Sequence[int]], **options: Any
    ) -> None:
        super().__init__(topology, rank, shapes, **options)
        if self._gamma > 1:
            raise ValueError(f"gamma is {self._gamma}; it must be in (0, 1]: weights stay above 0")

    def _check_topology(self, topology: Topology) -> None:
        super()._check_topology(topology)
        _check_static(topology, self.name)

    def _body_size(self) -> int:
        return _WEIGHT_BYTES + super()._body_size()

    def _encode(self, x: FloatArray) -> ByteArray:
        return np.concatenate([np.array([self.weight]).view(np.uint8), super()._encode(x)])

    def _frames(self, body: ByteArray) -> list[ByteArray]:
        return super()._frames(body[_WEIGHT_BYTES:])

    def _mixed_small(self, small: FloatArray, total: FloatArray) -> FloatArray:
        return small + np.float32(self._gamma) * (total - small)

    def _mix(
        self, x: FloatArray, row: Row, own_body: ByteArray, bodies: Mapping[int, ByteArray]
    ) -> None:
        weights = {source: _weight_in(body, source) for source, body in bodies.items()}
        super()._mix(x, row, own_body, bodies)
        weights[self.rank] = self.weight
        total = sum(float(row[source]) * weights[source] for source in sorted(weights))
        self.weight += self._gamma * (total - self.weight)


class DeepSqueeze(_Coded):
    """Gossip of compressed values with error feedback: ::

        v = x + delta;  delta = v - C(v);  x += gamma (sum_j W_ij C_j - C_i)

    Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu: "DeepSqueeze: Decentralization Meets Error-Compensated
    Compression" (2019), algorithm 1; an optimizer takes the gradient's step before each round.

    Args:
        topology: doubly stochastic; it may change with the step.
        rank, shapes, codec, gamma, seed: as in `Choco`; the default step size is 0.01.

    State, by tensor name: ``delta``, the compression error.

    Deviation: tensors of fewer than two dimensions are averaged dense, with step size 1.
    """

    name = "DeepSqueeze"
    kinds = ("delta",)
    usual_gamma = 0.01

    def _encode(self, x: FloatArray) -> ByteArray:
        frames = []
        for tensor in self.layout.large:
            delta = self._kept["delta"][tensor.key.name]
            delta += tensor.of(x)
            frames.append(self._frame(tensor, delta))
        return np.concatenate(frames) if frames else np.empty(0, np.uint8)

    def _mix(
        self, x: FloatArray, row: Row, own_body: ByteArray, bodies: Mapping[int, ByteArray]
    ) -> None:
        sums = self._sums(row, own_body, bodies)
        for tensor, frame, total in zip(
            self.layout.large, self._frames(own_body), sums, strict=True
        ):
            sent = self._decode(tensor, frame)
            self._kept["delta"][tensor.key.name] -= sent
            tensor.of(x)[:] += np.float32(self._gamma) * (total - sent)


def _codec_of(codec: str | Mapping[str, str], tensor: Tensor) -> Codec:
    if isinstance(codec, str):
        return get_codec(codec)
    if tensor.whole not in codec:
        raise SpecError(
            f"no codec is given for '{tensor.whole}'; give one for each tensor of two or more "
            "dimensions, or a single spec"
        )
    return get_codec(codec[tensor.whole])


def _check_static(topology: Topology, algorithm: str) -> None:
    """Raise TopologyError for a topology that changes from round to round."""
    if topology.period != 1:
        raise TopologyError(
            f"{algorithm} needs a graph that does not change, and '{topology.name}' repeats after "
            f"{topology.period} rounds; take a static one, such as ring or exponential"
        )


def _weight_in(body: ByteArray, source: int) -> float:
    """The push-sum weight at the front of a peer's encoded tensors."""
    weight = math.nan
    if body.nbytes >= _WEIGHT_BYTES:
        weight = float(body[:_WEIGHT_BYTES].copy().view(np.float64)[0])
    if not 0 < weight < math.inf:
        raise ProtocolError(
            f"rank {source} sent the push-sum weight {weight}; it must be a finite number above 0: "
            "the ranks do not run the same algorithm"
        )
    return weight
