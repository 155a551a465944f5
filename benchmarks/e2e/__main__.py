"""Time of whole training steps on links of different rates, beside other libraries.

  python benchmarks/e2e --model resnet50 --ranks 4 --rates 100mbit,1gbit
  python benchmarks/e2e --quick

Each rank is on a host of its own: a network namespace of this machine (benchmarks/netlab), which
needs root. If none can be created, and with --simulate, times on the wire are computed
instead, and results are marked. Gradients have the shapes of a real model and are random; forward and backward pass
are a pause of --compute-ms. Results are added to OUTPUT/results.json; tables
and pictures beside it are drawn from that file. --quick checks with two ranks that the counted
bytes match the wire. Exit codes: 0 done; 1 a job failed, or bytes were miscounted; 2 wrong
arguments.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.contenders import chosen
from e2e.report import bookkeeping, draw, groups, machines, overheads, peers, stages, table
from e2e.sweep import Cell, Results, Sweep
from gradcomp.tools.model_shapes import MODELS, model_shapes
from netlab import ENGINES, JobError, Lab, LabError

# Enough bytes that Horovod's own messages hardly count.
QUICK = ["Horovod", "Horovod fp16", "top-k 10%"]


def words(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/e2e",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="resnet50", help="default: %(default)s")
    parser.add_argument("--compute-ms", type=float, default=0.0, help="default: %(default)s")
    parser.add_argument("--ranks", type=words, default=["4"], metavar="N,...", help="default: 4")
    parser.add_argument(
        "--rates",
        type=words,
        default=["100mbit", "1gbit"],
        metavar="RATE,...",
        help="default: 100mbit,1gbit",
    )
    parser.add_argument("--engines", type=words, metavar="NAME,...", help="default: all")
    parser.add_argument("--contenders", type=words, metavar="NAME,...", help="default: all")
    parser.add_argument(
        "--steps",
        type=int,
        help="default: 2 to 8, fewer on slow links; where gradients are compressed at least 5",
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=2,
        help="steps before these, at least 3 where gradients are compressed; default: %(default)s",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/e2e"), help="default: runs/e2e")
    parser.add_argument("--profile", action="store_true", help="our steps by phase, too")
    parser.add_argument("--simulate", action="store_true", help="no hosts, computed times")
    parser.add_argument("--quick", action="store_true", help="a minute, with two ranks")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.ranks, arguments.rates, arguments.steps = ["2"], ["1gbit"], 3
        arguments.engines, arguments.contenders = None, QUICK
    for engine in arguments.engines or ():
        if engine not in ENGINES:
            parser.error(f"--engines: got {engine!r}; there are {', '.join(ENGINES)}")
    if not all(ranks.isdecimal() for ranks in arguments.ranks):
        parser.error(f"--ranks: got {','.join(arguments.ranks)}; expected numbers")
    return arguments


def how(rows: list[dict[str, Any]]) -> str:
    """The origin of the rows: measured or simulated."""
    if rows[0].get("simulated"):
        return "SIMULATED: times on the wire are computed"
    lines = [f"a link carries {rows[0]['measured_bits_per_second'] / 1e6:.1f} Mbit/s"]
    for engine, row in {row["engine"]: row for row in rows}.items():
        sent, busy = row["idle_bytes_per_second"] / 1e3, row["idle_processors"]
        lines.append(f"a rank of {engine}, idle: {sent:.0f} kB/s, {busy:.0%} of a processor")
    return "\n".join(lines)


def main() -> int:
    """Run the sweep; returns the exit code."""
    arguments = parse()
    try:
        contenders = chosen(arguments.contenders, arguments.engines)
    except ValueError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 2
    simulate = arguments.simulate
    if not simulate and (reason := Lab.unavailable()):
        print(f"e2e: {reason}; SIMULATED instead", file=sys.stderr)
        simulate = True
    results = Results(arguments.output / "results.json")
    # Horovod's ranks communicate in every cycle, 1 ms by default, also when there is nothing to do.
    # That traffic does not belong to the contenders.
    environment = {"HOROVOD_CYCLE_TIME": "50"} if arguments.quick else {}
    sweep = Sweep(
        contenders,
        arguments.output / "logs",
        arguments.steps,
        arguments.warmup,
        environment,
        arguments.profile,
    )
    measured = []
    try:
        for ranks in map(int, arguments.ranks):
            for rate in arguments.rates:
                cell = Cell(arguments.model, arguments.compute_ms, ranks, rate)
                print(f"{cell.model}, {ranks} ranks, {rate} ...", flush=True)
                rows = []
                for some in [sweep.simulate(cell)] if simulate else sweep.run(cell):
                    results.add(some)
                    rows += some
                print(f"{how(rows)}\n\n{table(rows)}\n", flush=True)
                measured += rows
    except LabError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1
    for (model, compute_ms, ranks), rows in groups(results.rows).items():
        title = f"{model}, {ranks} ranks" + (f", {compute_ms:g} ms compute" if compute_ms else "")
        name = f"{model}-{ranks}" + (f"-{compute_ms:g}ms" if compute_ms else "")
        if any(row.get("simulated") for row in rows):
            title += ", SIMULATED"
        draw(rows, title, arguments.output / f"{name}.png")
        parts = [title, machines(rows), table(rows), peers(rows), overheads(rows), stages(rows)]
        text = "\n\n".join(part for part in parts if part)
        (arguments.output / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")
    if not arguments.quick:
        return 0
    dense = 4 * sum(map(math.prod, model_shapes(arguments.model).values()))
    wrong = bookkeeping(measured, dense)
    for line in wrong:
        print(f"e2e: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
