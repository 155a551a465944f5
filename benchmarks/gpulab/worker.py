"""One rank of a job: python worker.py RANK RANKS BACKEND DEVICE FOLDER JOB

The job is `probe`, which averages a number, or `quick` or `full`, which time the steps of all contenders.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from gpulab.contenders import Contender, contenders


class Size(NamedTuple):
    """Size of a job. The model has about layers * width^2 parameters."""

    layers: int
    width: int
    batch: int
    warmup: int
    steps: int


SIZES = {"quick": Size(4, 256, 32, 3, 5), "full": Size(6, 2048, 512, 5, 30)}


def model_of(size: Size, device: torch.device) -> torch.nn.Sequential:
    """Linear layers with norms; the same on all ranks."""
    torch.manual_seed(1)
    layers: list[torch.nn.Module] = []
    for _ in range(size.layers):
        linear = torch.nn.Linear(size.width, size.width)
        layers += [linear, torch.nn.LayerNorm(size.width), torch.nn.GELU()]
    return torch.nn.Sequential(*layers).to(device)


def steps(contender: Contender, size: Size, backend: str, device: torch.device) -> dict[str, Any]:
    """Train some steps: ms of each, and a digest of the parameters after them."""
    model = model_of(size, device)
    wrapped = contender.wrap(model, backend)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    batch = torch.randn(size.batch, size.width, generator=generator).to(device)
    times = []
    for _ in range(size.warmup + size.steps):
        _synchronize(device)
        begin = time.perf_counter()
        wrapped(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        _synchronize(device)
        times.append(1e3 * (time.perf_counter() - begin))
    digest = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        digest.update(whole.detach().cpu().numpy().tobytes())
    return {
        "name": contender.name,
        "same": contender.same,
        "ms": statistics.median(times[size.warmup :]),
        "digest": digest.hexdigest(),
    }


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(rank: int, ranks: int, backend: str, device: torch.device, folder: Path, job: str) -> None:
    """Run the job and write this rank's results to the folder."""
    # Equal parameters then mean equal averages; hooks may use operators that know no fixed order.
    torch.use_deterministic_algorithms(True, warn_only=True)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks
    )
    rows = []
    if job == "probe":
        dist.all_reduce(torch.ones(1, device=device))
        _synchronize(device)
    else:
        rows = [
            steps(contender, SIZES[job], backend, device)
            for contender in contenders(ranks, backend, device)
        ]
    (folder / f"rank-{rank}.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    number, count, engine, place, output, name = sys.argv[1:]
    main(int(number), int(count), engine, torch.device(place), Path(output), name)
