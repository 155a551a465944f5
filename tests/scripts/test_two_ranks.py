"""The DDP job of scripts/wheels/two_ranks.py, which ``scripts/release`` runs with each wheel."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pages.site_pages import ROOT

SAID = re.compile(r"PyTorch \S+, 2 ranks: loss (\S+), (\S+) times fewer bytes")


def test_the_job_of_a_release_runs_with_this_pytorch() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/wheels/two_ranks.py")],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = SAID.fullmatch(done.stdout.strip())
    assert said is not None, done.stdout
    loss, ratio = map(float, said.groups())
    assert loss == pytest.approx(0.036, rel=0.1)
    assert ratio == pytest.approx(59.5, rel=0.02)
