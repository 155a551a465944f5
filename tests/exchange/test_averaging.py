"""Averages over senders and clipping by the median norm, against float64 numpy in the loopback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gradcomp import Config, Loopback, Pipeline, get_codec
from gradcomp.errors import ConfigError, WireError
from gradcomp.exchange.patterns.gather import rank_seed
from gradcomp.exchange.rounds import TensorKey
from support.codecs import same_bits, settings_of_the_core
from support.pipelines import config_of

FloatArray = npt.NDArray[np.float32]

SHAPE = (90, 70)
KEY = TensorKey("w", SHAPE, 90 * 70)

SPARSE = [
    *["topk(ratio=0.1)", "topk(ratio=0.1,values=int8)|rice", "chunktopk(ratio=0.1,chunk=50)"],
    *["blocktopk(k=512)", "blocktopk(k=512,values=2bit)", "threshold(tau=1)", "adaq(ratio=0.1)"],
    *["randomk(ratio=0.2)", "sampled_topk(ratio=0.1)", "globaltopk(ratio=0.1)"],
]
CHOICES = [
    {"average": "senders"},
    {"clip": "median_norm"},
    {"average": "senders", "clip": "median_norm"},
]


def gradients(ranks: int, step: int = 0) -> list[FloatArray]:
    """Gradients of different norms."""
    rng = np.random.default_rng(step)
    scales = np.exp(rng.normal(size=ranks))
    return [(scale * rng.standard_normal(SHAPE)).astype(np.float32) for scale in scales]


def decoded(spec: str, grads: Sequence[FloatArray], step: int = 0) -> list[npt.NDArray[np.float64]]:
    """Every rank's tensor as it is sent."""
    codec = get_codec(spec)
    return [
        codec.decode(
            codec.encode(grad, seed=rank_seed(0, rank), step=step, tensor_id=KEY.tensor_id)
        ).astype(np.float64)
        for rank, grad in enumerate(grads)
    ]


def expected(
    tensors: Sequence[npt.NDArray[np.float64]], average: str = "ranks", clip: str = "none"
) -> npt.NDArray[np.float64]:
    """The average of tensors without zeros among their sent elements."""
    senders = np.sum([tensor != 0 for tensor in tensors], axis=0)
    if clip == "median_norm":
        norms = [np.linalg.norm(tensor) for tensor in tensors]
        median = sorted(norms)[(len(norms) - 1) // 2]
        tensors = [t * min(1.0, median / n) for t, n in zip(tensors, norms, strict=True)]
    total = np.sum(tensors, axis=0)
    return total / (np.maximum(senders, 1) if average == "senders" else len(tensors))


def check(spec: str, averages: Sequence[FloatArray], exact: npt.NDArray[np.float64]) -> None:
    for average in averages:
        assert same_bits(average, averages[0]), spec
    rounding = 1e-6 * np.abs(exact).max()
    np.testing.assert_allclose(averages[0].reshape(-1), np.ravel(exact), rtol=0, atol=rounding)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("spec", SPARSE)
def test_averages_of_sparse_codecs(spec: str, choice: dict[str, str], ranks: int) -> None:
    loop = Loopback(config_of(spec, exchange="gather", **choice), ranks)
    for step in range(2):
        grads = gradients(ranks, step)
        averages = loop.step({"w": grads})["w"]
        check(spec, averages, expected(decoded(spec, grads, step), **choice))


@pytest.mark.parametrize("spec", ["int8", "sign", "rotate|uniform(bits=4)", "fp16"])
def test_clipping_with_codecs_that_send_all_elements(spec: str) -> None:
    loop = Loopback(config_of(spec, exchange="gather", clip="median_norm"), 3)
    grads = gradients(3)
    averages = loop.step({"w": grads})["w"]
    check(spec, averages, expected(decoded(spec, grads), clip="median_norm"))


def test_a_zero_that_is_sent_counts() -> None:
    config = config_of("topk(k=2)", average="senders")
    grads = [np.array([5, 0, 0, 0, 0], np.float32), np.array([0, 0, 0, 2, 0], np.float32)]
    (average, _) = Loopback(config, 2).step({"w": grads})["w"]
    np.testing.assert_array_equal(average, [2.5, 0, 0, 2, 0])  # both ranks send the first element


def test_the_residual_is_that_without_them() -> None:
    spec = "residual(beta=0.95)|blocktopk(k=64,values=2bit)"
    loops = [
        Loopback(config_of(spec, **choice), 3)
        for choice in ({}, {"average": "senders", "clip": "median_norm"})
    ]
    for step in range(3):
        averages = [loop.step({"w": gradients(3, step)})["w"][0] for loop in loops]
    assert not np.array_equal(*averages)
    first, second = (loop.ranks[1].state_dict()["residual"]["w"] for loop in loops)
    assert same_bits(first, second)


def test_bits_depend_neither_on_threads_nor_on_the_instruction_set() -> None:
    config = config_of("blocktopk(k=512)", average="senders", clip="median_norm")
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal((300, 500)).astype(np.float32) * scale for scale in (1, 3, 2)]
    averages = {
        Loopback(config, 3).step({"w": grads})["w"][0].tobytes() for _ in settings_of_the_core()
    }
    assert len(averages) == 1


def test_a_nan_is_not_clipped_away() -> None:
    config = config_of("blocktopk(k=512)", average="senders", clip="median_norm")
    grads = gradients(3)
    for bad in (np.nan, np.inf):
        grads[1][5, 5] = bad
        for average in Loopback(config, 3).step({"w": grads})["w"]:
            assert not np.isfinite(average[5, 5])


def test_nodes_are_the_senders_of_two_levels() -> None:
    config = config_of(
        "topk(k=200)", exchange="two_level(gather)", ranks_per_node=2, average="senders"
    )
    grads = gradients(4)
    of_nodes = [(grads[0] + grads[1]) / 2, (grads[2] + grads[3]) / 2]
    averages = Loopback(config, 4).step({"w": grads})["w"]
    check("two_level", averages, expected(decoded("topk(k=200)", of_nodes), "senders"))


def test_rules_have_averages_of_their_own() -> None:
    rules = [
        {"match": {"name": "a"}, "use": "fp16", "average": "ranks"},
        {"match": {"name": "b"}, "use": "topk(k=9)", "average": "ranks"},
        {"match": {"name": "c"}, "use": "identity"},
    ]
    config = Config.from_mapping(
        {
            "version": 1,
            "compress": {"default": "topk(k=9)", "average": "senders", "rules": rules},
        }
    )
    grads = {name: gradients(2) for name in "abcd"}
    averages = Loopback(config, 2).step(grads)
    tensors = decoded("topk(k=9)", gradients(2))
    check("b", averages["b"], expected(tensors, "ranks"))
    check("d", averages["d"], expected(tensors, "senders"))
    np.testing.assert_array_equal(averages["c"][0], np.mean(gradients(2), axis=0))


def test_ranks_must_agree_about_them() -> None:
    texts = {config_of("topk(k=9)").digest_text()}
    for choice in CHOICES:
        texts.add(config_of("topk(k=9)", **choice).digest_text())
        rule = {"match": {"name": "a"}, "use": "topk(k=9)", **choice}
        compress = {"default": "topk(k=9)", "rules": [rule]}
        texts.add(Config.from_mapping({"version": 1, "compress": compress}).digest_text())
    assert len(texts) == 1 + 2 * len(CHOICES)


@pytest.mark.parametrize(
    ("spec", "compress", "part"),
    [
        ("int8", {"average": "senders"}, "'int8' sends all elements, so every rank is a sender"),
        ("fp16", {"average": "senders"}, "the exchange reduce"),
        ("randomk(k=9)", {"average": "senders"}, "use exchange: gather"),
        ("fp16", {"clip": "median_norm"}, "the exchange reduce"),
        ("topk(k=9)", {"average": "senders", "exchange": "sra"}, "the exchange sra"),
        (
            "topk(k=9)",
            {"clip": "median_norm", "exchange": "sparse_allreduce"},
            "use exchange: gather",
        ),
        ("topk(k=9)", {"average": "senders", "exchange": "two_level(sra)"}, "the exchange sra"),
        ("powersgd", {"clip": "median_norm"}, "in its own exchanges"),
        ("topk(k=9)", {"average": "senders", "policy": "auto"}, "use policy: always"),
        ("topk(k=9)", {"average": "sender"}, "ranks or senders"),
        ("topk(k=9)", {"clip": "mean_norm"}, "none or median_norm"),
    ],
)
def test_what_is_refused(spec: str, compress: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part.replace("(", r"\(")):
        config_of(spec, **compress)


def test_a_reduce_scatter_refuses_them() -> None:
    with pytest.raises(ConfigError, match="average: senders, and a reduce-scatter"):
        Pipeline(config_of("topk(k=9)", average="senders"), scatters=True)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_damaged_frame_names_its_rank(choice: dict[str, str]) -> None:
    config = config_of("topk(k=9)", **choice)
    rounds = [Pipeline(config, rank, 2).round("w", gradients(2)[rank]) for rank in range(2)]
    frames = [next(one).frame for one in rounds]
    frames[1] = frames[1].copy()
    frames[1][40] ^= 1
    with pytest.raises(WireError, match="rank 1 for 'w'"):
        rounds[0].send(frames)
