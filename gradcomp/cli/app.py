"""The ``gradcomp`` command: explains specs, checks configurations, reads frames, measures.

Exit codes: 0 for success, 1 for a frame whose CRC does not match, 2 for bad input.
"""

from __future__ import annotations

import difflib
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from typer.core import TyperGroup

import gradcomp
from gradcomp import _core
from gradcomp.codec import frame as wire
from gradcomp.codec import spec as specs
from gradcomp.config.plan import Resolution, SpecPhase, SpecSchedule
from gradcomp.config.schema import (
    DEFAULT_RULES,
    Config,
    Match,
    load_config,
)
from gradcomp.errors import ConfigError, GradcompError
from gradcomp.exchange.select import exchange_pattern
from gradcomp.gossip import TOPOLOGIES, make_topology
from gradcomp.polar import rate_distortion
from gradcomp.tools import bench as benchmark
from gradcomp.tools import consensus as agreeing
from gradcomp.tools import polar_demo as demo
from gradcomp.tools import profile_model as profiling
from gradcomp.tools import rate_distortion as gaussian_demo
from gradcomp.tools import survey as surveying
from gradcomp.tools.baselines import load_baselines
from gradcomp.tools.model_shapes import MODELS, model_shapes
from gradcomp.tools.simulate import simulate as run_simulation
from gradcomp.tools.step_bytes import ModelBytes, model_bytes

__all__ = ["app"]


class _Group(TyperGroup):
    """Turns GradcompError into a message and exit code 2."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        try:
            return super().invoke(ctx)
        except GradcompError as error:
            typer.echo(f"gradcomp: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Gradient compression for Horovod, BytePS and torch.distributed.",
)

ConfigArgument = Annotated[
    list[str],
    typer.Argument(metavar="CONFIG", help="YAML files, composed left to right, or a spec."),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        default_factory=list,
        show_default=False,
        help="Override one dotted key; repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradcomp {gradcomp.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command("list")
def list_stages(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STAGE]...", help="Show these in full, with their parameters."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the stages a spec may name."""
    rows = [_stage(name) for name in names] if names else list(specs.stages())
    if as_json:
        _print_json([asdict(row) | {"exchange": _exchange(row)} for row in rows])
    elif names:
        _print(*(_wrap(_in_full(row)) for row in rows))
    else:
        table = _table("stage", "kind", "exchange", "what it does")
        for row in rows:
            table.add_row(row.name, row.kind, _exchange(row) or "-", row.summary)
        _print(table, "", "parameters and paper of a stage: gradcomp list STAGE")


def _stage(name: str) -> specs.StageInfo:
    known = {row.name: row for row in specs.stages()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean '{near[0]}'? " if near else ""
        raise GradcompError(f"unknown stage '{name}': {guess}known: {', '.join(known)}")
    return known[name]


def _in_full(row: specs.StageInfo) -> str:
    exchange = _exchange(row)
    lines = [f"{row.kind} {row.name}: {row.summary}", f"  as in: {row.example}"]
    for param in row.params:
        default = "" if param.default is None else f" = {param.default}"
        lines.append(f"  {param.name}{default}, in {param.range}: {param.doc}")
    if row.exactly_one_of:
        lines.append(f"  exactly one of {', '.join(row.exactly_one_of)} must be given")
    if exchange is not None:
        lines.append(f"  exchange: {exchange}")
    return "\n".join([*lines, f"  NaN and Inf: {row.nonfinite}", f"  source: {row.paper}"])


def _exchange(row: specs.StageInfo) -> str | None:
    if row.kind not in ("codec", "algorithm"):
        return None
    return exchange_pattern(specs.parse(row.example))


@app.command()
def explain(
    spec: Annotated[
        list[str],
        typer.Argument(metavar="SPEC...", help='For example "residual|topk(ratio=0.01)".'),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            show_default="resnet20, with several specs",
            help=f"Count the bytes of a step of {', '.join(MODELS)}.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a spec: stages, parameters, exchange pattern, size; or compare several."""
    parsed = [specs.parse(one) for one in spec]
    several = len(parsed) > 1
    if several and model is None:
        model = "resnet20"
    shapes = {} if model is None else model_shapes(model)
    steps = [model_bytes(one, shapes) for one in parsed] if shapes else []
    if as_json:
        objects = [_spec_json(one) for one in parsed]
        for one, step in zip(objects, steps, strict=False):
            one["step"] = {"model": model, **asdict(step)}
        _print_json(objects if several else objects[0])
        return
    if not several:
        _print(*_explained(parsed[0]), *([""] if steps else []))
    if steps:
        numel = sum(map(math.prod, shapes.values()))
        title = (
            f"{model}, {len(shapes)} tensors of {numel:,} elements: what a rank hands over in a "
            "step after all warm-ups, how much of it (and how many tensors) travels uncompressed, "
            "and the bits for each element of the others:"
        )
        _print(_wrap(title), "", _steps_table(spec, steps))


_NUMELS = (1000, 1_000_000, 100_000_000)


def _max_bytes(spec: specs.Spec) -> dict[int, int]:
    """The largest payload, or frame, by number of elements."""
    if spec.algorithm:
        return {}  # what it sends depends on shapes
    codec = gradcomp.get_codec(spec.at(0, 0).codec)
    framed = exchange_pattern(spec) == "gather"
    size = codec.max_encoded_size if framed else codec.max_payload_size
    return {numel: size(numel) for numel in _NUMELS}


def _spec_json(spec: specs.Spec) -> dict[str, Any]:
    return {
        "canonical": spec.canonical,
        "stages": [
            {"name": stage.name, "kind": stage.kind, "params": dict(stage.params)}
            for stage in spec.stages
        ],
        "exchange": exchange_pattern(spec),
        "max_bytes": {str(numel): size for numel, size in _max_bytes(spec).items()},
    }


def _explained(spec: specs.Spec) -> list[str | Table]:
    text = _wrap(gradcomp.explain(spec.canonical))
    sizes = _max_bytes(spec)
    if not sizes:
        return [text]
    table = _table("elements", "bytes at most", "bits/element", numbers=3)
    for numel, size in sizes.items():
        table.add_row(f"{numel:,}", f"{size:,}", f"{8 * size / numel:.3f}")
    return [text, "", table]


def _steps_table(texts: Sequence[str], steps: Sequence[ModelBytes]) -> Table:
    table = _table("spec", "exchange", "bytes", "of them dense", "bits/element", numbers=3)
    for text, step in zip(texts, steps, strict=True):
        bits = step.bits_per_element
        table.add_row(
            _foldable(text),
            step.exchange,
            f"{step.sent_bytes:,.0f}",
            f"{step.dense_bytes:,} ({step.dense_tensors})",
            "-" if bits is None else f"{bits:.3f}",
        )
    return table


@app.command()
def check(
    config: ConfigArgument,
    overrides: SetOption,
    tensors: Annotated[
        list[str],
        typer.Option(
            "--tensor",
            metavar="NAME=SHAPE",
            default_factory=list,
            show_default=False,
            help="Show what this tensor takes, such as fc.weight=512x64; repeatable.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Validate a configuration and show its rules, in order."""
    loaded = _load(config, overrides)
    default, *plans = loaded.compress.plans
    small = SpecSchedule.of(loaded.compress.small)
    rules: list[tuple[Resolution, Match]] = [
        *zip(plans, (rule.match for rule in loaded.compress.rules), strict=True),
        *(
            (Resolution(f"default rule: {label}", small), match)
            for label, match in DEFAULT_RULES.items()
        ),
        (default, Match()),
    ]
    taken = [
        (name, shape, loaded.resolve(name, shape)) for name, shape in map(_named_shape, tensors)
    ]
    nodes = loaded.compress.ranks_per_node
    if as_json:
        _print_json(
            {
                "seed": loaded.seed,
                "policy": loaded.compress.policy,
                "ranks_per_node": nodes,
                "rules": [
                    {"rule": chosen.rule, "match": _conditions(match), **_plan_json(chosen)}
                    for chosen, match in rules
                ],
                "tensors": [
                    {"name": name, "shape": shape, "rule": chosen.rule, **_plan_json(chosen)}
                    for name, shape, chosen in taken
                ],
            }
        )
        return
    # A column less leaves room for the specs.
    asked = any(exchange != "auto" for *_, exchange in loaded.compress.choices)
    table = _table("rule", "tensors", "spec", *(["exchange"] if asked else []))
    for chosen, match in rules:
        label, conditions = chosen.rule, _conditions_text(match)
        for phase, pattern in _phases(chosen):
            spec = _foldable(_since(phase) + phase.use.canonical)
            table.add_row(label, conditions, spec, *([pattern] if asked else []))
            label = conditions = ""
    policy = ["policy: auto"] if loaded.compress.policy == "auto" else []
    layout = [] if nodes is None else [f"ranks per node: {nodes}"]
    _print("valid", f"seed: {loaded.seed}", *policy, *layout, "", table)
    if taken:
        table = _table("tensor", "shape", "rule", "spec")
        for name, shape, chosen in taken:
            specs_ = "\n".join(
                _foldable(_since(phase) + phase.use.canonical) for phase in chosen.plan.phases
            )
            table.add_row(name, _shape_text(shape), chosen.rule, specs_)
        _print("", table)


def _phases(chosen: Resolution) -> list[tuple[SpecPhase, str]]:
    """What a rule's tensors take one after the other, each with its exchange pattern."""
    return [
        (phase, exchange_pattern(phase.use, phase.exchange or chosen.exchange))
        for phase in chosen.plan.phases
    ]


def _plan_json(chosen: Resolution) -> dict[str, Any]:
    (first, pattern), *later = _phases(chosen)
    then = [
        {
            f"from_{phase.begin[0]}": phase.begin[1],
            "spec": phase.use.canonical,
            "exchange": pattern,
            "state": phase.state,
        }
        for phase, pattern in later
    ]
    return {"spec": first.use.canonical, "exchange": pattern} | ({"then": then} if then else {})


def _since(phase: SpecPhase) -> str:
    unit, begin = phase.begin
    dropping = ", state dropped" if phase.state == "drop" else ""
    return f"from {unit} {begin}{dropping}: " if unit else ""


def _load(sources: Sequence[str], overrides: Sequence[str]) -> Config:
    """Files compose; a bare spec among them overrides compress.default."""
    paths = [source for source in sources if _is_path(source)]
    bare = [source for source in sources if not _is_path(source)]
    if len(bare) > 1:
        raise ConfigError(f"got {len(bare)} specs, {', '.join(map(repr, bare))}; give one at most")
    if not bare:
        return load_config(paths, overrides)
    canonical = specs.parse(bare[0]).canonical
    start = [] if paths else ["version=1"]
    return load_config(paths, [*start, f"compress.default={canonical}", *overrides])


def _is_path(source: str) -> bool:
    return "/" in source or source.endswith((".yaml", ".yml")) or Path(source).is_file()


def _named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, shape = text.rpartition("=")
    sizes = shape.split("x") if shape else []
    if not (name and equals and all(size.isdecimal() for size in sizes)):
        raise GradcompError(
            f"--tensor {text!r}: expected NAME=SHAPE, the shape as sizes joined by 'x': "
            "fc.weight=512x64 (empty for a scalar)"
        )
    return name, tuple(int(size) for size in sizes)


def _shape_text(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _conditions(match: Match) -> dict[str, Any]:
    return match.model_dump(exclude_none=True)


def _conditions_text(match: Match) -> str:
    conditions = _conditions(match)
    return "\n".join(f"{key}: {_plain(value)}" for key, value in conditions.items()) or "all others"


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@app.command()
def inspect(
    frame: Annotated[
        typer.FileBinaryRead, typer.Argument(metavar="FRAME", help="A file; - for standard input.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Show the header of a frame and check its CRC."""
    data = frame.read()
    info = wire.inspect(data)
    if as_json:
        _print_json(asdict(info))
    else:
        crc = {None: "none", True: "matches", False: "DOES NOT MATCH: the frame is damaged"}
        table = _table("field", "value")
        table.add_row("version", str(info.version))
        table.add_row("flags", f"{info.flags:#04x}")
        table.add_row("codec", f"{info.codec_id} ({info.codec_name or _unknown(info.codec_id)})")
        table.add_row("spec hash", f"{info.spec_hash:#010x}")
        table.add_row("elements", f"{info.numel:,}")
        table.add_row("stream", "none" if info.stream is None else f"{info.stream:#018x}")
        table.add_row("payload", f"{info.payload_bytes:,} bytes")
        table.add_row("frame", f"{info.total_bytes:,} bytes")
        table.add_row("CRC", crc[info.crc_ok])
        trailer = 0 if info.crc_ok is None else 4
        header = data[: info.total_bytes - info.payload_bytes - trailer]
        _print(table, "", "header:", _hexdump(header))
    if info.crc_ok is False:
        raise typer.Exit(1)


def _unknown(codec_id: int) -> str:
    return "unknown" if codec_id < 0x8000 else "of a plug-in that is not installed here"


def _hexdump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"  {start:04x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)


def _bench_all(
    numel: int,
    repeats: int,
    threads: Sequence[int],
    data: Sequence[Path],
    plot: Path | None,
    as_json: bool,
) -> None:
    recorded = surveying.load_gradients(data)
    specs_of_all = surveying.survey_specs()
    peers, missing = load_baselines()
    rows = []
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("codecs", total=len(specs_of_all) + len(peers))
        for row in surveying.survey(specs_of_all, peers, numel, repeats, recorded, threads):
            rows.append(row)
            progress.advance(task)
    for reason in missing:
        typer.echo(f"peers left out: {reason}", err=True)
    if plot is not None:
        surveying.plot(rows, plot)
    comparisons = surveying.compare_with_peers(rows)
    if as_json:
        _print_json(
            {
                "numel": numel,
                "repeats": repeats,
                "simd": _core.simd_level(),
                "threads": rows[0].threads,
                "rows": [asdict(row) for row in rows],
                "comparisons": [asdict(comparison) for comparison in comparisons],
            }
        )
        return
    parts: list[str | Table] = [
        f"{numel:,} elements, {repeats} repeats, {_core.simd_level()}, "
        f"{rows[0].threads[0]} thread(s); bits per element; vNMSE by input; 10^6 elements per "
        "second and multiples (x) of memcpy",
        "",
        _survey_table(rows),
    ]
    if len(rows[0].threads) > 1:
        first = rows[0].threads[0]
        title = f"10^6 elements per second, and multiples (x) of those with {first} thread(s):"
        parts += ["", title, "", _scaling_table(rows)]
    if comparisons:
        parts += ["", "speeds as multiples of a peer's:", "", _comparison_table(comparisons)]
    # One line a row, whatever the terminal.
    _print(*parts, width=80 + 12 * len(recorded) + max(len(row.spec) for row in rows))


def _survey_table(rows: Sequence[surveying.SurveyRow]) -> Table:
    inputs = list(rows[0].vnmse)
    headings = ("spec", "bits", *inputs, *_SPEED_HEADINGS)
    table = _table(*headings, numbers=len(headings) - 1)
    for row in rows:
        table.add_row(
            row.spec,
            f"{row.bits_per_element:.3g}",
            *(f"{row.vnmse[name]:.2g}" for name in inputs),
            *_speed_cells(row, row.threads[0], lambda timing: timing.speed_to_memcpy),
        )
    return table


def _scaling_table(rows: Sequence[surveying.SurveyRow]) -> Table:
    headings = ("spec", "threads", *_SPEED_HEADINGS)
    table = _table(*headings, numbers=len(headings) - 1)
    for row in rows:
        for threads in row.threads:
            speeds = _speed_cells(row, threads, lambda timing: timing.scaling)
            table.add_row(row.spec, str(threads), *speeds)
    return table


_SPEED_HEADINGS = ("encode", "x", "decode", "x", "add", "x")


def _speed_cells(
    row: surveying.SurveyRow, threads: int, multiple: Callable[[benchmark.Timing], float]
) -> list[str]:
    cells = []
    for operation in ("encode", "decode", "decode_add"):
        timing = row.timing(operation, threads)
        if timing:
            cells += [f"{1e3 / timing.ns_per_element:.0f}", f"{multiple(timing):.2f}"]
        else:
            cells += ["-", "-"]
    return cells


def _comparison_table(comparisons: Sequence[surveying.PeerComparison]) -> Table:
    table = _table("spec", "peer", "threads", "encode", "decode", numbers=3)
    for comparison in comparisons:
        table.add_row(
            comparison.spec,
            comparison.peer,
            str(comparison.threads),
            f"{comparison.encode:.1f}",
            f"{comparison.decode:.1f}",
        )
    return table


@app.command()
def bench(
    threads: Annotated[
        list[int],
        typer.Option(
            default_factory=list,
            metavar="N",
            show_default="GRADCOMP_THREADS",
            help="Number of threads; repeat it to see how speed scales.",
        ),
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            default_factory=list,
            metavar="FILE",
            show_default=False,
            help="With --all: .npz of a recorded gradient, for its error; repeatable.",
        ),
    ],
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="Such as 'residual|topk(ratio=0.01)'.")
    ] = None,
    numel: Annotated[int, typer.Option(help="Elements of the gradient.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(help="Samples of each operation.")] = 20,
    every: Annotated[
        bool, typer.Option("--all", help="Every registered codec, and peers that are installed.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="With --all: PNG to draw rate, distortion and speed to.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the speed of a spec, or of every codec, beside a memory copy."""
    if every == (spec is not None):
        raise GradcompError("give either a SPEC or --all")
    if spec is None:
        _bench_all(numel, repeats, threads, data, plot, as_json)
        return
    if data or plot:
        raise GradcompError("--data and --plot go with --all")
    result = benchmark.measure(spec, numel, repeats, threads=threads)
    if as_json:
        _print_json(asdict(result))
        return
    several = len(result.threads) > 1
    headings = ["operation", "ns/element", "IQR", "GB/s", "speed/memcpy"]
    if several:
        headings += ["threads", "scaling"]
    table = _table(*headings, numbers=len(headings) - 1)
    for row in result.timings:
        cells = [
            row.operation,
            f"{row.ns_per_element:.3f}",
            f"{row.ns_iqr:.3f}",
            f"{row.gb_per_s:.2f}",
            f"{row.speed_to_memcpy:.2f}",
        ]
        if several:
            cells += [str(row.threads), f"{row.scaling:.2f}"]
        table.add_row(*cells)
    counts = " and ".join(map(str, result.threads))
    _print(
        result.spec,
        f"{numel:,} elements, {repeats} repeats, {result.simd}, {counts} thread(s)",
        f"{result.wire_bytes:,} bytes on the wire, {result.bits_per_element:.3f} bits/element, "
        f"vNMSE {result.vnmse:.3g}",
        "",
        table,
    )


@app.command()
def simulate(
    config: ConfigArgument,
    workers: Annotated[int, typer.Option(help="Ranks that average together.")],
    overrides: SetOption,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "resnet20",
    as_json: JsonOption = False,
) -> None:
    """Count the bytes a configuration sends for a model."""
    loaded = _load(config, overrides)
    shapes = model_shapes(model)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"{model}, {workers} workers", total=steps * len(shapes))
        result = run_simulation(loaded, shapes, workers, steps, lambda: progress.advance(task))
    if as_json:
        _print_json(asdict(result))
        return
    table = _table("rule and spec", "tensors", "elements", "bytes", "ratio", numbers=4)
    for group in result.groups:
        table.add_row(
            f"{group.rule}\n{textwrap.indent(_foldable(group.spec), '  ')}",
            f"{group.tensors:,}",
            f"{group.numel:,}",
            f"{group.sent_bytes:,.0f}",
            f"{group.ratio:.1f}",
        )
    table.add_row(
        "all",
        f"{len(shapes):,}",
        f"{result.dense_bytes // 4:,}",
        f"{result.sent_bytes:,.0f}",
        f"{result.ratio:.1f}",
    )
    _print(
        f"{model}, {workers} workers, {steps} steps; bytes that a rank hands over in a step:",
        "",
        table,
        "",
        *([f"inside nodes: {result.node_bytes:,.0f} bytes"] if result.node_bytes else []),
        f"vNMSE of the average: {result.vnmse:.3g}",
        f"time: {result.seconds_per_step:.3g} s/step for all workers, one after the other",
    )


@app.command()
def profile(
    config: ConfigArgument,
    overrides: SetOption,
    workers: Annotated[int, typer.Option(help="Ranks that average together.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 3,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "resnet20",
    bandwidth: Annotated[
        float, typer.Option(metavar="MBIT/S", help="Of each rank's link, in Mbit/s.")
    ] = 1000.0,
    step: Annotated[
        int, typer.Option(help="Which step and epoch of training, for schedules.")
    ] = profiling.FIRST_STEP,
    as_json: JsonOption = False,
) -> None:
    """Show where a step's time goes under a configuration, and what to change."""
    loaded = _load(config, overrides)
    shapes = model_shapes(model)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"{model}, {workers} workers", total=None)
        result = profiling.profile_model(
            loaded, shapes, workers, steps, 1e6 * bandwidth, step, lambda: progress.advance(task)
        )
    remarks = profiling.advice(result)
    if as_json:
        _print_json(asdict(result) | {"seconds": result.seconds, "advice": remarks})
        return
    stages = _table("stage", "ms", "share", numbers=2)
    for stage, seconds in result.parts.items():
        stages.add_row(stage, f"{1e3 * seconds:.3f}", f"{seconds / result.seconds:.1%}")
    stages.add_row("all", f"{1e3 * result.seconds:.3f}", "100.0%")
    rules = _table("rule and spec", "tensors", "rounds", "computed, ms", numbers=3)
    for row in result.rules:
        rules.add_row(
            f"{row.rule}\n{textwrap.indent(_foldable(row.spec), '  ')}",
            f"{row.tensors:,}",
            f"{row.rounds:,}",
            f"{1e3 * row.seconds:.3f}",
        )
    sent = sum(result.sent_bytes.values())
    _print(
        f"{model}, {workers} workers, {result.threads} thread(s), {steps} steps; of one rank, in a "
        "step:",
        "",
        stages,
        "",
        _wrap(
            f"wire: {sent:,.0f} bytes handed over in {result.requests:.0f} requests, at "
            f"{bandwidth:g} Mbit/s, computed; nothing overlaps here"
        ),
        "",
        rules,
        "",
        *(_wrap(f"- {remark}") for remark in remarks),
    )


NORMAL_RATES = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0]


def _normal_demo(
    lengths: list[int],
    rates: list[float],
    elements: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    points = list(gaussian_demo.gaussian_points(lengths, rates, elements, seed))
    if plot is not None:
        gaussian_demo.plot(points, plot)
    if as_json:
        rows = [asdict(point) for point in points]
        _print_json({"elements": elements, "seed": seed, "points": rows})
        return
    table = _table("compressor", "R", "vNMSE", "2^(-2R)", "gap, dB", numbers=4)
    for point in points:
        table.add_row(
            point.name,
            f"{point.rate:.4f}",
            f"{point.vnmse:.4f}",
            f"{point.bound:.4f}",
            f"{point.gap:.3f}",
        )
    _print(f"{elements:,} normal values; R is bits per element of the whole frame", "", table)


@app.command("polar-demo")
def polar_demo(
    lengths: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            metavar="N",
            show_default="256, 1024, 4096, 16384; normal: 16384",
            help="Source bits in a block, or the codes' length; repeatable.",
        ),
    ] = None,
    rates: Annotated[
        list[float] | None,
        typer.Option(
            "--rate",
            metavar="R",
            show_default="0.1, 0.2, ... 0.9; normal: 1/16, 1/8, ... 2",
            help="Compressed bits per bit, or per element; repeatable.",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(metavar="bits|normal", help="Fair coin flips, or normal values.")
    ] = "bits",
    bits: Annotated[
        int | None,
        typer.Option(
            show_default="262144; normal: 1048576",
            help="Source bits, or elements, measured for each point.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the source bits.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the points and the bound.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compress coin flips or normal values with polar codes; compare with the bound."""
    if source == "normal":
        elements = 2**20 if bits is None else bits
        _normal_demo(lengths or [16384], rates or NORMAL_RATES, elements, seed, plot, as_json)
        return
    if source != "bits":
        raise GradcompError(f"--source is {source!r}; it must be bits or normal")
    lengths = lengths or [256, 1024, 4096, 16384]
    rates = rates or [tenths / 10 for tenths in range(1, 10)]
    bits = 2**18 if bits is None else bits
    console = Console(stderr=True)
    points = []
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("codes", total=len(lengths) * len(rates))
        for point in demo.hamming_points(lengths, rates, bits, seed):
            points.append(point)
            progress.advance(task)
    if plot is not None:
        demo.plot(points, plot)
    if as_json:
        _print_json({"bits": bits, "seed": seed, "points": [asdict(point) for point in points]})
        return
    table = _table("N", "R = K/N", "distortion D", "least D", "1 - h(D)", numbers=5)
    for point in points:
        table.add_row(
            str(point.length),
            f"{point.rate:.4f}",
            f"{point.distortion:.4f}",
            f"{point.bound:.4f}",
            f"{rate_distortion(min(point.distortion, 0.5)):.4f}",
        )
    _print(
        f"fair coin flips, at least {bits:,} bits a point; D is the part that is wrong", "", table
    )


@app.command()
def consensus(
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            show_default=", ".join(agreeing.DEFAULTS),
            help="gossip, powergossip:RANK, choco:SPEC, deepsqueeze:SPEC, moniqua:BITS; "
            "repeatable.",
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="|".join(agreeing.DATA), help="What the matrices are.")
    ] = "random",
    gammas: Annotated[
        list[float] | None,
        typer.Option(
            "--gamma",
            metavar="G",
            show_default=", ".join(map(str, agreeing.GAMMAS)),
            help="Step size, in (0, 2]; repeatable.",
        ),
    ] = None,
    topology: Annotated[str, typer.Option(help=f"One of {', '.join(TOPOLOGIES)}.")] = "ring",
    ranks: Annotated[int, typer.Option(help="Number of ranks.")] = 8,
    size: Annotated[int, typer.Option(help="Rows and columns of each rank's matrix.")] = 100,
    steps: Annotated[int, typer.Option(help="Rounds of each run.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the matrices.", min=0)] = 0,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write all points of all runs.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw distance against bits.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how many bits gossip algorithms need until ranks agree."""
    graph = make_topology(topology, ranks)
    values = agreeing.make_data(data, ranks, size, seed)
    names, sizes = algorithms or agreeing.DEFAULTS, gammas or agreeing.GAMMAS
    console = Console(stderr=True)
    runs = []
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("runs", total=len(names) * len(sizes))
        for run in agreeing.sweep(names, sizes, values, graph, steps):
            runs.append(run)
            progress.advance(task)
    if table is not None:
        agreeing.write_csv(runs, table)
    if plot is not None:
        agreeing.plot(runs, f"{data} matrices, {topology} of {ranks}", plot)
    if as_json:
        _print_json({"data": data, "topology": topology, "runs": [asdict(run) for run in runs]})
        return
    best = _table("algorithm", "gamma", "kbit/step", "distance", "Mbit to 1%", numbers=4)
    for run in agreeing.best(runs):
        needed = run.bits_to(0.01)
        best.add_row(
            run.algorithm,
            f"{run.gamma:g}",
            f"{run.final.bits / run.final.step / 1e3:.1f}",
            f"{run.final.distance:.2g}",
            "-" if needed is None else f"{needed / 1e6:.2f}",
        )
    _print(
        f"{data} {size} x {size} matrices, {topology} of {ranks} ranks, {steps} steps; of each "
        "algorithm the best step size:",
        "",
        best,
    )


def _table(*columns: str, numbers: int = 0) -> Table:
    """A borderless table whose last ``numbers`` columns are right-aligned."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        number = index >= len(columns) - numbers
        justify: Any = "right" if number else "left"
        table.add_column(column, justify=justify, no_wrap=number, overflow="fold")
    return table


def _foldable(spec: str) -> str:
    """A spec for a narrow column: one stage a line."""
    return spec.replace("|", "|\n")


def _wrap(text: str) -> str:
    width = Console().width
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )


def _print(*parts: str | Table, width: int | None = None) -> None:
    console = Console(markup=False, highlight=False, width=width)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
