"""The engine of `gradcomp advise`: which requests it serves together, and whose cores it takes."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from gradcomp.tools.advise.calibrate import Speeds, measure_speeds
from gradcomp.tools.advise.cores import Cores
from gradcomp.tools.advise.predict import UNCOMPRESSED, Job, predict
from gradcomp.tools.advise.wire import ENGINES, EngineCosts, KindCost, Wire
from gradcomp.tools.model_shapes import model_shapes
from gradcomp.tools.step_model import Link

GATHERED = ("residual|topk(ratio=0.01)", "gather")
FAST, ENOUGH = Link(math.inf), Cores(2.0)


@pytest.fixture(scope="module")
def gathered() -> Speeds:
    return measure_speeds(*GATHERED)


def costs(request: float, before: float = 0.0, fuses: bool = False) -> EngineCosts:
    """An engine whose requests all cost the same."""
    return EngineCosts({"allgather": KindCost(request, before, 0.0)}, fuses)


@pytest.mark.parametrize("count", [0.25, 0.5, 1.0, 1.5, 2.0, 8.0])
@pytest.mark.parametrize("load", [0.0, 0.3, 0.5, 0.8, 1.0])
def test_own_work_and_engine_use_what_there_is(count: float, load: float) -> None:
    cores = Cores(count)
    own, engine = cores.own_speed(load), cores.engine_speed(load) * load
    assert own + engine == pytest.approx(min(1 + load, max(1.0, min(count, 2.0))))
    assert own >= engine or own >= 0.5  # neither takes more than its half from the other
    assert engine >= min(load, 0.5)


def test_ranks_share_the_cores_of_a_node() -> None:
    assert [Cores(count).slow for count in (0.25, 1.0, 4.0)] == [4.0, 1.0, 1.0]


@pytest.mark.parametrize("fuses", [True, False])
def test_waiting_requests_of_a_kind_are_served_together(fuses: bool) -> None:
    wire = Wire(FAST, costs(1.0, fuses=fuses), ENOUGH)
    kinds = ["allreduce", "allgather", "allreduce", "allgather", "allreduce"]
    numbers = [wire.submit(0.0, kind, 8, 2) for kind in kinds[:1]]
    numbers += [wire.submit(0.5, kind, 8, 2) for kind in kinds[1:]]
    done = [wire.done(number) for number in numbers]
    # The first one is served alone: the others have come later.
    assert done == ([1.0, 2.0, 3.0, 2.0, 3.0] if fuses else [1.0, 2.0, 3.0, 4.0, 5.0])


def test_a_request_that_comes_later_waits_for_the_next_cycle() -> None:
    wire = Wire(FAST, costs(1.0, fuses=True), ENOUGH)
    numbers = [wire.submit(at, "allgather", 8, 2) for at in (0.0, 0.1, 1.5)]
    assert [wire.done(number) for number in numbers] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("cores", "own", "engine"),
    [(0.5, 2.0, 2.0), (1.0, 2.0, 2.0), (1.5, 4 / 3, 4 / 3), (2.0, 1.0, 1.0)],
)
def test_engine_and_own_work_delay_each_other(cores: float, own: float, engine: float) -> None:
    wire = Wire(FAST, costs(1.0), Cores(cores))
    number = wire.submit(0.0, "allgather", 8, 2)
    assert wire.worked(0.0, 1.0) == pytest.approx(own)
    assert wire.done(number) == pytest.approx(engine)


def test_own_work_ends_before_the_engine_or_goes_on_after_it() -> None:
    for work, own, engine in [(0.25, 0.5, 1.25), (3.0, 4.0, 2.0)]:
        wire = Wire(FAST, costs(1.0), Cores(1.0))
        number = wire.submit(0.0, "allgather", 8, 2)
        assert wire.worked(0.0, work) == pytest.approx(own)
        assert wire.done(number) == pytest.approx(engine)


def test_waiting_for_the_link_takes_no_cores() -> None:
    wire = Wire(Link(8.0), costs(0.0), Cores(0.5))
    number = wire.submit(0.0, "allgather", 5, 2)
    assert wire.worked(0.0, 1.0) == 1.0
    assert wire.done(number) == 5.0


@pytest.mark.parametrize(("cores", "seconds"), [(0.5, 2.0), (1.0, 1 / 0.6), (2.0, 1.0)])
def test_an_idle_engine_takes_cores(cores: float, seconds: float) -> None:
    wire = Wire(FAST, replace(costs(1.0), idle_cores=0.4), Cores(cores))
    assert wire.worked(0.0, 1.0) == pytest.approx(seconds)
    assert wire.served.engine == pytest.approx(seconds - 1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_gradient_costs_python(engine: str, gathered: Speeds) -> None:
    shapes = model_shapes("resnet20")
    job = Job(shapes, 1, FAST, ENGINES[engine], cores=2.0)
    free = replace(job, costs=replace(job.costs, gradient=0.0))
    python = predict(job, *GATHERED, gathered).seconds - predict(free, *GATHERED, gathered).seconds
    assert python == pytest.approx(len(shapes) * job.costs.gradient)
    assert predict(job, UNCOMPRESSED) == predict(free, UNCOMPRESSED)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_is_no_longer_than_its_stages(engine: str, gathered: Speeds) -> None:
    for cores in (0.25, 0.5, 1.0, 1.5, 2.0):
        for rate in (1e6, 1e8, math.inf):
            for compute in (0.0, 0.3):
                job = Job(model_shapes("resnet20"), 4, Link(rate), ENGINES[engine], compute)
                found = predict(replace(job, cores=cores), *GATHERED, gathered)
                assert found.hidden >= -1e-9


@pytest.mark.parametrize("engine", ENGINES)
def test_fewer_cores_are_never_faster(engine: str, gathered: Speeds) -> None:
    job = Job(model_shapes("resnet20"), 4, Link(1e9), ENGINES[engine])
    steps = [
        predict(replace(job, cores=cores), *GATHERED, gathered).seconds
        for cores in (4.0, 2.0, 1.5, 1.0, 0.5, 0.25)
    ]
    assert steps[0] == steps[1]
    assert steps == sorted(steps)


NEW_PAGES = """
import resource
import numpy as np
from gradcomp.tools.advise.calibrate import measure_speeds
measure_speeds("fp16", "reduce")
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(1 << 20, np.float32) for _ in range(8)]
    del arrays
    found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(found * resource.getpagesize() / (8 << 22))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_averages_reuse_memory_while_speeds_are_measured() -> None:
    command = [sys.executable, "-c", NEW_PAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.1
