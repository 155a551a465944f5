"""``gradcomp advise``: specs and exchange patterns for a job, ranked by predicted steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gradcomp.cli import show
from gradcomp.cli.advise_gpu import gpu_json, gpu_lines
from gradcomp.cli.options import MODEL_HELP, JsonOption
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.codec.threads import use_processors
from gradcomp.config.schema import Config
from gradcomp.config.sources import load_sources
from gradcomp.errors import GradcompError
from gradcomp.processors import processors
from gradcomp.tools.advise import links as measuring
from gradcomp.tools.advise import rank as ranking
from gradcomp.tools.advise.accuracy import comparisons
from gradcomp.tools.advise.cache import SpeedCache, machine_key
from gradcomp.tools.advise.calibrate import ticks
from gradcomp.tools.advise.gpu import GPU_SPECS, H100, advise_gpu, read_times
from gradcomp.tools.advise.predict import Job
from gradcomp.tools.advise.predictions import PriorMaker, prior_text
from gradcomp.tools.advise.wire import ENGINES
from gradcomp.tools.read_model import read_model
from gradcomp.tools.step_model import Link

__all__ = ["advise"]

_LEGEND = (
    "ms: of a step. speed: of the step without compression over this one. MB: through a node's link in "
    "a step. error: none; rounding; later, as a memory sends the rest in later steps; lost. level: "
    "comparisons by training (docs/results) that ended no worse than uncompressed ones."
)


def advise(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help=f"Shapes of {MODEL_HELP}",
        ),
    ],
    specs: Annotated[
        list[str],
        typer.Option(
            "--spec",
            metavar="SPEC",
            default_factory=list,
            show_default=False,
            help="A spec to compare, instead of the usual ones; repeatable.",
        ),
    ],
    config: Annotated[
        list[str],
        typer.Option(
            "--config",
            metavar="FILE",
            default_factory=list,
            show_default=False,
            help="A file of the training's configuration, or a spec: its specs are compared; repeatable.",
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Ranks that average together; not with --measure."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Nodes, each with one link.  [default: one for each rank]"),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(metavar="MBIT/S", help="Bandwidth of a node's link; not with --measure."),
    ] = None,
    latency: Annotated[
        float, typer.Option(metavar="MS", help="Latency of the link, one way.")
    ] = 0.1,
    compute: Annotated[
        float,
        typer.Option(metavar="MS", help="A step's time on one rank alone, on an accelerator."),
    ] = 0.0,
    host_compute: Annotated[
        float, typer.Option(metavar="MS", help="Further time, on a core of the host.")
    ] = 0.0,
    cores: Annotated[
        float | None,
        typer.Option(metavar="N", help="Cores of a node.  [default: those of this machine]"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="horovod or torch, which is DDP.  [default: horovod]"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Gradients are on GPUs, in DDP on NCCL: h100 for the times of docs/gpu.md, or the "
            "results.json of benchmarks/gpu.py on yours.",
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the links, under horovodrun or torchrun.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write compress.prior for this configuration."),
    ] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Measure the speeds of codecs again.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rank specs and exchange patterns for a job by their predicted steps."""
    shapes = read_model(model)
    trained = load_sources(config) if config else None
    if save is not None:
        _check_save(trained, compute + host_compute)
    if gpu is not None:
        _refuse_beside_gpu(
            engine=None if engine == "torch" else engine,
            cores=cores,
            save=save,
            host_compute=host_compute or None,
            measure=measure or None,
            recalibrate=recalibrate or None,
        )
        ranks, bandwidth = _given("ranks", ranks), _given("bandwidth", bandwidth)
        job = Job(
            shapes=shapes,
            ranks=ranks,
            link=Link(1e6 * bandwidth, 1e-3 * latency),
            costs=ENGINES["torch"],
            compute=1e-3 * compute,
            ranks_per_node=_ranks_per_node(ranks, nodes),
        )
        known = gpu.lower() == "h100"
        times = H100 if known else read_times(gpu)
        configured = [] if trained is None else [spec.canonical for spec in trained.specs]
        ways = advise_gpu(job, specs or configured or GPU_SPECS, times)
        if as_json:
            show.output_json(gpu_json(job, times, not known, ways))
        else:
            show.output(*gpu_lines(model, job, times, not known, ways))
        return
    measured = None
    if measure:
        _refuse_beside_measure(ranks=ranks, bandwidth=bandwidth, engine=engine)
        measured = _measured()
        if measured is None:
            return  # another rank than the first
        engine, ranks, link, costs = measured.engine, measured.ranks, measured.link, measured.costs
        nodes = ranks // measured.ranks_per_node if nodes is None else nodes
    else:
        engine = engine or "horovod"
        ranks, bandwidth = _given("ranks", ranks), _given("bandwidth", bandwidth)
        if engine not in ENGINES:
            raise GradcompError(f"--engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
        link, costs = Link(1e6 * bandwidth, 1e-3 * latency), ENGINES[engine]
    per_node = _ranks_per_node(ranks, nodes)
    own_cores = (processors() if cores is None else cores) / per_node
    use_processors(per_node)
    copies = min(per_node, processors())
    if measured is not None and per_node == ranks:
        per_node = 1  # the machine's own network was measured instead of links
    cache = SpeedCache()
    if recalibrate:
        cache.clear()
    if own_cores > 0 and measured is None:
        costs = costs.slowed(max(1.0, 1.0 / own_cores))
    job = Job(
        shapes=shapes,
        ranks=ranks,
        link=link,
        costs=costs,
        compute=1e-3 * compute,
        host_compute=1e-3 * host_compute,
        ranks_per_node=per_node,
        cores=own_cores,
        copy_byte=ranking.copy_byte(cache, copies) if costs.copies else 0.0,
    )
    configured = [] if trained is None else [spec.canonical for spec in trained.specs]
    found = ranking.candidates(specs or configured or ranking.SPECS, ranks, per_node)
    prior = None if save is None or trained is None else PriorMaker.of(trained, job)
    also = [] if prior is None else prior.candidates
    unknown = ranking.to_calibrate(cache, list(dict.fromkeys([*found, *also])))
    with show.progress(
        "measuring codecs on this machine", ticks * len(unknown), lines=True
    ) as advance:
        ranking.calibrate(cache, unknown, advance)
    advices = ranking.advise(job, found, cache)
    if save is not None and prior is not None:
        _write(save, prior_text(prior.predictions(cache)))
    if as_json:
        show.output_json(_json(job, engine, advices, measured))
        return
    show.output(
        show.wrap(_title(model, job, engine, measured)),
        "",
        _table(advices),
        "",
        show.wrap(_LEGEND),
        "",
        *_best(advices[0], engine, per_node),
        *([] if prior is None else ["", _saved(f"{save}", len(prior.groups), config)]),
    )


def _check_save(trained: Config | None, compute: float) -> None:
    """Refuse what would make a wrong prior, before any rank measures."""
    if trained is None:
        raise GradcompError(
            "--save predicts for a configuration: give its files, each with --config"
        )
    if trained.compress.policy != "auto":
        raise GradcompError(
            f"compress.policy is {trained.compress.policy}, and --save predicts for auto: set "
            "policy: auto in a file of --config"
        )
    if not compute > 0:
        raise GradcompError(
            f"--compute is {compute:g}, and --save needs it above 0, as exchanges that computation "
            "hides cost nothing: give a step's time on one rank alone, in ms"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise GradcompError(
            f"--save {path}: cannot be written ({error.strerror}); give a path in an existing "
            "folder"
        ) from None


def _saved(path: str, groups: int, config: Sequence[str]) -> str:
    files = ", ".join([*config, path])
    return show.wrap(f"{path}: predictions for {groups} groups of tensors; train with {files}.")


def _given(name: str, value: Any) -> Any:
    if value is None:
        raise GradcompError(
            f"--{name} is missing: give it, or run under horovodrun or torchrun with --measure"
        )
    return value


def _refuse_beside_measure(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise GradcompError(
                f"--{name} is {value}, and --measure finds it from the job: leave one of them out"
            )


def _refuse_beside_gpu(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise GradcompError(
                f"--{name.replace('_', '-')} is given, and --gpu predicts DDP on NCCL by the times of a GPU: leave "
                "one of them out"
            )


def _ranks_per_node(ranks: int, nodes: int | None) -> int:
    nodes = ranks if nodes is None else nodes
    if nodes < 1 or ranks % nodes:
        raise GradcompError(
            f"--nodes is {nodes}; it must divide the {ranks} ranks, as nodes have equally many"
        )
    return ranks // nodes


def _measured() -> measuring.MeasuredLinks | None:
    """The job's links, on its first rank; None on others."""
    job = measuring.open_links(measuring.engine_here())
    try:
        if job.rank:
            measuring.measure_links(job)
            return None
        with show.progress("measuring links", measuring.kinds, lines=True) as advance:
            return measuring.measure_links(job, advance)
    finally:
        job.close()


def _json(
    job: Job,
    engine: str,
    advices: Sequence[ranking.Advice],
    measured: measuring.MeasuredLinks | None,
) -> dict[str, Any]:
    rate = job.link.bits_per_second
    return {
        "engine": engine,
        "ranks": job.ranks,
        "ranks_per_node": job.ranks_per_node,
        "bits_per_second": rate if math.isfinite(rate) else None,
        "latency": job.link.latency,
        "compute": job.compute,
        "host_compute": job.host_compute,
        "cores_per_rank": job.cores,
        "machine": machine_key(),
        "measured": None if measured is None else asdict(measured),
        "candidates": [
            {
                **asdict(advice.candidate),
                **asdict(advice.prediction),
                "hidden": advice.prediction.hidden,
                "speedup": advice.speedup,
                "error": advice.error,
                "accuracy": [asdict(known) for known in comparisons(advice.candidate.spec)],
            }
            for advice in advices
        ],
    }


def _title(model: str, job: Job, engine: str, measured: measuring.MeasuredLinks | None) -> str:
    elements = sum(math.prod(shape) for shape in job.shapes.values())
    nodes = job.ranks // job.ranks_per_node
    how = "measured" if measured else f"latency {1e3 * job.link.latency:g} ms"
    host = f" and {1e3 * job.host_compute:g} on the host" if job.host_compute else ""
    return (
        f"{model}, {elements:,} elements; {engine}, {job.ranks} ranks on {nodes} nodes; links of "
        f"{job.link.bits_per_second / 1e6:.4g} Mbit/s, {how}; {1e3 * job.compute:g} ms of "
        f"computation{host}, {job.cores:g} cores for a rank. Predicted, after all warm-ups:"
    )


def _table(advices: Sequence[ranking.Advice]) -> Table:
    headings = ("spec", "exchange", "ms", "speed", "MB", "error", "level")
    table = show.table(*headings)
    for column in (2, 3, 4):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    # The exchanges of a spec are one group, in the order of the fastest of each.
    groups: dict[str, list[ranking.Advice]] = {}
    for advice in advices:
        groups.setdefault(_short(advice.candidate), []).append(advice)
    for name, group in groups.items():
        for number, advice in enumerate(group):
            table.add_row(
                "" if number else SpecCell(name),
                advice.candidate.pattern if advice.candidate.compresses else "-",
                f"{1e3 * advice.prediction.seconds:.1f}",
                f"{advice.speedup:.2f}x",
                f"{advice.prediction.link_bytes / 1e6:.4g}",
                advice.error,
                advice.accuracy,
            )
    return table


def _short(candidate: ranking.Candidate) -> str:
    return candidate.spec if candidate.compresses else "do not compress"


def _best(best: ranking.Advice, engine: str, ranks_per_node: int) -> list[str]:
    """Sentences on the first row, and the lines to paste."""
    candidate, prediction = best.candidate, best.prediction
    stages = ", ".join(
        f"{stage} {1e3 * seconds:.1f}" for stage, seconds in prediction.stages.items() if seconds
    )
    lines = [
        show.wrap(
            f"The first one's step by stage, in ms: {stages or 'nothing'}; of these, "
            f"{1e3 * prediction.hidden:.1f} at the same time as others."
        )
    ]
    if not candidate.compresses:
        return [*lines, "", "Do not compress: leave the script as it is."]
    lines += [show.wrap(f"  {known.text}") for known in comparisons(candidate.spec)]
    lines += ["", "compress.yaml:", "", *_yaml(candidate, ranks_per_node), "", *_CODE[engine]]
    return lines


def _yaml(candidate: ranking.Candidate, ranks_per_node: int) -> list[str]:
    lines = ["version: 1", "compress:", f'  default: "{candidate.spec}"']
    if candidate.exchange != "auto":
        lines.append(f"  exchange: {candidate.exchange}")
    if candidate.pattern.startswith("two_level"):
        lines.append(f"  ranks_per_node: {ranks_per_node}")
    return lines


_CODE = {
    "horovod": [
        "in the script:",
        "",
        "from horovod_compressors.torch import Compression",
        'compression = Compression.from_config("compress.yaml", (), model.named_parameters())',
        "optimizer = hvd.DistributedOptimizer(",
        "    optimizer, named_parameters=model.named_parameters(), compression=compression)",
    ],
    "torch": [
        "in the script:",
        "",
        "from gradcomp import load_config",
        "from torch_compressors import ddp_hook",
        'model.register_comm_hook(*ddp_hook(load_config(["compress.yaml"]), model, optimizer))',
    ],
}
