"""`gradcomp advise --measure` in jobs of two ranks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch import HERE

from gradcomp.tools.model_shapes import model_shapes

ADVISE = ["gradcomp", "advise", "resnet20", "--measure", "--spec", "fp16", "--json"]
JOBS = {
    "horovod": [
        *(sys.executable, str(HERE / "horovodrun.py"), "-np", "2", "--gloo"),
        *(sys.executable, "-m", *ADVISE),
    ],
    "torch": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", *ADVISE],
}


@pytest.mark.parametrize("engine", JOBS)
def test_measured_links(engine: str, tmp_path: Path) -> None:
    done = subprocess.run(
        JOBS[engine],
        capture_output=True,
        text=True,
        timeout=500,
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
