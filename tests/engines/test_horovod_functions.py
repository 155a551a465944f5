"""Jobs of Horovod that a script starts: `horovod.run`, and the executors on Ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import ENVIRONMENT, HERE, ROOT, Finished, run

from elastic.job import rows_in
from elastic.laws import check_replicas, check_resets, check_steps, complete, lives_of

PATHS = {"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}:{ENVIRONMENT['PYTHONPATH']}"}
# Horovod 0.28.1 uses what Ray 2.60 calls deprecated.
RAY = {**PATHS, "PYTHONWARNINGS": "ignore::DeprecationWarning", "RAY_AUTH_MODE": "disabled"}


def check_example(finished: Finished) -> None:
    assert finished.status == 0, finished.output
    (found,) = re.findall(
        r"test accuracy ([0-9.]+), ([0-9.]+) times fewer bytes, 2 ranks", finished.output
    )
    accuracy, ratio = map(float, found)
    assert accuracy > 0.7
    assert ratio > 5


def test_horovod_run() -> None:
    example = ROOT / "examples/horovod_run_digits.py"
    check_example(run(["-W", "error", example, "--epochs", "4"], environment=PATHS))


@pytest.mark.full
def test_ray() -> None:
    example = ROOT / "examples/ray_horovod_digits.py"
    check_example(run([example, "--epochs", "4"], environment=RAY))


@pytest.mark.full
def test_elastic_ray(tmp_path: Path) -> None:
    """Slots come and go: parameters are equal after every step, and residuals are kept."""
    driver = HERE / "workers/ray_elastic.py"
    finished = run([driver, tmp_path], environment={**RAY, "PYTHONHASHSEED": "0"})
    assert finished.status == 0, finished.output
    lives = lives_of(rows_in(tmp_path / "rows"))
    sizes = [next(iter(complete(life).values()))[0]["size"] for life in lives]
    assert sizes == [1, 2, 1]
    check_replicas(lives)
    check_steps(lives)
    assert check_resets(lives) == 2
