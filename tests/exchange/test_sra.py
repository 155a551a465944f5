"""Scatter-reduce-allgather, in the loopback."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, EncodeItem, Loopback, Pipeline, encode_batch, get_codec
from gradcomp.codec.frame import inspect, split_frames
from gradcomp.errors import ProtocolError, WireError
from gradcomp.exchange.patterns.chunks import cut
from gradcomp.exchange.patterns.sra import MIN_CHUNK
from gradcomp.exchange.rounds import AllGather, AllReduce, AllToAll, Request, TensorKey
from gradcomp.runtime.loopback import run_rounds
from support import exchange_cases
from support.exchange_cases import SHAPES, check_nothing_is_lost, check_replicas, gradients

SHARING = ["adaptive(rate=0.5)", "globaltopk(ratio=0.02)"]
"""Codecs that choose among all elements that travel together."""

CODECS = [*exchange_cases.CODECS, "rotate|uniform(bits=4)", *SHARING]


def config_of(spec: str, exchange: str = "sra", **others: Any) -> Config:
    return exchange_cases.config_of(spec, exchange, **others)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("memory", ["", "residual|", "residual(beta=0.7,gamma=0.5)|", "signum|"])
@pytest.mark.parametrize("codec", CODECS)
def test_replicas_are_identical(codec: str, memory: str, ranks: int) -> None:
    loop = Loopback(config_of(memory + codec), ranks)
    for step in range(2):
        check_replicas(loop.step(gradients(ranks, step)))
    assert loop.stats[0].sent_bytes.keys() == {"alltoall", "allgather"}


@pytest.mark.parametrize("exchange", ["gather", "sra"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(("beta", "gamma"), [(1.0, 1.0), (0.7, 0.5)])
@pytest.mark.parametrize("codec", CODECS)
def test_what_averages_lack_is_in_the_residuals(
    codec: str, beta: float, gamma: float, ranks: int, exchange: str
) -> None:
    config = config_of(f"residual(beta={beta},gamma={gamma})|{codec}", exchange)
    check_nothing_is_lost(Loopback(config, ranks), beta, gamma)


@pytest.mark.parametrize("exchange", ["sra", "sparse_allreduce"])
def test_the_same_holds_for_the_velocity_of_momentum_correction(exchange: str) -> None:
    config = config_of("momentum_correction(momentum=0)|topk(ratio=0.05)", exchange)
    check_nothing_is_lost(Loopback(config, 3), atol=1e-5)


def test_the_average_is_that_of_encoded_chunks() -> None:
    """A single tensor, against a plain definition."""
    ranks, codec = 3, get_codec("topk(ratio=0.1)")
    grads = gradients(ranks)["odd"]
    (averages,) = Loopback(config_of(codec.spec), ranks).step({"odd": grads}).values()
    borders = [grads[0].size * rank // ranks for rank in range(ranks + 1)]
    chunks = []
    for begin, end in itertools.pairwise(borders):
        total = np.zeros(end - begin, np.float32)
        for grad in grads:
            codec.decode_add(codec.encode(grad.reshape(-1)[begin:end]), total, 1 / ranks)
        chunks.append(codec.decode(codec.encode(total)))
    np.testing.assert_array_equal(averages[0].reshape(-1), np.concatenate(chunks))


@pytest.mark.parametrize("codec", ["qsgd(levels=1)", "randomk(ratio=0.2,unbiased=true)"])
def test_an_unbiased_codec_stays_unbiased(codec: str) -> None:
    """Over steps the mean of the averages comes close to the average, of which a second phase with
    the first one's random numbers would stay away."""
    loop = Loopback(config_of(codec), 3)
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal((64, 64), np.float32) for _ in range(3)]
    exact = np.mean(grads, axis=0)
    single, mean, steps = 0.0, np.zeros_like(exact), 200
    for _ in range(steps):
        average = loop.step({"w": grads})["w"][0]
        single += float(np.sum((average - exact) ** 2)) / steps
        mean += average / steps
    # An unbiased mean's error is 1 / steps of a single one's.
    assert np.sum((mean - exact) ** 2) < 1.3 * single / steps


def test_half_precision_is_added_in_single_precision() -> None:
    """2048 + 1 has no float16, 2052 has."""
    grads = {"w": [np.full((64, 64), number) for number in (2048.0, 1.0, 1.0, 2.0)]}
    assert (Loopback("fp16", 4).step(grads)["w"][0] == 512.5).all()
    assert (Loopback(config_of("fp16"), 4).step(grads)["w"][0] == 513).all()


def requests_of(
    inner: Generator[Request, Any, Any], seen: list[Request]
) -> Generator[Request, Any, Any]:
    try:
        request = next(inner)
        while True:
            seen.append(request)
            request = inner.send((yield request))
    except StopIteration as stop:
        return stop.value


def run_bucket(config: Config, ranks: int, names: Sequence[str]) -> list[list[Request]]:
    """The requests of each rank."""
    grads = gradients(ranks)
    seen: list[list[Request]] = [[] for _ in range(ranks)]
    run_rounds(
        [
            requests_of(
                Pipeline(config, rank, ranks).bucket_round(
                    "bucket", {name: grads[name][rank] for name in names}
                ),
                seen[rank],
            )
            for rank in range(ranks)
        ]
    )
    return seen


def test_random_numbers_are_those_of_one_piece_rank_and_phase() -> None:
    seen = run_bucket(config_of("randomk(ratio=0.1)"), 3, list(SHAPES))
    streams = []
    for rank, (scatter, gather) in enumerate(seen):
        assert isinstance(scatter, AllToAll)
        assert isinstance(gather, AllGather)
        assert sum(scatter.splits) == scatter.data.size == scatter.nbytes
        assert not isinstance(gather.count, int)
        frames = split_frames(scatter.data, sum(gather.count))  # of all pieces
        frames += split_frames(gather.frame, gather.count[rank])
        streams += [inspect(frame).stream for frame in frames]
    assert len(set(streams)) == len(streams)


def test_volume_does_not_grow_with_the_ranks() -> None:
    sent = {}
    for exchange, ranks in itertools.product(["gather", "sra"], [2, 8]):
        seen = run_bucket(config_of("int8", exchange), ranks, list(SHAPES))
        received = sum(one[-1].nbytes for one in seen[1:])
        if exchange == "sra":
            received += sum(one[0].splits[0] for one in seen[1:])  # type: ignore[union-attr]
        sent[exchange, ranks] = received
    assert sent["gather", 8] == 7 * sent["gather", 2]
    # 2 (n - 1) / n payloads.
    assert sent["sra", 8] < 1.85 * sent["sra", 2]


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("spec", ["adaptive(rate=0.5)", "globaltopk(ratio=0.02)"])
def test_each_owner_has_its_own_share_of_the_bytes(spec: str, ranks: int) -> None:
    """All ranks send every owner as many bytes, wherever gradients are large, and each owner sends as
    many. Averages of few levels have no step that suits the rate of `adaptive` exactly."""
    shapes = {"large": (256, 128), "odd": (61, 301), "small": (512, 64)}
    grads = gradients(ranks, 0, shapes)
    for rank in range(ranks):
        grads["large"][rank][: 64 + rank] *= 30
    seen: list[list[Request]] = [[] for _ in range(ranks)]
    run_rounds(
        [
            requests_of(
                Pipeline(config_of(spec), rank, ranks).bucket_round(
                    "bucket", {name: grads[name][rank] for name in shapes}
                ),
                seen[rank],
            )
            for rank in range(ranks)
        ]
    )
    whole = sum(frame.nbytes for frame in frames_of(spec, grads, 0))
    scattered, gathered = [], []
    for scatter, gather in seen:
        assert isinstance(scatter, AllToAll)
        scattered += scatter.splits
        gathered.append(gather.nbytes)
    headers = 28 * (len(shapes) + 1)
    assert max(scattered) - min(scattered) <= 0.1 * max(scattered) + headers
    assert max(scattered) <= 1.1 * whole / ranks + headers
    assert max(gathered) <= 1.35 * whole / ranks + headers


def frames_of(spec: str, grads: dict[str, list[Any]], rank: int) -> list[Any]:
    data, sizes = encode_batch([EncodeItem(get_codec(spec), one[rank]) for one in grads.values()])
    return np.split(data, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_chunks_of_whole_rows(ranks: int) -> None:
    shapes = {"a": (96, 80), "vector": (700,), "empty": (0, 5), "b": (61, 101), "c": (4, 2, 100)}
    keys = [TensorKey(name, shape, int(np.prod(shape))) for name, shape in shapes.items()]
    chunks = cut(keys, ranks, whole_rows=True)
    pieces = [piece for chunk in chunks for piece in chunk]
    assert [(p.member, p.begin) for p in pieces] == sorted((p.member, p.begin) for p in pieces)
    for piece in pieces:
        assert np.prod(piece.shape) == piece.numel > 0
        assert piece.shape[1:] in ((), (piece.key.cols,))
        assert len(piece.shape) == (1 if piece.key.name == "vector" else 2)
    assert sum(piece.numel for piece in pieces) == sum(key.numel for key in keys)
    loads = [sum(piece.numel for piece in chunk) for chunk in chunks]
    assert max(loads) - min(loads) <= 2 * 200
    long = [TensorKey("row", (2, 10_000), 20_000)]
    assert [piece.shape for (piece,) in cut(long, 4, whole_rows=True)] == [(5000,)] * 4


def test_tensors_without_elements_travel_along() -> None:
    rules = [{"match": {}, "use": "residual|int8"}]
    loop = Loopback(config_of("residual|int8", rules=rules), 3)
    averages = loop.step({"none": [np.ones((0, 3))] * 3, "all": [np.ones((3, MIN_CHUNK))] * 3})
    assert averages["none"][2].shape == (0, 3)
    assert (averages["all"][2] == 1).all()
    assert loop.stats[0].sent_bytes["alltoall"]


def test_one_rank_has_nobody_to_divide_the_work_with() -> None:
    loop = Loopback(config_of("topk(ratio=0.1)"), 1)
    loop.step(gradients(1))
    assert set(loop.stats[0].sent_bytes) == {"allgather"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("sizes", [[10], [3, 0, 4], [1], [5000, 1, 37, 9000], [1] * 5])
def test_chunks_hold_each_element_once(sizes: list[int], ranks: int) -> None:
    keys = [TensorKey(f"t{n}", (size,), size) for n, size in enumerate(sizes)]
    chunks = cut(keys, ranks)
    pieces = [piece for chunk in chunks for piece in chunk]
    elements = [(p.member, i) for p in pieces for i in range(p.begin, p.end)]
    assert elements == [(m, i) for m, size in enumerate(sizes) for i in range(size)]
    loads = [sum(piece.numel for piece in chunk) for chunk in chunks]
    assert max(loads) - min(loads) <= 1
    assert len({piece.tensor_id(phase) for piece in pieces for phase in (0, 1)}) == 2 * len(pieces)


@pytest.mark.parametrize(("phase", "says"), [(0, "the frames of rank 1"), (1, "rank 1's average")])
def test_a_damaged_frame_is_named(phase: int, says: str) -> None:
    config = config_of("topk(ratio=0.1)")
    grads = gradients(2)
    rounds = [
        Pipeline(config, rank, 2).bucket_round("bucket", {"odd": grads["odd"][rank]})
        for rank in range(2)
    ]
    replies: list[Any] = [None, None]
    for current in range(2):
        requests = [one.send(reply) for one, reply in zip(rounds, replies, strict=True)]
        parts: list[Any] = []
        for request in requests:
            if isinstance(request, AllToAll):
                borders = [0, *itertools.accumulate(request.splits)]
                parts.append([request.data[b:e] for b, e in itertools.pairwise(borders)])
            else:
                assert isinstance(request, AllGather)
                parts.append([request.frame, request.frame])
        replies = [list(of_rank) for of_rank in zip(*parts, strict=True)]
        if current == phase:
            bad = replies[0][1].copy()
            if phase == 0:
                bad = bad[:-1]
            else:
                bad[-3] ^= 0xFF
                bad[len(bad) // 2 :] = 0xFF
            replies[0][1] = bad
            with pytest.raises(WireError, match=says) as caught:
                rounds[0].send(replies[0])
            assert "'odd'" in str(caught.value)
            return


def test_the_loopback_tells_apart_what_ranks_ask_for() -> None:
    def asks(request: Request) -> Generator[Request, Any, None]:
        yield request

    one = AllToAll("w", np.zeros(2, np.uint8), [1, 1])
    other = AllReduce("w", np.zeros(2, np.float32))
    with pytest.raises(ProtocolError, match="rank 0: all-to-all of 'w'"):
        run_rounds([asks(one), asks(other)])
