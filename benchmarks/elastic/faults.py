"""Elastic jobs of Horovod under faults, with PyTorch and TensorFlow: results, replicas and residuals.

  python benchmarks/elastic/faults.py --output runs/elastic-faults.csv
  python benchmarks/elastic/faults.py --trials 10 --seed 10

A 64-512-512-10 perceptron learns scikit-learn's digits. In a trial a worker is killed at a random
moment and its host comes back, a host is added, and one is removed; order, moments, worker and host
belong to the trial's number. Each trial checks that

- the job ends,
- parameters are equal bit for bit on all ranks after each step, and at the beginning after each reset,
- applied changes and residuals are all changes, and survivors keep theirs from reset to reset,
- the test accuracy is that of runs of the same spec and framework without faults: within the interval
  in which 99.9 % of further such runs lie, by Student's t.

All ranks together take 60 samples in a step, the same ones for any number of ranks: runs with and
without faults make the same steps with the same samples. The exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

import elastic.laws as laws
from elastic.job import LIMIT, ElasticJob
from elastic.worker import results

SPECS = (
    "residual|topk(ratio=0.01)",
    "dgc(ratio=0.01,warmup_epochs=0)",
    "powersgd(rank=2,start_step=0)",
    "residual|polar(rate=0.25)",
    "residual|adaptive(rate=0.5,preset=basis)",
    "residual|randomk(ratio=0.05)",
)
CASES = [(framework, spec) for spec in SPECS for framework in ("torch", "tensorflow")]
HOSTS = ("localhost", "127.0.0.1", "127.1")
"""Names of this machine. A failure costs Horovod a whole host, so each rank has one of its own."""
ORDERS = (
    ("kill", "add", "remove"),
    ("add", "kill", "remove"),
    ("add", "remove", "kill"),
)
LEVEL = 0.999


@dataclass
class Trial:
    """A trial, and what it found."""

    number: int
    framework: str
    spec: str
    seed: int
    faults: str = ""
    sizes: str = ""
    resets: int = 0
    difference: float = math.nan
    loss: float = math.nan
    accuracy: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


@contextmanager
def job_of(
    folder: Path, options: argparse.Namespace, *arguments: str, hosts: Sequence[str]
) -> Iterator[ElasticJob]:
    """A job of `worker`."""
    command = [str(Path(__file__).resolve().with_name("worker.py")), *arguments]
    command += ["--steps", str(options.steps)]
    job = ElasticJob(folder, command, dict.fromkeys(hosts, 1))
    try:
        yield job
    finally:
        job.stop()


def without_faults(
    framework: str, specs: Sequence[str], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Test accuracies of the trainings of one job, by spec."""
    arguments = ["--framework", framework, "--rows", "nothing"]
    arguments += [word for spec in specs for word in ("--spec", spec)]
    arguments += [word for seed in range(options.seeds) for word in ("--seed", str(seed))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with job_of(folder, options, *arguments, hosts=HOSTS[:2]) as job:
            job.end(LIMIT + options.limit * len(specs) * options.seeds)
        return {
            spec: [
                json.loads(results(folder, number, seed).read_text())["accuracy"]
                for seed in range(options.seeds)
            ]
            for number, spec in enumerate(specs)
        }


def interval(accuracies: Sequence[float]) -> tuple[float, float]:
    """Where a further run lies with the probability `LEVEL`."""
    count = len(accuracies)
    # The runs may be equal by chance; one test sample is the least difference.
    spread = max(statistics.stdev(accuracies), 1 / 360)
    width = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * spread * math.sqrt(1 + 1 / count)
    return statistics.fmean(accuracies) - width, statistics.fmean(accuracies) + width


def run(trial: Trial, options: argparse.Namespace) -> None:
    """Make a trial, and check all but the accuracy."""
    arguments = ["--framework", trial.framework, "--spec", trial.spec, "--seed", str(trial.seed)]
    arguments += ["--pause", str(options.pause), "--rows", "laws"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with job_of(folder, options, *arguments, hosts=HOSTS[:2]) as job:
            make_faults(job, trial)
            job.end()
            lives = laws.lives_of(job.rows())
        found = json.loads(results(folder, 0, trial.seed).read_text())
    trial.accuracy, trial.loss = found["accuracy"], found["loss"]
    trial.sizes = " ".join(map(str, laws.sizes_of(lives)))
    laws.check_replicas(lives)
    trial.difference = laws.check_steps(lives)
    trial.resets = laws.check_resets(lives)
    assert trial.resets >= len(ORDERS[0]), f"{trial.resets} resets are too few: {trial.sizes}"


def make_faults(job: ElasticJob, trial: Trial) -> None:
    """Kill a worker, add a host and remove one."""
    chance = random.Random(trial.number)
    hosts = list(HOSTS[:2])
    for fault in chance.choice(ORDERS):
        job.wait_for_size(len(hosts), chance.randint(5, 40))
        time.sleep(chance.uniform(0, 0.1))  # any moment of a step, or of a commit
        if fault == "kill":
            rank = chance.randrange(len(hosts))
            job.kill(rank, size=len(hosts))
            trial.faults += f"kill rank {rank} of {len(hosts)}, "
        elif fault == "add":
            hosts.append(HOSTS[2])
            trial.faults += "add a host, "
        else:
            hosts.remove(chance.choice(hosts))
            trial.faults += "remove a host, "
        job.set_hosts(dict.fromkeys(hosts, 1))
    job.wait_for_size(len(hosts))
    trial.faults = trial.faults.removesuffix(", ")


def report(trials: Sequence[Trial], known: dict[tuple[str, str], list[float]]) -> None:
    """Print a table with a row for each spec and framework."""
    print("\n| framework | spec | accuracy without faults | with faults | resets | law, at most |")
    print("|---|---|---:|---:|---:|---:|")
    by_case = defaultdict(list)
    for trial in trials:
        by_case[trial.framework, trial.spec].append(trial)
    for (framework, spec), of_case in by_case.items():
        plain = known[framework, spec]
        cells = [
            framework,
            f"`{spec}`".replace("|", "\\|"),
            f"{statistics.fmean(plain):.4f} ± {statistics.stdev(plain):.4f}",
            ", ".join(f"{trial.accuracy:.4f}" for trial in of_case),
            ", ".join(str(trial.resets) for trial in of_case),
            f"{max(trial.difference for trial in of_case):.1e}",
        ]
        print(f"| {' | '.join(cells)} |")
    failed = sum(bool(trial.failures) for trial in trials)
    resets = sum(trial.resets for trial in trials)
    print(f"\n{len(trials) - failed} of {len(trials)} trials passed, with {resets} resets", end="")
    changes = [
        trial.accuracy - statistics.fmean(known[trial.framework, trial.spec])
        for trial in trials
        if not math.isnan(trial.accuracy)
    ]
    if changes:
        print(
            f"; faults change the accuracy by {statistics.fmean(changes):+.4f} on average", end=""
        )
    print()


def write(trials: Sequence[Trial], output: Path) -> None:
    """A row for each trial."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [column.name for column in fields(Trial)])
        table.writeheader()
        for trial in trials:
            table.writerow({**asdict(trial), "failures": "; ".join(trial.failures)})


def main() -> int:
    """Run all trials; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="number of the first trial")
    parser.add_argument("--seeds", type=int, default=8, help="runs without faults of each case")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.03, help="seconds of a step, besides")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a run without faults")
    parser.add_argument("--output", type=Path, help="a CSV file with a row for each trial")
    options = parser.parse_args()
    if options.seeds < 3:
        parser.error(f"--seeds {options.seeds}: an interval needs 3 runs without faults or more")
    trials = [
        Trial(number, *CASES[number % len(CASES)], seed=number // len(CASES) % options.seeds)
        for number in range(options.seed, options.seed + options.trials)
    ]
    known: dict[tuple[str, str], list[float]] = {}
    for framework in dict.fromkeys(trial.framework for trial in trials):
        specs = [trial.spec for trial in trials if trial.framework == framework]
        began = time.monotonic()
        found = without_faults(framework, list(dict.fromkeys(specs)), options)
        known |= {(framework, spec): accuracies for spec, accuracies in found.items()}
        took = time.monotonic() - began
        print(
            f"{framework}: {options.seeds} runs of each spec without faults, {took:.0f} s",
            flush=True,
        )
    for done, trial in enumerate(trials, 1):
        began = time.monotonic()
        trial.low, trial.high = interval(known[trial.framework, trial.spec])
        try:
            run(trial, options)
            assert trial.low <= trial.accuracy <= trial.high, "the accuracy is another one"
        except AssertionError as error:
            trial.failures.append(str(error))
        trial.seconds = time.monotonic() - began
        print(
            f"trial {trial.number} ({done} of {len(trials)}): {trial.framework} {trial.spec};"
            f" {trial.faults}; ranks {trial.sizes}; accuracy {trial.accuracy:.4f}, without faults"
            f" {trial.low:.4f} to {trial.high:.4f}; {trial.seconds:.0f} s:"
            f" {'; '.join(trial.failures) or 'passed'}",
            flush=True,
        )
        if options.output:
            write(trials[:done], options.output)
    report(trials, known)
    return int(any(trial.failures for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
