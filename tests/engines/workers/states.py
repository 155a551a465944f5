"""Checkpoints: saved by one job, loaded by later jobs with new processes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from workers import harness
from workers.harness import (
    MATRIX,
    Cases,
    averages,
    check_equal,
    check_same_on_all_ranks,
    gradients,
    refused,
)

from gradcomp.errors import StateError
from horovod_compressors.torch import Compression
from support.pipelines import configured, rules_of

save = Cases()
resume = Cases()
rescale = Cases()


class Training:
    """A model with a sparse, a seeded, a low-precision and a learning compressor, and a momentum."""

    def __init__(self) -> None:
        specs = {
            "sparse": "residual|topk(ratio=0.01)",
            "seeded": "randomk(ratio=0.1)",
            "both": "residual(beta=0.9)|randomk(ratio=0.1)",
            "half": "residual|fp16",
            "learned": "residual|adaptive(rate=0.5,preset=basis)",
        }
        rules = rules_of(specs, "{}")
        config = configured("identity", seed=5, rules=rules)
        self.params = {name: torch.nn.Parameter(torch.zeros(MATRIX)) for name in specs}
        self.compression = Compression(config, self.params.items())
        self.opt = hvd.DistributedOptimizer(
            torch.optim.SGD(list(self.params.values()), lr=0.01, momentum=0.9),
            named_parameters=self.params.items(),
            compression=self.compression,
        )
        self.step = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            averages(self.opt, self.params, gradients(self.params, self.step))
            self.step += 1

    def save(self, path: Path) -> None:
        state = {
            "params": {name: p.detach() for name, p in self.params.items()},
            "opt": self.opt.state_dict(),
            "step": self.step,
            "compression": self.compression.state_dict(),
        }
        torch.save(state, path)

    def load(self, states: list[Path]) -> None:
        """Load one file, this rank's own, or the files of all ranks."""
        loaded = [torch.load(path, weights_only=True) for path in states]
        state = loaded[0]
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(state["params"][name])
        self.opt.load_state_dict(state["opt"])
        self.step = state["step"]
        of_ranks = [one["compression"] for one in loaded]
        self.compression.load_state_dict(of_ranks[0] if len(of_ranks) == 1 else of_ranks)


def saved(step: int) -> list[Path]:
    """The files of the ranks of the job that saved."""
    return sorted(harness.shared.glob(f"step{step}-rank*.pt"))


@save
def save_at_10_and_at_20() -> None:
    training = Training()
    for step in (10, 20):
        training.train(10)
        training.save(harness.shared / f"step{step}-rank{hvd.rank()}.pt")
    residual = training.compression.state_dict()["residual"]
    assert sorted(residual) == ["both", "half", "learned", "sparse"]
    assert all(value.abs().max() > 0 for value in residual.values())


@save
def a_saved_state_does_not_change_later() -> None:
    training = Training()
    training.train(2)
    state = training.compression.state_dict()
    before = {name: value.clone() for name, value in state["residual"].items()}
    training.train(1)
    for name, value in state["residual"].items():
        check_equal(value, before[name], name)


@save
def a_state_can_be_loaded_before_the_first_step_and_after() -> None:
    """Loading copies the state."""
    straight = Training()
    straight.train(2)
    state = straight.compression.state_dict()
    for trained in (0, 3):
        other = Training()
        other.train(trained)
        other.compression.load_state_dict(state)
        again = other.compression.state_dict()
        assert again["rounds"] == state["rounds"]
        for name, value in state["residual"].items():
            check_equal(again["residual"][name], value, name)


@resume
def new_processes_resume_to_the_last_bit() -> None:
    training = Training()
    training.load([saved(10)[hvd.rank()]])
    training.train(10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "end.pt"
        training.save(path)
        _check_same_state(
            torch.load(path, weights_only=True),
            torch.load(saved(20)[hvd.rank()], weights_only=True),
        )


@resume
def the_list_of_all_states_resumes_to_the_last_bit_too() -> None:
    training = Training()
    training.load(saved(10)[::-1])
    training.train(10)
    straight = torch.load(saved(20)[hvd.rank()], weights_only=True)
    for name, p in training.params.items():
        check_equal(p.detach(), straight["params"][name], name)
    _check_same_state(training.compression.state_dict(), straight["compression"])


def _check_same_state(actual: Any, expected: Any, where: str = "") -> None:
    if isinstance(expected, dict):
        assert list(actual) == list(expected), where
        for key, value in expected.items():
            _check_same_state(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, torch.Tensor):
        check_equal(actual, expected, where)
    else:
        assert actual == expected, where


@resume
def the_state_of_another_rank_is_refused() -> None:
    training = Training()
    states = [torch.load(path, weights_only=True)["compression"] for path in saved(10)]
    me = hvd.rank()
    for rank, state in enumerate(states):
        if rank != me:
            refused(
                lambda state=state: training.compression.load_state_dict(state),
                StateError,
                f"of rank {rank} of 2, and this is rank {me} of 2",
                "load each rank's own state",
                "list of all 2 ranks' states",
            )
    refused(
        lambda: training.compression.load_state_dict([states[0], states[0]]),
        StateError,
        "each of the 2 ranks once; it holds ranks [0, 0]",
    )
    refused(lambda: training.compression.load_state_dict([]), StateError, "empty list")
    refused(
        lambda: training.compression.load_state_dict(training.opt.state_dict()),
        StateError,
        "not a compressor state",
    )
    # A refused state has left no trace.
    training.compression.load_state_dict(states[me])
    check_equal(
        training.compression.state_dict()["residual"]["sparse"], states[me]["residual"]["sparse"]
    )


@rescale
def another_world_size_takes_the_mean_of_the_residuals() -> None:
    training = Training()
    training.load(saved(10))
    before = [torch.load(path, weights_only=True)["compression"] for path in saved(10)]
    after = training.compression.state_dict()
    assert after["rounds"] == before[0]["rounds"]
    assert (after["rank"], after["world_size"]) == (hvd.rank(), hvd.size())
    for name, value in after["residual"].items():
        mean = sum(state["residual"][name] for state in before) / len(before)
        check_equal(value, mean, name)
    training.train(3)
    for name, p in training.params.items():
        check_same_on_all_ranks(p, name)


@rescale
def one_state_at_another_world_size_is_refused() -> None:
    state = torch.load(saved(10)[0], weights_only=True)["compression"]
    refused(
        lambda: Training().compression.load_state_dict(state),
        StateError,
        f"of rank 0 of 2, and this is rank {hvd.rank()} of {hvd.size()}",
        "list of all 2 ranks' states",
    )
