"""All ranks in one process: averages against numpy, and ranks that do not agree."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gradcomp import Loopback, Pipeline, ProtocolError, SpecError, WireError, get_codec
from gradcomp.exchange.rounds import TensorKey
from gradcomp.runtime.loopback import run_rounds
from support.gradients import of_one_tensor
from support.pipelines import config_of

SHAPE = (50, 90)
NUMEL = 4500


def gradients(ranks: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> list[np.ndarray]:
    return of_one_tensor(ranks, shape, seed)


def check_replicas(averages: list[np.ndarray], shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """All ranks' results are equal bit for bit, and not one array; returns the first."""
    for average in averages:
        assert average.dtype == np.float32
        assert average.shape == shape
        assert average.tobytes() == averages[0].tobytes()
    return averages[0]


# --------------------------------------------------------------------------------------- averages


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_identity_is_the_mean(world_size: int) -> None:
    grads = gradients(world_size)
    average = check_replicas(Loopback("identity", world_size).step({"w": grads})["w"])
    total = grads[0].copy()
    for grad in grads[1:]:
        total += grad
    assert average.tobytes() == (total * np.float32(1 / world_size)).tobytes()
    np.testing.assert_allclose(average, np.mean(grads, axis=0, dtype=np.float64), atol=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_fp16_averages_payloads_in_half_precision(world_size: int) -> None:
    grads = gradients(world_size)
    average = check_replicas(Loopback("fp16", world_size).step({"w": grads})["w"])
    total = grads[0].astype(np.float16)
    for grad in grads[1:]:
        total += grad.astype(np.float16)
    total *= np.float16(1 / world_size)
    assert average.tobytes() == total.astype(np.float32).tobytes()
    exact = np.mean(grads, axis=0, dtype=np.float64)
    np.testing.assert_allclose(average, exact, atol=world_size * 2**-10)


@pytest.mark.parametrize("spec", ["topk(ratio=0.1)", "bf16"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_gathered_frames_are_averaged_in_rank_order(spec: str, world_size: int) -> None:
    grads = gradients(world_size)
    loop = Loopback(config_of(spec, exchange="gather"), world_size)
    average = check_replicas(loop.step({"w": grads})["w"])
    codec = get_codec(spec)
    decodes = [codec.decode(codec.encode(grad)).reshape(SHAPE) for grad in grads]
    total = np.zeros(SHAPE, np.float32)
    for decode in decodes:
        total += np.float32(1 / world_size) * decode
    np.testing.assert_array_equal(average, total)
    np.testing.assert_allclose(average, np.mean(decodes, axis=0, dtype=np.float64), atol=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_randomk_averages_the_same_elements_on_every_rank(world_size: int) -> None:
    loop = Loopback(config_of("randomk(ratio=0.1)", seed=9), world_size)
    kept = []
    for step in range(3):
        grads = gradients(world_size, seed=step)
        average = check_replicas(loop.step({"w": grads})["w"])
        kept.append(np.flatnonzero(average))
        assert kept[-1].size == NUMEL // 10
        mean = np.mean(grads, axis=0, dtype=np.float64).reshape(-1)[kept[-1]]
        np.testing.assert_allclose(average.reshape(-1)[kept[-1]], mean, atol=1e-6)
    assert not np.array_equal(kept[0], kept[1])
    assert not np.array_equal(kept[1], kept[2])


@pytest.mark.parametrize("spec", ["residual|topk(ratio=0.1)", "residual|randomk(ratio=0.1)"])
def test_error_feedback_sends_everything_in_the_end(spec: str) -> None:
    loop = Loopback(spec, 3)
    grads = gradients(3)
    zeros = [np.zeros(SHAPE, np.float32)] * 3
    total = np.zeros(SHAPE)
    for step in range(200):
        total += check_replicas(loop.step({"w": grads if step == 0 else zeros})["w"])
    np.testing.assert_allclose(total, np.mean(grads, axis=0, dtype=np.float64), atol=1e-6)


@pytest.mark.parametrize("spec", ["identity", "fp16", "bf16", "topk(k=1)", "randomk(k=1)"])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 4)])
def test_every_shape_comes_back(spec: str, shape: tuple[int, ...]) -> None:
    loop = Loopback(config_of("residual|" + spec), 2)
    for _ in range(2):
        check_replicas(loop.step({"w": gradients(2, shape)})["w"], shape)


def test_torch_tensors_are_gradients() -> None:
    grads = gradients(2)
    expected = Loopback("topk(k=9)", 2).step({"w": grads})["w"][0]
    tensors = [torch.from_numpy(grad).to(torch.float64) for grad in grads]
    assert Loopback("topk(k=9)", 2).step({"w": tensors})["w"][1].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "spec", ["identity", "fp16", "topk(ratio=0.1)", "residual|topk(ratio=0.1)", "residual|fp16"]
)
def test_the_gradients_are_not_changed(spec: str) -> None:
    grads = gradients(3)
    copies = [grad.copy() for grad in grads]
    averages = Loopback(spec, 3).step({"w": grads})["w"]
    averages[0].fill(7)
    for grad, copy in zip(grads, copies, strict=True):
        assert grad.tobytes() == copy.tobytes()
    assert not (averages[1] == 7).any(), "each rank has an average of its own"


def test_several_tensors_take_their_rules() -> None:
    loop = Loopback("residual|topk(ratio=0.1)", 2)
    step = {"fc.weight": gradients(2), "fc.bias": gradients(2, (50,))}
    averages = loop.step(step)
    assert np.count_nonzero(check_replicas(averages["fc.weight"])) < NUMEL // 4
    bias = check_replicas(averages["fc.bias"], (50,))
    np.testing.assert_allclose(bias, np.mean(step["fc.bias"], axis=0), atol=1e-6)


def test_nan_and_inf_reach_all_ranks() -> None:
    for spec in ("identity", "fp16", "bf16", "topk(k=2)"):
        grads = gradients(2)
        grads[0][0, 0], grads[1][1, 1] = np.nan, -np.inf
        average = check_replicas(Loopback(spec, 2).step({"w": grads})["w"])
        assert np.isnan(average[0, 0])
        assert average[1, 1] == -np.inf


def test_half_precision_does_not_overflow_in_the_sum() -> None:
    grads = [np.full(SHAPE, 60000, np.float32)] * 2
    assert (Loopback("fp16", 2).step({"w": grads})["w"][0] == 60000).all()
    assert (Loopback("bf16", 2).step({"w": grads})["w"][0] == 59904).all()


# --------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("world_size", [0, -1])
def test_the_world_has_a_rank(world_size: int) -> None:
    with pytest.raises(ValueError, match=f"world_size is {world_size}; it must be at least 1"):
        Loopback("fp16", world_size)


def test_a_wrong_spec_is_found_at_once() -> None:
    with pytest.raises(SpecError):
        Loopback("fp17", 2)


def test_every_rank_has_a_gradient() -> None:
    with pytest.raises(ValueError, match="'w' has 2 gradients for 3 ranks"):
        Loopback("fp16", 3).step({"w": gradients(2)})


def disagreement(*rounds: tuple[str, str, tuple[int, ...]]) -> str:
    """The error of ranks that each use a spec for a tensor of a name and a shape."""
    pipelines = [
        Pipeline(config_of(spec), rank, len(rounds)) for rank, (spec, _, _) in enumerate(rounds)
    ]
    generators = [
        pipeline.round(name, np.ones(shape, np.float32))
        for pipeline, (_, name, shape) in zip(pipelines, rounds, strict=True)
    ]
    with pytest.raises(ProtocolError) as caught:
        run_rounds(generators)
    return str(caught.value)


def test_ranks_with_different_patterns() -> None:
    message = disagreement(
        ("topk(k=2)", "w", (3, 4)), ("identity", "w", (3, 4)), ("topk(k=2)", "w", (3, 4))
    )
    assert message.split("\n") == [
        "the ranks make different requests:",
        "  rank 0: all-gather of 'w'",
        "  rank 1: all-reduce of 'w', float32, shape (12,)",
        "  rank 2: all-gather of 'w'",
    ]


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (("fp16", "w", (4,)), ("identity", "w", (4,)), "float16, shape (4,)"),
        (("fp16", "w", (4,)), ("fp16", "v", (4,)), "all-reduce of 'v'"),
        (("bf16", "w", (4,)), ("bf16", "v", (4,)), "all-gather of 'v'"),
        (("fp16", "w", (4,)), ("fp16", "w", (5,)), "shape (5,)"),
        (("randomk(k=2)", "w", (4,)), ("randomk(k=3)", "w", (4,)), "shape (3,)"),
    ],
)
def test_ranks_that_differ(
    one: tuple[str, str, tuple[int, ...]], other: tuple[str, str, tuple[int, ...]], says: str
) -> None:
    assert says in disagreement(one, other)
    assert says in disagreement(other, one)


def test_a_rank_that_asks_no_more() -> None:
    def finished() -> object:
        return np.zeros(3, np.float32)
        yield

    pipeline = Pipeline(config_of("bf16"))
    for rounds in (
        [finished(), pipeline.round("w", np.ones(3, np.float32))],
        [pipeline.round("w", np.ones(3, np.float32)), finished()],
    ):
        with pytest.raises(ProtocolError, match="no further request: its round has ended"):
            run_rounds(rounds)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ("topk(k=2)", "topk(k=3)", "frame of rank 1 for 'w': the frame was made with other param"),
        ("topk(k=2)", "bf16", r"frame of rank 1 for 'w': the frame was made by codec 3 \(bf16\)"),
    ],
)
def test_frames_of_another_spec_are_refused_by_rank(one: str, other: str, says: str) -> None:
    pipelines = [Pipeline(config_of(one), 0, 2), Pipeline(config_of(other), 1, 2)]
    with pytest.raises(WireError, match=says):
        run_rounds([pipeline.round("w", np.ones(9, np.float32)) for pipeline in pipelines])


def test_frames_of_another_size_are_refused_by_rank() -> None:
    pipelines = [Pipeline(config_of("bf16"), rank, 2) for rank in range(2)]
    with pytest.raises(WireError, match="rank 1 for 'w': the frame holds 8 elements, not 9"):
        run_rounds(
            [
                pipelines[0].round("w", np.ones(9, np.float32)),
                pipelines[1].round("w", np.ones(8, np.float32)),
            ]
        )


def test_tensor_ids_follow_from_names() -> None:
    ids = {TensorKey(f"layer{i}.weight", (1,), 1).tensor_id for i in range(1000)}
    assert len(ids) == 1000
    assert all(0 <= tensor_id < 2**64 for tensor_id in ids)
    assert TensorKey("w", (3,), 3).tensor_id == TensorKey("w", (4, 5), 20).tensor_id


# --------------------------------------------------------------------------------------- document


def test_the_documents_examples_print_what_it_says() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "loopback.md").read_text()
    examples = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", document, re.DOTALL)
    assert len(examples) == document.count("```python") == 3
    names: dict[str, object] = {}
    for source, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(source, names)
        assert printed.getvalue() == expected
