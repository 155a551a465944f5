"""The engine of `gradcomp advise`: which requests it serves together, and which cores it takes."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from gradcomp.tools.advise.calibrate import Speeds
from gradcomp.tools.advise.predict import UNCOMPRESSED, Job, predict
from gradcomp.tools.advise.wire import ENGINES, EngineCosts, KindCost, Wire
from gradcomp.tools.model_shapes import model_shapes
from gradcomp.tools.step_model import Link, StepTime
from support.speeds import GATHERED, PASSES, speeds_of

FAST = Link(math.inf)


@pytest.fixture(scope="module")
def gathered() -> Speeds:
    return speeds_of(*GATHERED)


def costs(request: float, before: float = 0.0, fuses: bool = False) -> EngineCosts:
    """An engine with requests that all cost the same."""
    return EngineCosts({"allgather": KindCost(request, before, 0.0)}, fuses)


@pytest.mark.parametrize("fuses", [True, False])
def test_requests_of_a_kind_that_come_together_are_served_together(fuses: bool) -> None:
    wire = Wire(FAST, costs(1.0, before=0.125, fuses=fuses))
    kinds = ["allgather", "allreduce", "allgather", "allreduce", "alltoall", "alltoall"]
    numbers = [wire.submit(0.1 * i, kind, 1, 2) for i, kind in enumerate(kinds)]
    done = [wire.done(number) for number in numbers]
    together = [1.125, 2.25, 2.375, 2.5, 3.5625, 4.625]
    assert done == (together if fuses else [1.125, 2.25, 3.375, 4.5, 5.5625, 6.625])


def test_a_request_that_comes_later_is_served_by_itself() -> None:
    wire = Wire(FAST, costs(1.0, fuses=True))
    numbers = [wire.submit(at, "allgather", 8, 2) for at in (0.0, 1.0, 1.5)]
    assert [wire.done(number) for number in numbers] == [1.0, 1.0, 2.5]
    assert wire.served.engine == 2.0


def step(job: Job, speeds: Speeds) -> StepTime:
    return predict(job, *GATHERED, speeds)


def job(cores: float, engine: EngineCosts, ranks: int = 4, compute: float = 0.0) -> Job:
    return Job(model_shapes("resnet20"), ranks, FAST, engine, compute, cores=cores)


@pytest.mark.parametrize(("cores", "part"), [(0.5, 1.0), (1.0, 1.0), (1.5, 0.5), (2.0, 0.0)])
def test_own_work_waits_for_the_engine_on_the_same_cores(
    cores: float, part: float, gathered: Speeds
) -> None:
    idle, busy, full = (step(job(cores, costs(one)), gathered) for one in (0.0, 1e-6, 1.0))
    own = sum(idle.stages[stage] for stage in ("encode", "decode", "copy"))
    assert idle.seconds == pytest.approx(own)
    served = {one: step(job(2.0, costs(one)), gathered).stages["engine"] for one in (1e-6, 1.0)}
    assert busy.stages["engine"] == pytest.approx((1 + part) * served[1e-6])
    # It waits no longer than it works itself.
    assert full.stages["engine"] == pytest.approx(served[1.0] + part * own)
    # Computation on an accelerator leaves the cores to the engine.
    beside = step(job(cores, costs(1e-6), compute=99 * own), gathered)
    assert beside.stages["engine"] == pytest.approx((1 + part / 100) * served[1e-6])


def test_waiting_for_the_link_takes_no_cores(gathered: Speeds) -> None:
    slow, fast = (
        step(replace(job(0.5, costs(0.0)), link=link), gathered) for link in (Link(1e6), FAST)
    )
    assert slow.stages["engine"] == fast.stages["engine"] == 0


@pytest.mark.parametrize(("cores", "part"), [(0.5, 0.8), (1.0, 0.4), (1.5, 0.2), (2.0, 0.0)])
def test_an_idle_engine_takes_cores(cores: float, part: float, gathered: Speeds) -> None:
    idle = step(job(cores, replace(costs(0.0), idle_cores=0.4)), gathered)
    own = sum(idle.stages[stage] for stage in ("encode", "decode", "copy"))
    assert idle.seconds == pytest.approx((1 + part) * own)
    assert idle.stages["engine"] == pytest.approx(part * own)
    alone = step(job(cores, replace(costs(0.0), idle_cores=0.4), ranks=1), gathered)
    assert alone.stages["engine"] == 0


@pytest.mark.parametrize("begin", [0.0, 0.25, 1.0])
def test_a_wait_without_a_pause_slows_the_engines_work(begin: float) -> None:
    wire = Wire(Link(8.0), costs(0.0, before=0.25), spins_from=begin, spin=1.0)
    # A second of the link, after 0.25 s of work.
    assert wire.done(wire.submit(0.0, "allgather", 1, 2)) == pytest.approx(
        1.25 + 0.25 * (1.25 - begin) / 1.25
    )


def test_only_the_stock_wait_spins(gathered: Speeds) -> None:
    one = job(0.5, ENGINES["horovod"])
    naps = replace(one, costs=replace(one.costs, spins=False))
    assert predict(one, *GATHERED, gathered) == predict(naps, *GATHERED, gathered)
    assert predict(one, UNCOMPRESSED).seconds > predict(naps, UNCOMPRESSED).seconds
    two = (replace(each, cores=2.0) for each in (one, naps))
    assert len({predict(each, UNCOMPRESSED).seconds for each in two}) == 1


def test_ranks_that_share_cores_slow_the_engine() -> None:
    slowed = ENGINES["horovod"].slowed(2.0).of("allgather")
    alone = ENGINES["horovod"].of("allgather")
    assert slowed == KindCost(2 * alone.request, 2 * alone.before_byte, 2 * alone.beside_byte)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_gradient_costs_python(engine: str, gathered: Speeds) -> None:
    one = job(2.0, ENGINES[engine], ranks=1)
    free = replace(one, costs=replace(one.costs, gradient=0.0))
    python = step(one, gathered).seconds - step(free, gathered).seconds
    assert python == pytest.approx(len(one.shapes) * one.costs.gradient)
    assert predict(one, UNCOMPRESSED) == predict(free, UNCOMPRESSED)


CORES = (4.0, 2.0, 1.5, 1.0, 0.5, 0.25)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("compute", [0.0, 0.3])
def test_a_step_is_no_longer_than_its_stages(engine: str, compute: float, gathered: Speeds) -> None:
    for cores in CORES[1:5]:
        for rate in (1e6, math.inf):
            one = replace(job(cores, ENGINES[engine], compute=compute), link=Link(rate))
            assert step(one, gathered).hidden >= -1e-9


@pytest.mark.parametrize("engine", ENGINES)
def test_fewer_cores_are_never_faster(engine: str, gathered: Speeds) -> None:
    steps = [step(job(cores, ENGINES[engine]), gathered).seconds for cores in CORES]
    assert steps[0] == steps[1]
    assert steps == sorted(steps)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("compute", [0.0, 0.05, 0.3])
def test_a_faster_link_is_never_slower_on_shared_cores(
    engine: str, compute: float, gathered: Speeds
) -> None:
    for cores in (0.5, 1.0):
        one = job(cores, ENGINES[engine], compute=compute)
        rates = [10.0**power for power in range(5, 12)]
        steps = [step(replace(one, link=Link(rate)), gathered).seconds for rate in rates]
        assert steps == sorted(steps, reverse=True)


NEW_PAGES = f"""
import resource
import numpy as np
from gradcomp.tools.advise import calibrate
calibrate._PASSES = {PASSES}
calibrate.measure_speeds([("fp16", "reduce")])
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(1 << 20, np.float32) for _ in range(8)]
    del arrays
    found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(found * resource.getpagesize() / (8 << 22))
"""


def test_averages_reuse_memory_while_speeds_are_measured() -> None:
    command = [sys.executable, "-c", NEW_PAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.1
