"""Time from the death of a worker to the next step of an elastic job, beside stock Horovod.

  python benchmarks/elastic/recovery.py --repetitions 10 --output runs/elastic-recovery.csv

One of two ranks is killed at a random moment; contenders take turns, with the same moments. A time has
four parts: until the survivor notices the death, until it has a new rank from Horovod's launcher, until
its state is synchronized, and until its next step is done, where compression agrees anew. Beside that
step stands a later one, the median of the next ten: a codec's own time is in both.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from elastic.digits import STOCK
from elastic.faults import HOSTS, job_of
from elastic.job import ElasticJob, Row

FRAMEWORKS = ("torch", "tensorflow")
CONTENDERS = (
    STOCK,
    "residual|topk(ratio=0.01)",
    "powersgd(rank=2,start_step=0)",
    "residual|adaptive(rate=0.5,preset=basis)",
)
PARTS = ("noticed", "ranks", "synced", "step")
LATER = 10
Times = dict[str, float]


def recovery(framework: str, spec: str, number: int, options: argparse.Namespace) -> Times:
    """Seconds from the kill to the next step, in all and by part."""
    chance = random.Random(number)
    arguments = ["--framework", framework, "--spec", spec, "--seed", str(number)]
    arguments += ["--pause", "0.03", "--rows", "steps"]
    with (
        tempfile.TemporaryDirectory() as name,
        job_of(Path(name), options, *arguments, hosts=HOSTS[:2]) as job,
    ):
        job.wait_for_size(2, chance.randint(10, 30))
        time.sleep(chance.uniform(0, 0.1))
        return after_kill(job, chance.randrange(2))


def after_kill(job: ElasticJob, rank: int) -> Times:
    """Kill a rank, and take the times of the survivor."""
    killed = time.time()
    job.kill(rank, size=2)
    rows = job.wait_for("next steps", lambda rows: len(_later(rows, killed)) > LATER)
    first, *others = sorted(_later(rows, killed), key=lambda row: row["time"])[: LATER + 1]
    moments = [killed, *(first["marks"][name] for name in PARTS[:-1]), first["time"]]
    parts = {name: moments[n + 1] - moments[n] for n, name in enumerate(PARTS)}
    times = [first["time"], *(row["time"] for row in others)]
    later = statistics.median(end - begin for begin, end in itertools.pairwise(times))
    return {"all": first["time"] - killed, **parts, "later": later}


def _later(rows: list[Row], killed: float) -> list[Row]:
    """The rows of lives after the kill."""
    return [row for row in rows if row["life"] > killed]


def cells_of(repetitions: Sequence[Times], stock: Sequence[Times]) -> list[str]:
    """The columns of a contender: median and quartiles, ratio to the stock's median, parts."""
    whole = [times["all"] for times in repetitions]
    low, median, high = statistics.quantiles(whole, n=4, method="inclusive")
    base = statistics.median(times["all"] for times in stock)
    parts = [statistics.median(times[name] for times in repetitions) for name in (*PARTS, "later")]
    return [
        f"{median:.3f} ({low:.3f} to {high:.3f})",
        f"{median / base:.2f}",
        *(f"{part:.3f}" for part in parts),
    ]


def main() -> None:
    """Measure all contenders in turn, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS, help="(default: both)")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--output", type=Path, help="a CSV file with a row for each repetition")
    options = parser.parse_args()
    if options.repetitions < 2:
        parser.error(f"--repetitions {options.repetitions}: quartiles need 2 or more")
    options.steps = 1000000
    found: dict[tuple[str, str], list[Times]] = defaultdict(list)
    for number in range(options.repetitions):
        for framework in options.framework or FRAMEWORKS:
            for spec in CONTENDERS:
                times = recovery(framework, spec, number, options)
                found[framework, spec].append(times)
                print(
                    f"{number + 1} of {options.repetitions}: {framework} {spec}: {times['all']:.3f} s",
                    flush=True,
                )
                if options.output:
                    write(found, options.output)
    print(
        "\n| framework | spec | s to the next step | of stock | noticed | ranks | synced | step | later step |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for (framework, spec), repetitions in found.items():
        name = spec if spec == STOCK else f"`{spec}`".replace("|", "\\|")
        print(
            f"| {' | '.join([framework, name, *cells_of(repetitions, found[framework, STOCK])])} |"
        )


def write(found: dict[tuple[str, str], list[Times]], output: Path) -> None:
    """A row for each repetition."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["framework", "spec", "repetition", "all", *PARTS, "later"])
        for (framework, spec), repetitions in found.items():
            for number, times in enumerate(repetitions):
                table.writerow([framework, spec, number, *times.values()])


if __name__ == "__main__":
    sys.exit(main())
