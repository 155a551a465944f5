"""Mixed precision: skipped steps and changes of the loss scale."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Config, ConfigError, Loopback

SHAPE = (64, 70)
SPECS = (
    "residual|topk(ratio=0.02)",
    "residual|randomk(ratio=0.02)",
    "residual|sign",
    "residual|sketch(ratio=0.2)",
    "momentum_correction|topk(ratio=0.02)",
    "signum|sign",
    "powersgd(rank=2,start_step=0)",
    "powersgd(rank=2,start_step=0,batched=true)",
    "powersgd(rank=2,start_step=0,variant=library)",
    "residual|chunk_allreduce(ratio=0.05)",
    "residual|qsgd(levels=7)",
    "residual|int8",
    "threshold(tau=100)",
    "ef21|topk(ratio=0.02)",
    "ef21(momentum=0.9)|int8",
    "ef21(momentum=0.9)|randomk(ratio=0.02)",
    "ef21|powersgd(rank=2,start_step=0)",
)


def gradients(step: int, scale: float) -> list[np.ndarray]:
    """Scaled gradients of two ranks; the scale is a power of two, so that it rounds nothing."""
    return [
        np.float32(scale) * np.random.default_rng([rank, step]).standard_normal(SHAPE, np.float32)
        for rank in range(2)
    ]


def configured(spec: str, exchange: str = "auto") -> Config:
    return Config.model_validate(
        {"version": 1, "compress": {"default": spec, "exchange": exchange}}
    )


def arrays(loop: Loopback, scale: float) -> list[dict[str, bytes]]:
    """The state that is proportional to the gradient, without the scale."""
    return [
        {
            kind: (rank.state_dict()[kind]["w"] / np.float32(scale)).tobytes()
            for kind in ("residual", "momentum")
            if "w" in rank.state_dict()[kind]
        }
        for rank in loop.ranks
    ]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("spec", SPECS)
def test_all_ranks_see_an_overflow_and_memories_forget_the_step(spec: str, bad: float) -> None:
    loop = Loopback(configured(spec), 2)
    loop.set_loss_scale(1024.0)
    for step in range(2):
        loop.set_loss_scale(1024.0)
        loop.step({"w": gradients(step, 1024.0)})
    before = arrays(loop, 1024.0)
    loop.set_loss_scale(1024.0)
    grads = gradients(2, 1024.0)
    grads[1][5, 7] = bad
    for average in loop.step({"w": grads})["w"]:
        assert not np.isfinite(average).all()
    loop.set_loss_scale(512.0)
    assert arrays(loop, 512.0) == before


@pytest.mark.parametrize(
    "spec",
    [
        "residual|topk(ratio=0.02)",
        "momentum_correction|topk(k=99)",
        "powersgd(rank=2,start_step=0)",
        "powersgd(rank=2,start_step=0,variant=library)",
    ],
)
def test_a_change_of_scale_changes_no_update(spec: str) -> None:
    plain, scaled = Loopback(configured(spec), 2), Loopback(configured(spec), 2)
    for step, scale in enumerate((1024.0, 1024.0, 2048.0, 4096.0, 4096.0)):
        scaled.set_loss_scale(scale)
        expected = plain.step({"w": gradients(step, 1.0)})["w"][0]
        average = scaled.step({"w": gradients(step, scale)})["w"][0]
        assert (average / np.float32(scale)).tobytes() == expected.tobytes()


def test_a_resumed_job_continues_at_its_scale() -> None:
    first, second = (Loopback(configured("residual|topk(ratio=0.02)"), 2) for _ in range(2))
    first.set_loss_scale(1024.0)
    first.step({"w": gradients(0, 1024.0)})
    for old, new in zip(first.ranks, second.ranks, strict=True):
        new.load_state_dict(old.state_dict())
    results = []
    for loop in (first, second):
        loop.set_loss_scale(2048.0)
        results.append(loop.step({"w": gradients(1, 2048.0)})["w"][0].tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_out_of_range_is_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match=r"loss scale is .*; it must be above 0 and finite"):
        Loopback("fp16", 1).set_loss_scale(scale)


def test_exchanges_that_may_lose_a_nan_are_refused() -> None:
    loop = Loopback(configured("residual|randomk(ratio=0.1)", "sra"), 2)
    with pytest.raises(ConfigError, match="with exchange sra may lose a NaN"):
        loop.set_loss_scale(2.0)
