"""Local steps on a slow network: time of a step, relative to that of a job that sends nothing.

  python benchmarks/outer_utilisation.py --task configs/text/wide.yaml --np 4 --rate 1gbit \\
      --rate 100mbit --rate 20mbit --run "streaming=configs/outer/streaming.yaml" \\
      --output runs/outer-utilisation

Each rank of scripts/train.py is on a host of its own, behind a link of the given rate, as in
benchmarks/time_to_accuracy.py; needs root. A time is the mean over whole rounds after the first, and
the median of --repeats runs. Runs of the job that sends nothing stand between the others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from compare import Contender, contender_of
from netlab import Lab
from results.jobs import ROOT
from time_to_accuracy import train
from training.metrics import read_rows

NOTHING = "sends nothing"


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, type=Path, metavar="FILE", help="YAML file")
    parser.add_argument("--run", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--rate", action="append", required=True, help="of each link")
    parser.add_argument("--np", type=int, default=4, metavar="N", help="ranks (default: 4)")
    parser.add_argument("--every", type=int, default=30, help="inner steps per outer step")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a run, the first included")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    return parser.parse_args()


def mean_step(
    lab: Lab, contender: Contender, repeat: int, rate: str, options: argparse.Namespace
) -> tuple[float, float]:
    """Seconds and sent bytes of a step, over the rounds after the first."""
    steps = options.rounds * options.every
    every = options.every if contender.name != NOTHING else steps + 1
    arguments = argparse.Namespace(
        task=options.task,
        np=options.np,
        output=options.output / rate,
        set=["train.epochs=1", f"train.steps_per_epoch={steps}", f"outer.every={every}"],
    )
    job, _ = train(lab, contender, repeat, arguments)
    rows = read_rows(ROOT / job.folder / "metrics.jsonl")
    later = [row for row in rows if row["kind"] == "step"][options.every :]
    seconds = statistics.fmean(row["seconds"] for row in later)
    return seconds, statistics.fmean(row["sent_bytes"] for row in later)


def main() -> None:
    """Run everything, and print a table."""
    options = parse()
    contenders = [contender_of(text) for text in options.run]
    print("| link | run | bytes a step | ms a step | of sending nothing |")
    print("|---|---|---:|---:|---:|", flush=True)
    for rate in options.rate:
        found: dict[str, list[tuple[float, float]]] = {NOTHING: []}
        with Lab(options.np, rate) as lab:
            for repeat in range(options.repeats):
                for contender in [Contender(NOTHING), *contenders]:
                    one = mean_step(lab, contender, repeat, rate, options)
                    found.setdefault(contender.name, []).append(one)
        base = statistics.median(seconds for seconds, _ in found[NOTHING])
        for name, results in found.items():
            seconds = statistics.median(seconds for seconds, _ in results)
            sent = results[0][1]
            ratio = seconds / base
            print(
                f"| {rate} | {name} | {sent:.0f} | {1e3 * seconds:.1f} | {ratio:.3f} |", flush=True
            )


if __name__ == "__main__":
    main()
