"""Reduce-scatter of frames, with a pipeline for each rank in this process."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gradcomp import ConfigError, Pipeline
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import HOST, device_of
from gradcomp.errors import WireError
from gradcomp.exchange import pieces
from gradcomp.exchange.patterns.chunks import cut_rows
from gradcomp.exchange.rounds import AllToAll, TensorKey
from gradcomp.runtime.loopback import run_rounds
from support.core_device import CoreDevice
from support.mixed_ranks import residuals
from support.pipelines import config_of, configured

SHAPES = {"even": (60, 8), "odd": (7, 33), "one": (1, 40), "vector": (11,), "cube": (5, 3, 4)}
CODECS = [
    *("int4", "int8", "topk(ratio=0.1)", "qsgd(levels=3)", "globaltopk(ratio=0.1)", "fp16"),
    *("sketch(ratio=0.5)", "adaptive", "polar_b(rate=0.5)", "rotate|uniform(bits=3)", "sign"),
]


def pipelines(spec: Any, ranks: int) -> list[Pipeline]:
    return [Pipeline(config_of(spec), rank, ranks, scatters=True) for rank in range(ranks)]


def gradients(ranks: int, step: int = 0) -> list[dict[str, FloatArray]]:
    rngs = [np.random.default_rng([step, rank]) for rank in range(ranks)]
    return [
        {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
        for rng in rngs
    ]


def step(of_ranks: list[Pipeline], grads: list[dict[str, FloatArray]]) -> dict[str, FloatArray]:
    """The whole tensors, put together from the sums of all ranks' rows; flat."""
    found = run_rounds(
        [one.bucket_round("unit", given) for one, given in zip(of_ranks, grads, strict=True)]
    )
    return {name: np.concatenate(parts) for name, *parts in zip(grads[0], *found, strict=True)}


def exact(grads: list[dict[str, FloatArray]]) -> dict[str, FloatArray]:
    return {name: sum(one[name] for one in grads).reshape(-1) for name in grads[0]}


def test_rows_belong_to_ranks_as_in_torch() -> None:
    chunks = cut_rows([TensorKey("a", (7, 3), 21), TensorKey("b", (2,), 2)], 4)
    ranges = [[(piece.key.name, piece.begin, piece.end) for piece in chunk] for chunk in chunks]
    assert ranges == [
        [("a", 0, 6), ("b", 0, 1)],
        [("a", 6, 12), ("b", 1, 2)],
        [("a", 12, 18)],
        [("a", 18, 21)],
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_dense_sums_are_exact(ranks: int) -> None:
    of_ranks = pipelines("identity", ranks)
    grads = gradients(ranks)
    sums = step(of_ranks, grads)
    for name, expected in exact(grads).items():
        if ranks <= 2:
            np.testing.assert_array_equal(sums[name], expected, name)
        np.testing.assert_allclose(sums[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "spec", [*(f"residual|{codec}" for codec in CODECS), "residual(average=0.8)|int4"]
)
def test_unsent_parts_stay_with_their_senders(spec: str, ranks: int) -> None:
    """All sums together lack exactly the residuals of the last step."""
    of_ranks = pipelines(spec, ranks)
    lacking = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    for number in range(4):
        grads = gradients(ranks, number)
        for name, total in step(of_ranks, grads).items():
            lacking[name] += exact(grads)[name].astype(np.float64) - total
    own = cut_rows([TensorKey(name, s, int(np.prod(s))) for name, s in SHAPES.items()], ranks)
    for name, lack in lacking.items():
        residuals = [one.state_dict()["residual"][name] for one in of_ranks]
        np.testing.assert_allclose(sum(residuals), lack, atol=1e-4)
        for rank, residual in enumerate(residuals):
            for piece in own[rank]:
                if piece.key.name == name:
                    assert not residual[piece.begin : piece.end].any()
    assert any(lack.any() for lack in lacking.values())


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "spec", [*(f"ef21|{codec}" for codec in CODECS), "ef21(momentum=0.5)|int4"]
)
def test_sums_are_those_of_all_estimates(spec: str, ranks: int) -> None:
    """Also after steps at another number of ranks, where all ranks' estimates become their mean."""
    of_ranks = pipelines(spec, ranks)
    for number in range(8):
        if number == 4:
            states = [one.state_dict() for one in of_ranks]
            of_ranks = pipelines(spec, ranks + 1)
            for one in of_ranks:
                one.load_state_dict(states)
        for name, total in step(of_ranks, gradients(len(of_ranks), number)).items():
            estimates = [one.state_dict()["estimate"][name] for one in of_ranks]
            np.testing.assert_allclose(total, np.sum(estimates, axis=0), atol=1e-4)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    "spec",
    [
        *("residual|int4", "residual|topk(ratio=0.1)", "residual|globaltopk(ratio=0.1)"),
        *(
            "residual|qsgd(levels=3)",
            "residual|rotate|uniform(bits=3)",
            "residual|fp16",
            "ef21|int4",
        ),
    ],
)
def test_rows_beyond_the_limit_of_codecs(
    spec: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They travel in pieces, also where a row is too large itself ("one")."""
    monkeypatch.setattr(pieces, "is_cut", lambda numel: numel > 35)
    monkeypatch.setattr("gradcomp.runtime.resolve.is_cut", pieces.is_cut)
    monkeypatch.setattr("gradcomp.runtime.pipeline.is_cut", pieces.is_cut)
    monkeypatch.setattr(pieces, "_PIECE_NUMEL", 35)
    keys = [TensorKey(name, shape, int(np.prod(shape))) for name, shape in SHAPES.items()]
    for key in keys:
        found = [piece for chunk in cut_rows([key], ranks) for piece in chunk]
        assert all(0 < piece.numel <= 35 for piece in found)
        assert found[0].begin == 0
        assert found[-1].end == key.numel
        assert all(one.end == after.begin for one, after in itertools.pairwise(found))
    test_dense_sums_are_exact(ranks)
    if spec.startswith("ef21"):
        test_sums_are_those_of_all_estimates(spec, ranks)
    elif ranks > 1:
        test_unsent_parts_stay_with_their_senders(spec, ranks)


def test_own_rows_are_exact_with_differences() -> None:
    of_ranks = pipelines("ef21|sign", 2)
    for number in range(3):
        grads = gradients(2, number)
        step(of_ranks, grads)
        for one, begin, end in ((of_ranks[0], 0, 30 * 8), (of_ranks[1], 30 * 8, 60 * 8)):
            rows = one.state_dict()["estimate"]["even"][begin:end]
            expected = grads[one.rank]["even"].reshape(-1)[begin:end]
            np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6)


def test_a_value_that_is_not_finite_leaves_estimates() -> None:
    of_ranks = pipelines("ef21|int4", 2)
    for number in range(3):
        grads = gradients(2, number)
        if number == 1:
            for grad in grads[0].values():
                grad[0] = np.nan
        sums = step(of_ranks, grads)
        for name, total in sums.items():
            assert np.isfinite(total).all() or number == 1, name
    for one in of_ranks:
        for kind in ("estimate", "estimate_rows"):
            assert all(np.isfinite(array).all() for array in one.state_dict()[kind].values())


@pytest.mark.parametrize("there", [{0}, {1, 2}])
def test_sums_and_states_are_those_of_the_host(there: set[int]) -> None:
    """Ranks on devices that take some of the tensors, next to ranks on the host."""
    spec = "residual(beta=0.9,gamma=0.8)|topk(ratio=0.1)"
    config = config_of(spec, device="auto")
    mixed = [Pipeline(config, rank, 3, scatters=True) for rank in range(3)]
    alone = pipelines(spec, 3)
    devices = {rank: CoreDevice(least=40) for rank in there}
    for number in range(3):
        grads = gradients(3, number)
        rounds = []
        for rank, (pipeline, own) in enumerate(zip(mixed, grads, strict=True)):
            resolved = pipeline.resolve_all(SHAPES)
            device = devices.get(rank, HOST)
            given = {
                name: device.from_host(grad)
                if pipeline.on_device(resolved[name], device)
                else grad.copy()
                for name, grad in own.items()
            }
            rounds.append(pipeline.bucket_round("unit", given, overwrite=True, resolved=resolved))
        expected = step(alone, grads)
        for name, *parts in zip(SHAPES, *run_rounds(rounds), strict=True):
            total = np.concatenate([device_of(part).to_host(part) for part in parts])
            assert total.tobytes() == expected[name].tobytes(), f"{name} in step {number}"
        for one, other in zip(mixed, alone, strict=True):
            assert residuals(one) == residuals(other)
    for rank, device in devices.items():
        assert f"give {4 if rank == 0 else 3}" in device.log  # 'one' has a single row


def test_another_number_of_ranks_applies_the_rest() -> None:
    """The mean over ranks of all that is still to be applied does not change."""
    three = pipelines("residual|topk(ratio=0.1)", 3)
    step(three, gradients(3))
    states = [one.state_dict() for one in three]
    two = pipelines("residual|identity", 2)
    for one in two:
        one.load_state_dict(states)
    zeros = [{name: np.zeros_like(grad) for name, grad in gradients(1)[0].items()}] * 2
    sums = step(two, [dict(one) for one in zeros])
    for name, total in sums.items():
        expected = sum(one["residual"][name] for one in states) / 3 * 2
        np.testing.assert_allclose(total, expected, atol=1e-6)


def test_bytes_are_those_for_other_ranks() -> None:
    (first, second) = pipelines("int4", 2)
    shape = (64, 256)
    given = {"w": np.ones(shape, np.float32)}
    sums = run_rounds([first.bucket_round("u", given), second.bucket_round("u", given)])
    assert [part.size for (part,) in sums] == [32 * 256] * 2
    assert 32 * 128 < first.stats.sent_bytes["alltoall"] < 4 * 32 * 256 / 7


def test_a_damaged_frame_names_its_sender() -> None:
    of_ranks = pipelines("int4", 3)
    rounds = [
        one.bucket_round("u", given) for one, given in zip(of_ranks, gradients(3), strict=True)
    ]
    requests = [next(one) for one in rounds]
    replies = []
    for request in requests:
        assert isinstance(request, AllToAll)
        replies.append(np.split(request.data, np.cumsum(request.splits)[:-1])[1])
    replies[2] = replies[2].copy()
    replies[2][40] ^= 1
    with pytest.raises(WireError, match="the frame of rank 2 for 'even'"):
        rounds[1].send(replies)


def test_specs_that_need_whole_tensors_are_refused() -> None:
    for spec, word in (
        ("powersgd(rank=2)", "makes its own exchanges"),
        ("dgc(ratio=0.01)", "leave the momentum to the optimizer"),
    ):
        with pytest.raises(ConfigError, match=f"compress.default: .*{word}"):
            Pipeline(configured(spec), 0, 2, scatters=True)
    with pytest.raises(ConfigError, match="has no exchange: sra; remove it"):
        Pipeline(configured("int4", exchange="sra"), 0, 2, scatters=True)
