"""Steps that a script takes back: the job goes on as if they had never been."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcomp import Config, ConfigError, Loopback, StateError

SHAPES = {"w": (64, 70), "v": (70, 64), "bias": (9,)}
SPECS = (
    "identity",
    "fp16",
    "residual|topk(ratio=0.02)",
    "residual|randomk(ratio=0.02)",
    "residual|sign",
    "residual|polar(rate=0.0625)",
    "residual|adaptive(rate=0.25)",
    "residual|adaptive(rate=0.25,preset=basis)",
    "residual(average=0.5)|topk(ratio=0.02)",
    "residual|sketch(ratio=0.2)",
    "residual(lr=scale)|topk(ratio=0.02)",
    "momentum_correction|topk(ratio=0.02)",
    "signum|sign",
    "powersgd(rank=2,start_step=0)",
    "powersgd(rank=2,start_step=0,batched=true)",
    "powersgd(rank=2,start_step=3)",
    "residual|chunk_allreduce(ratio=0.05)",
    "signsgd_mv",
    "ef21|topk(ratio=0.02)",
    "ef21(momentum=0.9)|adaptive(rate=0.25)",
    "ef21|randomk(ratio=0.02)",
    "ef21|powersgd(rank=2,start_step=0)",
)


def step(loop: Loopback, number: int, scale: float = 1) -> dict[str, list[np.ndarray]]:
    loop.set_lr(0.1 / (1 + number))
    return loop.step(
        {
            name: [
                np.float32(scale)
                * np.random.default_rng([rank, number]).standard_normal(shape, np.float32)
                for rank in range(2)
            ]
            for name, shape in SHAPES.items()
        }
    )


def states(loop: Loopback) -> list[dict[str, Any]]:
    return [
        {
            key: {name: np.asarray(array).tobytes() for name, array in value.items()}
            if isinstance(value, dict) and key not in ("rounds", "specs")
            else value
            for key, value in rank.state_dict().items()
        }
        for rank in loop.ranks
    ]


@pytest.mark.parametrize("discarded", [0, 1, 4])
@pytest.mark.parametrize("spec", SPECS)
def test_a_discarded_step_leaves_no_trace(spec: str, discarded: int) -> None:
    kept, plain = Loopback(spec, 2), Loopback(spec, 2)
    kept.allow_discard()
    for number in range(6):
        if number == discarded:
            before = states(kept)
            for spike in range(2):
                step(kept, 100 + spike, scale=1000)
                kept.discard_step()
                assert states(kept) == before
        averages, expected = step(kept, number), step(plain, number)
        for name, of_ranks in expected.items():
            for average, wanted in zip(averages[name], of_ranks, strict=True):
                np.testing.assert_array_equal(average, wanted)
    assert states(kept) == states(plain)


def test_a_discarded_step_of_a_schedule() -> None:
    """The state of the spec before the change is there again, and so is the number of the step."""
    schedule = [
        {"use": "residual|topk(ratio=0.1)"},
        {"use": "identity", "from_step": 2},
        {"use": "residual|sign", "from_step": 4},
    ]
    config = Config.from_mapping({"version": 1, "compress": {"default": schedule}})
    kept, plain = Loopback(config, 2), Loopback(config, 2)
    kept.allow_discard()
    for number in range(6):
        before = states(kept)
        step(kept, 100 + number)
        kept.discard_step()
        assert states(kept) == before
        step(kept, number)
        step(plain, number)
    assert states(kept) == states(plain)


def test_a_discarded_step_with_a_loss_scale() -> None:
    loop = Loopback("residual|topk(ratio=0.02)", 2)
    loop.allow_discard()
    loop.set_loss_scale(1024.0)
    step(loop, 0)
    before = states(loop)
    loop.set_loss_scale(1024.0)
    step(loop, 1)
    loop.discard_step()
    assert states(loop) == before


def test_there_must_be_a_step_to_discard() -> None:
    loop = Loopback("residual|topk(ratio=0.02)", 2)
    step(loop, 0)
    with pytest.raises(ConfigError, match=r"call allow_discard\(\) once"):
        loop.discard_step()
    loop.allow_discard()
    with pytest.raises(StateError, match="there is no step to discard"):
        loop.discard_step()
    step(loop, 1)
    loop.discard_step()
    with pytest.raises(StateError, match="there is no step to discard"):
        loop.discard_step()
    step(loop, 1)
    for rank in loop.ranks:
        rank.load_state_dict(rank.state_dict())
    with pytest.raises(StateError, match="there is no step to discard"):
        loop.discard_step()
