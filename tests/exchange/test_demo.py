"""DeMo: its formulas, bytes and state; see docs/algorithms/demo.md."""

from __future__ import annotations

import numpy as np
import pytest
from decoder import Rotation

from gradcomp import Loopback, SpecError
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.spec import parse
from gradcomp.exchange.rounds import TensorKey
from support.demo import Reference
from support.pipelines import config_of
from support.step_laws import check_bits, check_recovers, gradients, take_state

SHAPE = (128, 96)


@pytest.mark.parametrize("shape", [SHAPE, (130, 100), (60, 50), (50, 1)])
@pytest.mark.parametrize(("values", "k"), [("fp32", 32), ("sign", 4)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_steps_are_those_of_the_formulas(
    ranks: int, values: str, k: int, shape: tuple[int, int]
) -> None:
    stage = f"demo(k={k},momentum=0.9,values={values}"
    plain, sign = (Loopback(config_of(f"{stage},update={u})"), ranks) for u in ("plain", "sign"))
    reference = Reference(ranks, "w", shape, k, 0.9, values == "sign")
    for step in range(4):
        grads = gradients(ranks, step, shape)
        results = plain.step({"w": grads})["w"]
        wanted = reference.step(grads)
        np.testing.assert_allclose(results[0], wanted, atol=2e-5)
        assert all(one.tobytes() == results[0].tobytes() for one in results)
        signs = sign.step({"w": grads})["w"]
        assert np.array_equal(np.abs(signs[0]), np.ones(shape))
        assert ((signs[0] == np.sign(results[0])) | (results[0] == 0)).all()
        assert all(one.tobytes() == signs[0].tobytes() for one in signs)
        for rank, expected in zip(plain.ranks, reference.momenta, strict=True):
            np.testing.assert_allclose(rank.state_dict()["momentum"]["w"], expected, atol=2e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ties_move_either_way_and_blocks_without_momentum_stay(ranks: int) -> None:
    """With k = 4 values of one bit and one size, 3 of 8 sums are 0 on one rank."""
    loops = [Loopback(config_of(f"demo(k=4,update={u})"), ranks) for u in ("sign", "plain")]
    ties = []
    for step in range(4):
        signs, plain = (
            loop.step({"w": gradients(1, step, SHAPE) * ranks})["w"][0] for loop in loops
        )
        ties.append(signs[plain == 0])
    moves = np.concatenate(ties)
    assert moves.size > 0.3 * 4 * signs.size
    assert np.array_equal(np.abs(moves), np.ones(moves.size))
    assert abs(moves.mean()) < 0.05
    (halves,) = gradients(1, 0, (2, 4096))
    halves[1] = 0
    for values in ("fp32", "2bit"):
        loop = Loopback(config_of(f"demo(k=4,values={values})"), ranks)
        step_of_halves = loop.step({"w": [halves] * ranks})["w"][0]
        assert step_of_halves[0].all()
        assert not step_of_halves[1].any()


@pytest.mark.parametrize("values", ["sign", "means"])
def test_coefficients_of_zero_have_random_signs(values: str) -> None:
    """Coefficients of 0 all travelled as +a, from the same places on all ranks."""
    (halves,) = gradients(1, 0, (2, 4096))
    halves[1] = 0
    rotation = Rotation(8192, derive_stream(0, 0, TensorKey("w", (2, 4096), 8192).tensor_id))
    sent = []
    for seed in range(32):
        config = config_of(f"demo(k=4,values={values},update=plain)")
        loop = Loopback(config.model_copy(update={"seed": seed}), 2)
        average = loop.step({"w": [halves] * 2})["w"][0].reshape(-1)
        block = rotation.forward(average.astype(np.float64))[4096:]
        sent.append(block[np.abs(block) > 0.1])
    assert len({block.tobytes() for block in sent}) == 32
    signs = np.sign(np.concatenate(sent))
    assert signs.size > 32 * 7  # two ranks rarely choose the same of 4096 places
    assert abs(signs.mean()) < 4 / signs.size**0.5


@pytest.mark.parametrize("update", ["sign", "plain"])
@pytest.mark.parametrize("values", ["sign", "means", "fp32"])
def test_without_gradients_nothing_moves(values: str, update: str) -> None:
    loop = Loopback(config_of(f"demo(values={values},update={update})"), 2)
    zeros = np.zeros(SHAPE, np.float32)
    for _ in range(3):
        assert not loop.step({"w": [zeros] * 2})["w"][0].any()


def test_bits_of_a_sent_value() -> None:
    """At most 12.2 with one-bit values at k = 4, where positions alone need 10.85."""
    loop = Loopback(config_of("demo(k=4)"), 2)
    loop.step({"w": gradients(2, 0, (2048, 2048))})
    assert 8 * loop.stats[0].total_bytes / (2048 * 2048 // 4096 * 4) <= 12.2


def test_vectors_have_averages() -> None:
    loop = Loopback(config_of("demo"), 2)
    vector = [np.full(5000, rank, np.float32) for rank in (1, 3)]
    assert (loop.step({"b": vector})["b"][0] == 2).all()


def test_zeros_and_nan_do_no_lasting_harm() -> None:
    check_recovers("demo(values=fp32)", SHAPE, spoiled=4096)


def test_the_same_bits_at_all_levels_and_threads() -> None:
    check_bits("demo(update=plain)", (300, 260))


def test_state_comes_back_whatever_the_seed_and_k() -> None:
    plain = config_of("demo(k=32,update=plain)")  # the seed decides ties of signs
    straight = Loopback(plain, 2)
    resumed = Loopback(plain.model_copy(update={"seed": 5}), 2)
    other = Loopback(config_of("demo(k=64,values=int8)"), 2)
    straight.step({"w": gradients(2, 0, SHAPE)})
    take_state(straight, resumed, other)
    a, b = (loop.step({"w": gradients(2, 1, SHAPE)})["w"][0] for loop in (straight, resumed))
    assert a.tobytes() == b.tobytes()


def test_wrong_uses_say_why() -> None:
    for spec, message in (
        ("demo(momentum=1)", "momentum must be below 1"),
        ("residual|demo", "its momentum is its error feedback"),
        ("demo(k=0)", r"a whole number in \[1, 4096\]"),
    ):
        with pytest.raises(SpecError, match=message):
            parse(spec)
