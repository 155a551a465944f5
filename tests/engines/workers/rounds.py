"""Rounds of several phases on Horovod's collectives."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
from workers.harness import Cases

from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.codec import get_codec
from gradcomp.exchange.engine import Driver
from gradcomp.exchange.rounds import AllGather, AllReduce, AllToAll, Round
from horovod_compressors.torch.engine import HorovodEngine

cases = Cases()

SHAPE = (12, 8)
NAMES = [f"layer{position}" for position in range(6)]


def low_rank(name: str, grad: FloatArray, gather: bool) -> Round:
    """One power iteration from a fixed start, with PowerSGD's requests; then optionally frames of
    the remainder."""
    q = np.ones((SHAPE[1], 1), np.float32)
    p = yield AllReduce(f"{name}.p", grad @ q)
    p /= np.linalg.norm(p)
    q = yield AllReduce(f"{name}.q", grad.T @ p)
    average = p @ q.T
    if gather:
        codec = get_codec("bf16")
        frames = yield AllGather(f"{name}.rest", codec.encode(grad - average))
        for frame in frames:
            average += codec.decode(frame).reshape(SHAPE) / np.float32(len(frames))
    return average.reshape(-1)


def gradient(name: str, step: int, rank: int) -> FloatArray:
    seed = [NAMES.index(name), step, rank]
    return np.random.default_rng(seed).standard_normal(SHAPE, np.float32)


def frame_of(rank: int, step: int, nbytes: int) -> ByteArray:
    """A frame of random 16-bit floats, of about this number of bytes."""
    numbers = np.random.default_rng([rank, step]).standard_normal(nbytes // 2, np.float32)
    return get_codec("bf16").encode(numbers)


@cases
def large_replies_in_memory_of_earlier_ones() -> None:
    """Replies grow and shrink; those that something still refers to do not change."""
    engine = HorovodEngine("large", {"all": hvd.global_process_set})
    size, rank = hvd.size(), hvd.rank()
    kept, kept_copy, places = None, None, []
    for step, nbytes in enumerate([40 << 20, 40 << 20, 36 << 20, 44 << 20, 40 << 20, 1000]):
        frames = [frame_of(one, step, nbytes // size) for one in range(size)]
        gathered = engine.finish(engine.start(AllGather("frames", frames[rank])))
        assert [one.tobytes() for one in gathered] == [one.tobytes() for one in frames]
        splits = [len(frames[rank]) // size] * size
        sent = frames[rank][: sum(splits)]
        parts = engine.finish(engine.start(AllToAll("parts", sent, splits)))
        begin = splits[0] * rank
        for one, part in zip(frames, parts, strict=True):
            assert np.array_equal(part, one[begin : begin + splits[0]])
        places.append(gathered[0].ctypes.data)
        if step == 3:
            kept, kept_copy = gathered, [one.copy() for one in gathered]
        del gathered, parts
    assert places[0] == places[1] == places[2], "the memory of large replies is not used again"
    assert kept is not None
    assert kept_copy is not None
    assert places[4] != places[3]
    assert all(np.array_equal(one, copy) for one, copy in zip(kept, kept_copy, strict=True))


@cases
def phases_in_any_order_of_finishing() -> None:
    """Rounds of two and of three phases; each rank starts and finishes them in its own order."""
    driver = Driver(HorovodEngine("rounds", {"all": hvd.global_process_set}))
    shuffled = np.random.default_rng(hvd.rank())
    for step in range(10):
        for name in shuffled.permutation(NAMES).tolist():
            grad = gradient(name, step, hvd.rank())
            driver.start(name, low_rank(name, grad, gather=name > "layer2"))
        averages = {name: driver.finish(name) for name in shuffled.permutation(NAMES).tolist()}
        for name, average in averages.items():
            of_ranks = [gradient(name, step, rank) for rank in range(hvd.size())]
            mean = np.mean(of_ranks, axis=0)
            p = mean @ np.ones((SHAPE[1], 1), np.float32)
            p /= np.linalg.norm(p)
            wanted = p @ (mean.T @ p).T if name <= "layer2" else mean
            np.testing.assert_allclose(average.reshape(SHAPE), wanted, rtol=0.02, atol=0.02)
        everything = np.concatenate([averages[name] for name in NAMES])
        rows = hvd.allgather_object(everything, name="rounds.same")
        assert all(np.array_equal(row, everything) for row in rows)
