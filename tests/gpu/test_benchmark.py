"""benchmarks/gpu.py without a GPU, and its parts for one on CPU tensors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.processes import ROOT, run
from gpulab.report import bits_equal, verdict
from gpulab.steps import _backend

PRODUCT = "powersgd(rank=4): average and residual"
BENCHMARK = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*BENCHMARK, *arguments]
    return subprocess.run(command, text=True, capture_output=True, timeout=500, check=False)


def test_without_a_gpu_it_says_so_and_compares_bits(tmp_path: Path) -> None:
    done = benchmark("--quick", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("No GPU: bits by Triton's interpreter on small sizes")
    results = json.loads((tmp_path / "results.json").read_text())
    assert {row["name"] for row in results["bits"]} == {"half", "added"}
    cases = sum(row["cases"] for row in results["bits"])
    assert cases > 200
    assert done.stdout.endswith(f"bits: equal in {cases} cases\n")
    assert "targets" not in done.stdout


def test_a_wrong_part_is_refused() -> None:
    done = benchmark("--parts", "bits,speed")
    assert done.returncode == 2
    assert "got 'speed'; there are bits, speeds, steps" in done.stderr


@pytest.mark.full
def test_its_parts_for_a_gpu_work_on_cpu_tensors(tmp_path: Path) -> None:
    done = run("benchmarked.py", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results.png").stat().st_size > 10_000
    kernels = re.findall(r"^\| (\S.*?) \| 0\.005M \|", done.stdout, re.M)
    assert {"fp16", "sign", "topk(ratio=0.01), all kept in a tenth", PRODUCT} <= set(kernels)
    # Operations beside PyTorch's own.
    for name in ("topk(ratio=0.01)", PRODUCT):
        line = rf"^\| {re.escape(name)} \| 0\.005M \| .* \| torch \|$"
        assert re.search(line, done.stdout, re.M)
    assert len(re.findall(r"^\| residual\\\|topk.* \| 3 \| [18] \|", done.stdout, re.M)) == 4
    for ranks in ("1 process on gloo", "2 processes on gloo"):
        assert f"Steps, {ranks} (there is no GPU):" in done.stdout
    assert len(re.findall(r"^\| .* \| equal \|$", done.stdout, re.M)) == 37


def test_gloo_stands_in_where_nccl_fails() -> None:
    backend, reason = _backend(2, "cuda:99")
    assert backend == "gloo"
    assert reason.startswith("NCCL refuses 2 processes on one GPU: ")


def test_verdict_counts_targets_and_differences() -> None:
    kernels = [
        {"numel": numel, "target": target, "fraction": 0.7}
        for numel, target in ((1_000_000, 0.9), (25_000_000, 0.6), (100_000_000, 0.8))
    ]
    frames = [{"numel": 25_000_000, "launched": 0.05, "done": 2.0}]
    results = {"bits": [{"cases": 7, "differences": 1}], "kernels": kernels, "frames": frames}
    assert verdict(results) == "bits: DIFFER in 7 cases\ntargets: 2 of 4"
    assert not bits_equal(results)
    assert not bits_equal({"steps": [{"equal": True}, {"equal": False}]})
