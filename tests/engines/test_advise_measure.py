"""`gradcomp advise --measure` in jobs of two ranks."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from launch import LAUNCHERS

from gradcomp import load_config
from gradcomp.tools.model_shapes import model_shapes
from support.forks import python

ADVISE = ["gradcomp", "advise", "resnet20", "--measure", "--spec", "fp16", "--json"]
ADVISE += ["--compute", "5", "--config", "config.yaml", "--save", "prior.yaml"]
CONFIG = "version: 1\ncompress: {default: residual|sign, policy: auto}\n"
LAUNCHED = {"horovod": "gloo", "torch": "torchrun"}


@pytest.mark.parametrize("engine", [pytest.param("horovod", marks=pytest.mark.full), "torch"])
def test_measured_links(engine: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    done = subprocess.run(
        [*LAUNCHERS[LAUNCHED[engine]](2), *python(), "-m", *ADVISE],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # horovodrun marks each line with its rank.
    lines = [line.split("<stdout>:", 1)[-1] for line in done.stdout.splitlines()]
    found = json.loads("\n".join(lines[lines.index("{") :]))
    assert (found["engine"], found["ranks"]) == (engine, 2)
    measured = found["measured"]
    kinds = {"allreduce float32", "allreduce float16", "allgather", "alltoall"}
    assert set(measured["request"]) == set(measured["byte"]) == kinds
    assert all(seconds > 0 for seconds in measured["request"].values())
    assert max(measured["byte"].values()) > 0
    (alone,) = (row for row in found["candidates"] if row["spec"] == "identity")
    elements = sum(map(math.prod, model_shapes("resnet20").values()))
    assert alone["link_bytes"] == 4 * elements  # of a ring of two
    prior = load_config([tmp_path / "config.yaml", tmp_path / "prior.yaml"]).compress.prior
    assert prior is not None
    assert prior.ranks == 2
    # A step takes the computation at least.
    assert all(min(one.dense, one.fp16 or 0, one.compressed) > 0.005 for one in prior.groups)
    assert len(prior.groups) == 3
