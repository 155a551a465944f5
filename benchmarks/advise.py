"""Steps that `gradcomp advise` predicts, beside measured ones, on hosts with links of given rates.

  python benchmarks/advise.py
  python benchmarks/advise.py --quick

Each rank is on a host of its own: a network namespace of this machine (benchmarks/netlab), which
needs root. 3 models x 3 rates x 6 specs x 2 engines: the stock optimizer of Horovod and DDP, both on
Gloo, with gradients of real shapes and a pause in place of computation (benchmarks/e2e). A
prediction knows the shapes, the rate, the step without any exchange, the speeds of codecs, and the
engines' costs, measured by the requests of `--measure` on links without a limit and of that rate; it
knows no step with an exchange. Codecs are measured in one process before and after each job, as a
machine's speed may drift, and the two predictions are averaged.

Finished jobs are kept in OUTPUT, and a later run goes on. It also has the tables and the picture.
Times hold on a quiet machine only. Exit codes: 0 done; 1 a job failed; 2 no hosts here, or no
step of Horovod.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from e2e.contenders import Contender
from e2e.sweep import Cell, Results, Sweep
from gradcomp.processors import processors
from gradcomp.tools.advise.cache import SpeedCache
from gradcomp.tools.advise.calibrate import STAGES
from gradcomp.tools.advise.links import engine_here, measure_links, open_links
from gradcomp.tools.advise.predict import UNCOMPRESSED, Job, predict
from gradcomp.tools.advise.rank import Candidate, calibrate, copy_byte, to_calibrate
from gradcomp.tools.advise.wire import ENGINES, EngineCosts, KindCost
from gradcomp.tools.model_shapes import MODELS, model_shapes
from gradcomp.tools.plotting import new_figure
from gradcomp.tools.step_model import Link, StepTime
from netlab import JobError, Lab, LabError, bits_per_second, run

Row = dict[str, Any]

SPECS = (
    (UNCOMPRESSED, "auto"),
    ("fp16", "auto"),
    ("residual|topk(ratio=0.01)", "gather"),
    ("residual|int8", "sra"),
    ("residual|sign", "gather"),
    ("powersgd(rank=4,start_step=0,variant=library)", "auto"),
)
NEAR = 0.15
ALONE = "alone"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#97bbf5")


def contenders(engine: str, count: int) -> list[Contender]:
    """The step without an exchange, and the first specs."""
    result = [Contender(f"{engine} {ALONE}", engine, ALONE)]
    for spec, exchange in SPECS[:count]:
        name = f"{engine} {spec} {exchange}"
        kind, settings = "ours", f"{spec} exchange={exchange}"
        if spec == UNCOMPRESSED:
            kind, settings = "none", ""
        result.append(Contender(name, engine, kind, settings))
    return result


def measured_costs(output: Path, engine: str, ranks: int, limit: str) -> EngineCosts:
    """The costs of an engine on this machine and links of a rate, measured once."""
    found = {}
    for rate in (None, limit):
        path = output / "engines" / f"{engine}-{ranks}-{rate or 'unlimited'}.json"
        if not path.exists():
            print(f"{engine}: requests on links of {rate or 'any rate'} ...", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, "--links", str(path.resolve())]
            with Lab(ranks, rate) as lab:
                carried = lab.measure()
                run(lab, engine, ranks, command, output / "logs" / path.stem, 1200)
            saved = json.loads(path.read_text(encoding="utf-8")) | {"carried": carried}
            path.write_text(json.dumps(saved), encoding="utf-8")
        found[rate] = json.loads(path.read_text(encoding="utf-8"))
    kinds = {}
    for kind, fast in found[None]["byte"].items():
        # With a limit, what comes before the transfer is seen apart from what is beside it.
        wire = 8 / found[limit]["carried"]
        before = min(max(found[limit]["byte"][kind] - wire, 0.0), fast)
        kinds[kind] = KindCost(found[None]["request"][kind], before, fast - before)
    return ENGINES[engine].with_costs(kinds)


def measure_as_rank(path: Path) -> None:
    """One rank of a job of `measured_costs`."""
    job = open_links(engine_here())
    found = measure_links(job)
    if job.rank == 0:
        path.write_text(json.dumps(asdict(found)), encoding="utf-8")
    job.close()


def prediction(row: Row, alone: float, costs: EngineCosts, cache: SpeedCache) -> StepTime:
    """The prediction for a measured row."""
    spec, exchange = row["contender"].split(" ")[1:]
    ranks = row["ranks"]
    job = Job(
        shapes=model_shapes(row["model"]),
        ranks=ranks,
        link=Link(row["measured_bits_per_second"]),
        costs=costs,
        compute=row["compute_ms"] / 1e3,
        cores=processors() / ranks,
        copy_byte=copy_byte(cache, copies_at_once(ranks)),
    )
    # The rest of the step without an exchange copies gradients, beside Horovod's idle threads.
    idle = replace(job, costs=ENGINES["horovod"])
    copies = max(alone - job.compute, 0.0) / (idle.slow * (1.0 + idle.shared * idle.idle_load))
    job = replace(job, host_compute=copies)
    speeds = None if spec == UNCOMPRESSED else cache.speeds(spec, exchange)
    return predict(job, spec, exchange, speeds)


def speeds_of(output: Path, when: str, known: Sequence[Candidate], ranks: int) -> SpeedCache:
    """The speeds of codecs at a point of the sweep; measured now if they are not known."""
    cache = SpeedCache(output / "speeds" / when)
    unknown = to_calibrate(cache, known)
    if unknown:
        print(f"speeds of codecs, {when} ...", flush=True)
        calibrate(cache, unknown)
        copy_byte(cache, copies_at_once(ranks))
    return cache


def copies_at_once(ranks: int) -> int:
    """Cores of this machine on which ranks copy."""
    return min(processors(), ranks)


def compared(
    rows: Sequence[Row],
    costs: dict[tuple[str, str], EngineCosts],
    speeds: Mapping[tuple[str, str, str], Sequence[SpeedCache]],
) -> list[Row]:
    """Measured rows with their predictions: means of those by the speeds before and after the job.

    Args:
        costs: of an engine at a rate.
        speeds: of codecs before and after a job, for each model, rate and engine.
    """
    # Horovod's step without an exchange is the model's time: DDP's has copies, which are predicted.
    alone = {
        (row["model"], row["rate"]): row["median_seconds"]
        for row in rows
        if row["contender"] == f"horovod {ALONE}"
    }
    result = []
    for row in rows:
        if row["contender"].endswith(ALONE) or (row["model"], row["rate"]) not in alone:
            continue
        of_job = costs[row["engine"], row["rate"]]
        found = [
            prediction(row, alone[row["model"], row["rate"]], of_job, cache)
            for cache in speeds[row["model"], row["rate"], row["engine"]]
        ]
        seconds = statistics.fmean(predicted.seconds for predicted in found)
        result.append(
            row
            | {
                "predicted": seconds,
                "error": seconds / row["median_seconds"] - 1,
                "stages": {
                    stage: statistics.fmean(predicted.stages[stage] for predicted in found)
                    for stage in found[0].stages
                },
                "link_bytes": found[0].link_bytes,
            }
        )
    return result


def table(rows: Sequence[Row]) -> str:
    """All cells; the stages show where an error comes from."""
    lines = [
        "| model | link | engine | spec, exchange | measured, ms | predicted, ms | error | MB: measured | "
        "predicted | encode, ms: measured | predicted | decode | predicted | copy | predicted | wait |"
        " engine and wire, predicted |",
        "|---|---|---|---|" + "---:|" * 13,
    ]
    for row in rows:
        stages, phases = row["stages"], row.get("phases") or {}
        spec, exchange = row["contender"].split(" ")[1:]
        cells = [
            row["model"],
            row["rate"],
            row["engine"],
            f"`{spec}`, {exchange}".replace("|", "\\|"),
        ]
        cells += [f"{1e3 * row['median_seconds']:.1f}", f"{1e3 * row['predicted']:.1f}"]
        cells += [f"{row['error']:+.0%}", f"{row['interface_bytes'] / 1e6:.2f}"]
        cells += [f"{row['link_bytes'] / 1e6:.2f}"]
        for stage in STAGES:
            of_phase = phases.get(stage)
            if of_phase is not None and stage == "encode":
                of_phase += phases["compensate"]
            cells += ["" if of_phase is None else f"{1e3 * of_phase:.1f}"]
            cells += [f"{1e3 * stages[stage]:.1f}"]
        cells += [f"{1e3 * phases['wait']:.1f}" if phases else ""]
        cells += [f"{1e3 * (stages['engine'] + stages['wire'] + stages['latency']):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def share(rows: Sequence[Row]) -> str:
    """The share of cells whose prediction is near: of each engine, and of all."""
    lines = []
    for engine in [*dict.fromkeys(row["engine"] for row in rows), ""]:
        errors = [abs(row["error"]) for row in rows if engine in ("", row["engine"])]
        near = sum(error <= NEAR for error in errors)
        lines.append(
            f"{engine or 'all'}: {near} of {len(errors)} cells ({near / len(errors):.0%}) are "
            f"predicted within {NEAR:.0%}; median of the errors {statistics.median(errors):.1%}"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Predicted against measured steps, one panel for each engine."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    figure = new_figure(5.2 * len(engines), 5.8)
    both = [row[key] for row in rows for key in ("predicted", "median_seconds")]
    low, high = 0.8 * min(both), 1.25 * max(both)
    specs = list(dict.fromkeys(row["contender"].split(" ", 1)[1] for row in rows))
    for i, engine in enumerate(engines):
        axes = figure.add_subplot(1, len(engines), i + 1)
        ends = [low, high]
        axes.plot(ends, ends, color="#888888", linewidth=0.8)
        axes.fill_between(
            ends,
            [(1 - NEAR) * end for end in ends],
            [(1 + NEAR) * end for end in ends],
            color="#dddddd",
            linewidth=0,
            label=f"within {NEAR:.0%}",
        )
        for spec, color in zip(specs, COLORS, strict=False):
            some = [r for r in rows if r["contender"] == f"{engine} {spec}"]
            x, y = [r["median_seconds"] for r in some], [r["predicted"] for r in some]
            axes.scatter(x, y, s=22, color=color, label=spec, zorder=3)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal", title=engine)
        axes.set(xlabel="measured step, s", ylabel="predicted step, s" if i == 0 else "")
        ticks = [tick for tick in TICKS if low <= tick <= high]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_ticks([], minor=True)
        if i == 0:
            axes.legend(fontsize=7, loc="upper left", frameon=False)
    figure.savefig(path, dpi=120)


def words(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=words, default=["resnet50", "vgg16", "bert-base"])
    parser.add_argument("--rates", type=words, default=["100mbit", "300mbit", "1gbit"])
    parser.add_argument("--engines", type=words, default=list(ENGINES))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--compute-ms", type=float, default=300.0)
    parser.add_argument("--steps", type=int, help="default: 2 to 8, with compression at least 5")
    parser.add_argument("--output", type=Path, default=Path("runs/advise"))
    parser.add_argument("--quick", action="store_true", help="1 model, 1 rate, 3 specs, 2 ranks")
    parser.add_argument("--links", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for model in arguments.models:
        if model not in MODELS:
            parser.error(f"--models: got {model!r}; there are {', '.join(MODELS)}")
    for engine in arguments.engines:
        if engine not in ENGINES:
            parser.error(f"--engines: got {engine!r}; there are {', '.join(ENGINES)}")
    if arguments.quick:
        arguments.models, arguments.rates, arguments.ranks = ["resnet50"], ["1gbit"], 2
    return arguments


def main() -> int:
    """Measure and compare; returns the exit code."""
    arguments = parse()
    if arguments.links:
        measure_as_rank(arguments.links)
        return 0
    count = 3 if arguments.quick else len(SPECS)
    results = Results(arguments.output / "results.json")
    known = [Candidate(spec, exchange, "") for spec, exchange in SPECS[1:count]]
    caches: list[SpeedCache] = []
    jobs = [
        (Cell(model, arguments.compute_ms, arguments.ranks, rate), engine)
        for model in arguments.models
        for rate in sorted(arguments.rates, key=bits_per_second)
        for engine in arguments.engines
    ]
    try:
        costs = {
            (engine, rate): measured_costs(arguments.output, engine, arguments.ranks, rate)
            for engine in arguments.engines
            for rate in arguments.rates
        }
        for number, (cell, engine) in enumerate(jobs, 1):
            line = f"[{number}/{len(jobs)}] {cell.model}, {cell.rate}, {engine}"
            name = f"{cell.model}-{cell.rate}-{engine}-{cell.ranks}"
            caches.append(speeds_of(arguments.output, f"before {name}", known, cell.ranks))
            some = contenders(engine, count)
            done = {row["contender"] for row in results.rows if asdict(cell).items() <= row.items()}
            left = [contender for contender in some if contender.name not in done]
            print(f"{line} ..." if left else f"{line}: done before", flush=True)
            if left:
                logs = arguments.output / "logs"
                for rows in Sweep(left, logs, arguments.steps, profile=True).run(cell):
                    results.add(rows)
        caches.append(speeds_of(arguments.output, f"after {name}", known, arguments.ranks))
    except LabError as error:
        print(f"advise: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"advise: {error}", file=sys.stderr)
        return 1
    cells = [asdict(cell) for cell, _ in jobs]
    speeds = {
        (cell.model, cell.rate, engine): around
        for (cell, engine), around in zip(jobs, pairwise(caches), strict=True)
    }
    of_cells = [row for row in results.rows if any(cell.items() <= row.items() for cell in cells)]
    rows = compared(
        [row for row in of_cells if (row["engine"], row["rate"]) in costs], costs, speeds
    )
    if not rows:
        print(
            "advise: the model's time comes from Horovod's steps without an exchange, and there are none: "
            "name horovod in --engines, too",
            file=sys.stderr,
        )
        return 2
    text = f"{share(rows)}\n\n{table(rows)}\n"
    (arguments.output / "advise.md").write_text(text, encoding="utf-8")
    (arguments.output / "advise.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    draw(rows, arguments.output / "advise.png")
    for row in rows:
        print(
            f"{row['model']:10} {row['rate']:8} {row['contender']:60} "
            f"{1e3 * row['median_seconds']:9.1f} {1e3 * row['predicted']:9.1f} {row['error']:+.0%}"
        )
    print(f"{share(rows)}\n{arguments.output / 'advise.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
