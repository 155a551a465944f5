"""The timed steps of benchmarks/proof on real processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from workers.ddp_model import join
from workers.harness import Cases

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from proof.cells import AUTO, SPECS, TASKS, Setup
from proof.timed_rank import prepare, seconds_of
from proof.times import ALONE
from proof.training import UNCOMPRESSED
from training.tasks.data import load_digits_images
from training.tasks.models import digits_cnn

cases = Cases()


@cases
def steps_of_all_specs_are_timed() -> None:
    join()
    rates = {"sgd": 0.05, "adamw": 1e-3}
    setup = Setup("digits", load_digits_images, digits_cnn, 4, rates, bits=False)
    names = [ALONE, *SPECS]
    order = {"task": "digits", "optimizer": "adamw", "of": 400, "steps": dict.fromkeys(names, 2)}
    with mock.patch.dict(TASKS, digits=setup):
        found = {name: seconds_of(name, order) for name in names}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values()), found
    first, second = _of_ranks(found)
    assert first == second  # those of the slowest rank


@cases
def steps_average_unless_nothing_is_sent() -> None:
    join()
    for name, averages in ((ALONE, False), (UNCOMPRESSED, True), (AUTO, True)):
        torch.manual_seed(0)
        model = digits_cnn(10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        module, after = prepare(name, model, optimizer)
        module(torch.full((2, 1, 8, 8), 1.0 + dist.get_rank())).sum().backward()
        optimizer.step()
        after()
        first, second = _of_ranks([x.sum().item() for x in model.parameters()])
        assert (first == second) == averages, name


def _of_ranks(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
