"""Elastic jobs of Horovod under faults: final test losses, replicas, and the time to the next step.

  python benchmarks/elastic_faults.py --seeds 2

A 64-512-512-10 perceptron learns scikit-learn's digits on two ranks. In a run with faults a worker is
killed at a random step and its host comes back; then a slot is added, and removed. Each run has a
partner without faults. Replicas are compared after every step. The time from a kill to the next step
is also that of stock Horovod without compression.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastic_job import ElasticJob, Row, log_row
from powersgd_training import HELD_OUT, digits, perceptron

STOCK = "stock Horovod"
SPECS = (
    STOCK,
    "residual|topk(ratio=0.01)",
    "dgc(ratio=0.01,warmup_epochs=0)",
    "powersgd(rank=2,start_step=0)",
    "residual|polar(rate=0.25)",
    "residual|adaptive(rate=0.5,preset=basis)",
    "residual|randomk(ratio=0.05)",
)
BATCH = 32


def work(options: argparse.Namespace) -> None:
    """A worker: train for a number of steps, and log each of them."""
    import horovod.torch as hvd

    from horovod_compressors.torch import Compression

    hvd.init()
    torch.set_num_threads(1)
    inputs, classes = digits()
    model = perceptron(options.seed)
    extra: dict[str, Any] = {}
    compression: Any = hvd.Compression.none
    if options.spec != STOCK:
        compression = extra["compression"] = Compression(options.spec, model.named_parameters())
    # DGC has a momentum of its own.
    momentum = 0.0 if options.spec.startswith("dgc") else 0.9
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.05, momentum),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, **extra)

    @hvd.elastic.run
    def train(state: Any) -> None:
        life = hvd.broadcast(torch.tensor(time.time(), dtype=torch.float64), 0, "life").item()
        while state.step < options.steps:
            time.sleep(options.pause)
            draw = torch.Generator().manual_seed(1000 * options.seed + state.step)
            drawn = torch.randint(len(classes) - HELD_OUT, (BATCH, hvd.size()), generator=draw)
            batch = HELD_OUT + drawn[:, hvd.rank()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
            optimizer.step()
            state.step += 1
            parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            log_row(
                Path(options.folder),
                parameters.numpy().tobytes(),
                life=life,
                step=state.step,
                rank=hvd.rank(),
                size=hvd.size(),
            )
            if state.step % 5 == 0:
                state.commit()

    train(state)
    if hvd.rank() == 0:
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(inputs[:HELD_OUT]), classes[:HELD_OUT])
        (Path(options.folder).parent / "loss").write_text(str(float(loss)))
    hvd.shutdown()


def trial(
    spec: str, seed: int, options: argparse.Namespace, *, faults: bool
) -> tuple[float, float]:
    """The final test loss, and seconds from the kill to the next step.

    Raises:
        AssertionError: replicas differ, or the job fails.
    """
    chance = random.Random(f"{spec} {seed}")
    hosts = {"localhost": 1, "127.0.0.1": 1}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        passed = ["--spec", spec, "--seed", str(seed), "--steps", str(options.steps)]
        passed += ["--pause", str(options.pause), "--worker"]
        job = ElasticJob(folder, [str(Path(__file__).resolve()), *passed], hosts)
        waited = 0.0
        try:
            if faults:
                job.wait_for_size(2, chance.randint(5, 40))
                killed = time.time()
                job.kill(rank=chance.randint(0, 1), size=2)
                rows = job.wait_for("next step", lambda all_: _after(all_, killed) is not None)
                waited = (_after(rows, killed) or killed) - killed
                job.wait_for_size(2, chance.randint(5, 20))
                job.set_hosts({**hosts, "localhost": 2})
                job.wait_for_size(3, chance.randint(5, 20))
                job.set_hosts(hosts)
            job.end()
            check(job.rows())
            return float((folder / "loss").read_text()), waited
        finally:
            job.stop()


def _after(rows: list[Row], killed: float) -> float | None:
    """The time of the first step of a life that began after the kill."""
    later = [row["time"] for row in rows if row["life"] > killed]
    return min(later, default=None)


def check(rows: list[Row]) -> None:
    """Equal parameters on all ranks after each step of each life."""
    digests: dict[tuple[float, int], set[int]] = defaultdict(set)
    for row in rows:
        digests[row["life"], row["step"]].add(row["digest"])
    assert all(len(one) == 1 for one in digests.values()), "replicas differ"


def main() -> None:
    """Run all trials, and print a line for each spec."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", action="append", help="(default: six, and stock Horovod)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--pause", type=float, default=0.03, help="seconds of a step, besides")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker", dest="folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        options.spec = options.spec[0]
        work(options)
        return
    print(
        "| spec | test loss | with faults | s to the next step |\n|---|---:|---:|---:|", flush=True
    )
    for spec in options.spec or SPECS:
        plain = [trial(spec, seed, options, faults=False)[0] for seed in range(options.seeds)]
        faulty = [trial(spec, seed, options, faults=True) for seed in range(options.seeds)]
        cells = []
        for losses in (plain, [loss for loss, _ in faulty]):
            spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
            cells.append(f"{statistics.fmean(losses):.4f}{spread}")
        cells.append(f"{statistics.median(waited for _, waited in faulty):.2f}")
        print(f"| {spec} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
