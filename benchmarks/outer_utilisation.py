"""Outer steps on a slow network: time of a job, relative to that of one that sends nothing.

  python benchmarks/outer_utilisation.py --task configs/text/wide.yaml --np 4 \\
      --rate 1gbit --rate 100mbit --rate 20mbit \\
      --run "streaming=configs/outer/streaming.yaml" --output runs/outer-utilisation

Each rank is on a host of its own behind a link of the given rate (benchmarks/netlab, which needs
root), and trains the task's model. Blocks of whole rounds with `OuterStep` alternate with blocks of as
many inner steps in which nothing is sent. The time of a block ends when its last rank is done; the
ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch
import torch.distributed as dist
from torch.nn import functional

from gradcomp.config.compose import compose
from gradcomp.config.schema import Config
from netlab import Lab, run
from torch_compressors import OuterStep
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings
from training.tasks.catalog import task_of
from training.tasks.data import train_batches

_TIMEOUT = 3600.0


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, type=Path, metavar="FILE", help="YAML file")
    parser.add_argument("--run", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--rate", action="append", required=True, help="of each link")
    parser.add_argument("--np", type=int, default=4, metavar="N", help="ranks (default: 4)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a block (default: 2)")
    parser.add_argument("--blocks", type=int, default=5, help="of each kind (default: 5)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def work(options: argparse.Namespace) -> None:
    """One rank: train in blocks, and on rank 0 write their times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    composed = compose([options.task, *map(Path, options.run)], options.set)
    settings = TrainSettings.from_mapping(composed.mapping, composed.origin)
    outer_settings = OuterSettings.of(composed.mapping["outer"], composed.origin)
    task = task_of(settings)
    data = task.load()
    torch.manual_seed(settings.seed)
    model = task.model(data.classes)
    optimizer = torch.optim.SGD(model.parameters(), settings.lr / 10, settings.momentum)
    outer = OuterStep(Config.from_mapping(composed.mapping), model, **outer_settings.arguments())
    steps = options.rounds * outer_settings.every
    batch = settings.batch_size

    def block(epoch: int, *, sends: bool) -> float:
        batches = train_batches(
            data,
            seed=epoch,
            epoch=0,
            start=0,
            stop=data.train_samples,
            batch_size=batch,
            rank=rank,
            workers=size,
        )
        of_block = list(islice(cycle(batches), steps))
        dist.barrier()
        begin = time.perf_counter()
        for samples in of_block:
            optimizer.zero_grad()
            functional.cross_entropy(model(samples.inputs), samples.classes).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if sends:
                outer.step()
        dist.barrier()
        return time.perf_counter() - begin

    block(0, sends=True)
    times: dict[str, list[float]] = {"sends": [], "nothing": []}
    for number in range(options.blocks):
        times["nothing"].append(block(number, sends=False) / steps)
        times["sends"].append(block(number, sends=True) / steps)
    if rank == 0:
        sent = outer.stats.total_bytes / outer.inner_steps
        Path(options.worker).write_text(json.dumps({**times, "bytes": sent}), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run everything, and print a table."""
    options = parse()
    if options.worker:
        work(options)
        return
    print("| link | run | bytes a step | ms a step | sending nothing | ratio |")
    print("|---|---|---:|---:|---:|---:|", flush=True)
    for rate in options.rate:
        with Lab(options.np, rate) as lab:
            for named in options.run:
                name, _, file = named.partition("=")
                folder = (
                    options.output.absolute() / options.task.stem / rate / name.replace(" ", "-")
                )
                folder.mkdir(parents=True, exist_ok=True)
                result = folder / "times.json"
                passed = ["--task", str(options.task), "--run", file, "--rate", rate]
                passed += ["--rounds", str(options.rounds), "--blocks", str(options.blocks)]
                passed += [part for setting in options.set for part in ("--set", setting)]
                passed += ["--output", str(options.output), "--worker", str(result)]
                command = [sys.executable, str(Path(__file__).resolve()), *passed]
                run(lab, "torch", options.np, command, folder / "logs", _TIMEOUT)
                times = json.loads(result.read_text(encoding="utf-8"))
                sends, nothing = (statistics.median(times[kind]) for kind in ("sends", "nothing"))
                print(
                    f"| {rate} | {name} | {times['bytes']:.0f} | {1e3 * sends:.1f} | "
                    f"{1e3 * nothing:.1f} | {sends / nothing:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
