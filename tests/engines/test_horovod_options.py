"""Options of the stock optimizer with compression, on real Horovod; see the cases."""

from __future__ import annotations

from pathlib import Path

import horovod.torch as hvd
import pytest
from launch import CaseJob
from workers import (
    adasum,
    apart,
    dgc,
    encoder_thread,
    exchange,
    horovod_device,
    low_rank,
    options,
    policy,
    process_sets,
    profiles,
    refusals,
    rounds,
    schedules,
    two_level,
    uneven,
)

from gradcomp import Config
from gradcomp.errors import ConfigError, GradcompError
from horovod_compressors.torch import Compression


@pytest.mark.parametrize("case", options.cases)
def test_option(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


def test_profiles_are_written(gloo2: CaseJob, shared: Path) -> None:
    gloo2.check("profile")
    profiles.check_files(shared / "profile", 2)


@pytest.mark.parametrize("case", apart.cases)
def test_ranks_apart(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", refusals.cases)
def test_refusal(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", rounds.cases)
def test_rounds(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", low_rank.cases)
@pytest.mark.parametrize("name", ["gloo2", pytest.param("mpi2", marks=pytest.mark.full)])
def test_low_rank(name: str, case: str, request: pytest.FixtureRequest) -> None:
    job: CaseJob = request.getfixturevalue(name)
    job.check(case)


@pytest.mark.parametrize("case", exchange.cases)
@pytest.mark.parametrize("name", ["gloo2", "gloo3", "gloo4", "mpi2"])
def test_exchange(name: str, case: str, request: pytest.FixtureRequest) -> None:
    job: CaseJob = request.getfixturevalue(name)
    job.check(case)


@pytest.mark.parametrize("case", two_level.cases)
def test_two_level(gloo4: CaseJob, case: str) -> None:
    gloo4.check(case)


@pytest.mark.full
@pytest.mark.parametrize("case", two_level.basic)
def test_two_level_on_mpi(mpi4: CaseJob, case: str) -> None:
    mpi4.check(case)


NODES = "nodes_are_those_of_horovod"


def test_nodes(gloo4: CaseJob) -> None:
    assert gloo4.check(NODES) == [[0, 2], [0, 2], [1, 2], [1, 2]]


@pytest.mark.full
def test_nodes_on_mpi(mpi4: CaseJob) -> None:
    assert mpi4.check(NODES) == [[0, 4]] * 4


@pytest.mark.parametrize("case", dgc.cases)
def test_dgc(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", schedules.cases)
def test_schedules(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", horovod_device.cases)
def test_device(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", encoder_thread.cases)
def test_encoder_thread(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", uneven.cases)
def test_uneven(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", policy.cases)
def test_policy(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", process_sets.cases)
def test_process_sets(gloo3: CaseJob, case: str) -> None:
    gloo3.check(case)


@pytest.mark.parametrize("case", adasum.cases)
def test_adasum(mpi2: CaseJob, case: str) -> None:
    mpi2.check(case)


def test_horovod_that_is_not_initialized() -> None:
    assert not hvd.is_initialized()
    with pytest.raises(GradcompError, match=r"call hvd\.init\(\) first"):
        _ = Compression("fp16").stats


def test_from_config_takes_a_config() -> None:
    config = Config.from_spec("topk(ratio=0.1)")
    assert Compression.from_config(config).config is config
    for arguments, message in (
        ((config, ["seed=4"]), r"overrides are \['seed=4'\], and change files only: .*load_config"),
        (
            ({"version": 1},),
            r"paths is \{'version': 1\}; it must be the path of a YAML file, a list",
        ),
        (([config],), "it must be the path of a YAML file, a list of paths, or a gradcomp.Config"),
        ((3,), "paths is 3; it must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            Compression.from_config(*arguments)  # type: ignore[arg-type]
