"""Every registered codec, and algorithms, on real Horovod: all ranks keep the same parameters, to
the last bit, and compute what the loopback computes."""

from __future__ import annotations

import pytest
from launch import CaseJob
from workers.specs import SPECS


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", ["gloo2", "gloo3", "mpi2"])
def test_many_steps(name: str, spec: str, request: pytest.FixtureRequest) -> None:
    job: CaseJob = request.getfixturevalue(name)
    of_ranks = [values[spec] for values in job.check("replicas")]
    assert all(values["identical"] for values in of_ranks)
    assert all(values["moved"] > 0 for values in of_ranks)
    assert of_ranks[0]["differences"] == []
