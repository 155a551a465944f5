"""Tensors with more elements than codecs take."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gradcomp import Config, Loopback, Pipeline, _core
from gradcomp.exchange import pieces
from gradcomp.exchange.pieces import is_cut, pieces_of
from support.pipelines import configured

SPECS = (
    "fp16",
    "residual|topk(ratio=0.05)",
    "residual|sign",
    "residual|randomk(ratio=0.1)",
    "residual|adaptive(rate=0.5)",
    "residual|globaltopk(ratio=0.05)",
    "powersgd(rank=2,start_step=1)",
    "momentum_correction|topk(ratio=0.05)",
    "ef21(momentum=0.5)|topk(ratio=0.05)",
    "ef21|randomk(ratio=0.1)",
)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is far below that of the core, so that tensors of tests are beyond it."""
    monkeypatch.setattr(pieces, "is_cut", lambda numel: numel > 5000)
    monkeypatch.setattr("gradcomp.runtime.resolve.is_cut", pieces.is_cut)
    monkeypatch.setattr(pieces, "_PIECE_NUMEL", 2100)


@pytest.mark.parametrize(
    "shape",
    [
        (2**24, 64),
        (2**30,),
        (2**30 - 1 + 7,),
        (3, 2**29),
        (2, 3, 2**29),
        (2**31 + 1, 1),
        (1, 2**31),
    ],
)
def test_pieces_are_the_whole_tensor_in_order(shape: tuple[int, ...]) -> None:
    assert is_cut(math.prod(shape))
    parts = pieces_of("w", shape)
    assert parts[0].begin == 0
    assert parts[-1].end == np.prod(shape)
    for before, after in itertools.pairwise(parts):
        assert before.end == after.begin
    for number, part in enumerate(parts):
        assert part.key.name == f"w[{number}]"
        assert part.key.numel == np.prod(part.key.shape) == part.end - part.begin
        assert 0 < part.key.numel <= 2**28
    assert (
        max(part.key.numel for part in parts) < 1.01 * min(part.key.numel for part in parts) + 2**29
    )


def test_the_limit_is_that_of_codecs() -> None:
    assert not is_cut(_core.MAX_NUMEL)
    assert is_cut(_core.MAX_NUMEL + 1)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("spec", SPECS)
def test_pieces_are_averaged_as_tensors_of_their_own(spec: str) -> None:
    whole, apart = (
        Loopback(spec, 2),
        Loopback(configured(spec, rules=[{"match": {}, "use": spec}]), 2),
    )
    shape = (100, 64)
    parts = pieces_of("w", shape)
    for step in range(4):
        grads = [
            np.random.default_rng([rank, step]).standard_normal(shape, np.float32)
            for rank in range(2)
        ]
        small = [np.full((64, 70), rank + step, np.float32) for rank in range(2)]
        found = whole.step({"w": grads, "v": small})
        for part in parts:
            given = [
                grad.reshape(-1)[part.begin : part.end].reshape(part.key.shape) for grad in grads
            ]
            (expected, _) = apart.step({part.key.name: given})[part.key.name]
            for average in found["w"]:
                assert average.shape == shape
                np.testing.assert_array_equal(
                    average.reshape(-1)[part.begin : part.end], expected.reshape(-1)
                )
    assert whole.ranks[0].state_dict()["rounds"] == {
        "w": 4,
        "v": 4,
        **{part.key.name: 4 for part in parts},
    }


@pytest.mark.usefixtures("_small")
def test_pieces_hand_their_residuals_over() -> None:
    """Nothing is lost when a schedule goes on to dense gradients."""
    schedule = [{"use": "residual|topk(ratio=0.01)"}, {"use": "identity", "from_step": 3}]
    loop = Loopback(Config.from_mapping({"version": 1, "compress": {"default": schedule}}), 2)
    given, applied = np.zeros((100, 64)), np.zeros((100, 64))
    for step in range(5):
        grads = [
            np.random.default_rng([rank, step]).standard_normal((100, 64), np.float32)
            for rank in range(2)
        ]
        given += np.mean(grads, axis=0)
        applied += loop.step({"w": grads})["w"][0]
    np.testing.assert_allclose(applied, given, atol=1e-4)


@pytest.mark.usefixtures("_small")
def test_a_discarded_step_of_pieces() -> None:
    loop = Loopback("residual|topk(ratio=0.01)", 2)
    for rank in loop.ranks:
        rank.last_step.allow_discard()
    grads = [np.full((100, 64), 1 + rank, np.float32) for rank in range(2)]
    loop.step({"w": grads})
    before = loop.ranks[0].state_dict()
    loop.step({"w": [100 * grad for grad in grads]})
    loop.discard_step()
    after = loop.ranks[0].state_dict()
    assert after["rounds"] == before["rounds"]
    for name, residual in before["residual"].items():
        np.testing.assert_array_equal(after["residual"][name], residual)


@pytest.mark.usefixtures("_small")
def test_pieces_stay_on_the_host_and_out_of_buckets() -> None:
    pipeline = Pipeline("topk(ratio=0.01)", 0, 2)
    resolved = pipeline.resolve_all({"w": (100, 64), "v": (64, 70)})
    assert resolved["w"].cut
    assert not resolved["v"].cut
    assert pipeline.buckets(resolved) == [("v",), ("w",)]
