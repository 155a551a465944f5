"""The sweep of benchmarks/e2e, on real hosts where this machine can have them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from launch import HERE

from netlab import Lab


def test_quick(tmp_path: Path) -> None:
    benchmark = str(HERE.parents[1] / "benchmarks/e2e")
    done = subprocess.run(
        [sys.executable, benchmark, "--quick", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # 1 where bytes were miscounted
    simulated = bool(Lab.unavailable())
    assert ("SIMULATED" in done.stdout) == simulated
    rows = {row["contender"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    assert set(rows) == {"Horovod", "Horovod fp16", "top-k 10%"}
    for row in rows.values():
        assert row.get("simulated", False) == simulated
        assert row["median_seconds"] > 0
    assert rows["top-k 10%"]["interface_bytes"] < rows["Horovod"]["interface_bytes"] / 5
    assert (tmp_path / "resnet50-2.png").exists()
    assert "| top-k 10% |" in (tmp_path / "resnet50-2.md").read_text()
