"""Outer steps under faults: final test losses with and without processes that are killed and restarted.

  python benchmarks/outer_faults.py --processes 4 --kills 10 --seeds 3

A 64-512-512-10 perceptron learns scikit-learn's digits with AdamW inside `ElasticOuterStep`. All
processes are killed in turn (SIGKILL) at equal distances, and restarted at once; a run is over after
a number of outer steps, or a few after the last process is back. Applied samples are those of all
members of all outer steps, relative to a run in which every process takes part in each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from powersgd_training import HELD_OUT, digits, perceptron
from torch_compressors import ElasticOuterStep

BATCH = 32


def work(options: argparse.Namespace) -> None:
    """One process: train until the last outer step, and log each of them."""
    torch.set_num_threads(1)
    inputs, classes = digits()
    model = perceptron(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), options.inner_lr)
    store = TCPStore("127.0.0.1", options.port, is_master=False)
    outer = ElasticOuterStep(
        options.spec,
        model,
        store=store,
        name=options.name,
        every=options.every,
        quorum=2,
        grace=options.grace,
    )
    # A restarted process draws other batches.
    draw = torch.Generator().manual_seed(hash((options.seed, options.name, outer.rounds)) % 2**31)
    with Path(options.log).open("a", buffering=1) as log:
        while outer.rounds < int(store.get("rounds")):
            time.sleep(options.pause)
            batch = HELD_OUT + torch.randint(len(classes) - HELD_OUT, (BATCH,), generator=draw)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
            optimizer.step()
            if outer.step(samples=BATCH):
                print(json.dumps([outer.rounds, outer.members]), file=log)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(inputs[:HELD_OUT]), classes[:HELD_OUT])
    Path(f"{options.log}.loss").write_text(str(float(loss)))


def rows(log: Path) -> list[Any]:
    """The outer steps that a process has logged."""
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []


def train(seed: int, kills: int, options: argparse.Namespace) -> tuple[float, float]:
    """The final test loss of a run, and its share of applied samples."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("rounds", str(10**9))
    names = [f"process-{number}" for number in range(options.processes)]
    with tempfile.TemporaryDirectory() as folder:

        def start(name: str) -> subprocess.Popen[bytes]:
            settings = {"seed": seed, "port": store.port, "name": name, "log": f"{folder}/{name}"}
            passed = {key: vars(options)[key] for key in PASSED}
            arguments = [f"--{key}={value}" for key, value in {**passed, **settings}.items()]
            command = [sys.executable, __file__, "work", *arguments]
            return subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": "0"})

        def last(name: str) -> int:
            logged = rows(Path(folder) / name)
            return int(logged[-1][0]) if logged else 0

        processes = {name: start(name) for name in names}
        for kill in range(kills):
            victim, witness = names[kill % len(names)], names[(kill + 1) % len(names)]
            due = (kill + 1) * options.rounds // (kills + 1)
            while last(witness) < due:
                time.sleep(0.05)
            processes[victim].kill()
            processes[victim].wait()
            processes[victim] = start(victim)
            before = last(victim)
            while last(victim) == before:  # one fault at a time
                time.sleep(0.05)
        # A process that comes back after the end would wait for the others.
        rounds = max(options.rounds, max(map(last, names)) + 10)
        store.set("rounds", str(rounds))
        if any(process.wait() for process in processes.values()):
            raise SystemExit("a process has failed")
        members: dict[int, int] = {}
        for name in names:
            members.update({number: len(those) for number, those in rows(Path(folder) / name)})
        losses = {float((Path(folder) / f"{name}.loss").read_text()) for name in names}
    (loss,) = losses  # equal on all processes
    return loss, sum(members.values()) / (rounds * options.processes)


PASSED = ("spec", "every", "rounds", "pause", "grace", "inner_lr")


def main() -> None:
    """Train with and without faults, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["work"], help=argparse.SUPPRESS)
    parser.add_argument("--spec", default="residual|int4")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="inner steps per outer step")
    parser.add_argument("--rounds", type=int, default=120, help="outer steps")
    parser.add_argument("--pause", type=float, default=0.03, help="seconds between inner steps")
    parser.add_argument("--grace", type=float, default=1.0)
    parser.add_argument("--inner_lr", type=float, default=0.001)
    for name in ("--seed", "--port"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    for name in ("--name", "--log"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "work":
        work(options)
        return
    print("| kills | test loss | applied samples |\n|---:|---:|---:|", flush=True)
    for kills in (0, options.kills):
        results = [train(seed, kills, options) for seed in range(options.seeds)]
        losses = [loss for loss, _ in results]
        deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
        applied = statistics.fmean(share for _, share in results)
        print(
            f"| {kills} | {statistics.fmean(losses):.4f} ± {deviation:.4f} | {applied:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
