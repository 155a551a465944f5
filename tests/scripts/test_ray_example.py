"""The loop of examples/ray_train_digits.py, on one rank and with a stand-in of Ray.

Ray Train needs more packages than Ray itself, 400 MB, and is not installed for tests. The page
docs/clusters.md says with which version the example ran.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """The metrics that the loop reports; checkpoints are copied to ``tmp_path``."""
    reports: list[dict[str, Any]] = []

    def report(metrics: dict[str, Any], checkpoint: Any = None) -> None:
        reports.append(metrics)
        if checkpoint is not None:
            shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)

    rank = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    train = ModuleType("ray.train")
    vars(train).update(get_context=lambda: rank, report=report)
    vars(train).update(Checkpoint=SimpleNamespace(from_directory=lambda folder: folder))
    of_torch = ModuleType("ray.train.torch")
    vars(of_torch).update(TorchTrainer=None, prepare_model=DistributedDataParallel)
    package = ModuleType("ray")
    vars(package).update(train=train)
    for module in (package, train, of_torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as Ray does for a worker with one CPU
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield reports
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def test_the_loop_trains(ray: list[dict[str, Any]], tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "ray_train_digits.py"))
    example["train_digits"]({"compression": "residual|topk(ratio=0.01)", "epochs": 2})
    assert len(ray) == 2
    assert ray[-1]["accuracy"] > 0.6
    assert ray[-1]["ratio"] > 5
    state = torch.load(tmp_path / "compression-0.pt", weights_only=True)
    assert state["rank"] == 0
    assert torch.load(tmp_path / "model.pt", weights_only=True)["0.weight"].shape == (128, 64)
