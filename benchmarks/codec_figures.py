#!/usr/bin/env python3
"""The figures of docs/codecs: a codec's output for a small input, and its error by size.

python benchmarks/codec_figures.py [NAME...]

Codecs come from the registry. Their capabilities and the names of their parameters determine the
figure, so a new codec gets one without an edit here. Only the pages that are
not about a codec have functions of their own.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

from gradcomp import EncodeItem, SpecError, encode_batch, get_codec
from gradcomp.codec.frame import split_frames
from gradcomp.codec.spec import StageInfo, parse, stages
from gradcomp.exchange.momentum import Signum
from gradcomp.exchange.rounds import TensorKey
from gradcomp.tools.bench import vnmse
from index_coding import CODERS, FIXED_BYTES, log2_binomial

FloatArray = npt.NDArray[np.float32]

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "codecs" / "figures"

# Okabe and Ito's colours, distinguishable by colour-blind people and in print.
FIRST, SECOND, THIRD, FOURTH, FIFTH = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
GREY = "#b8b8b8"

# The parameters that trade size for error, and their values in a curve: a codec's first one counts.
SWEPT: Mapping[str, Sequence[float]] = {
    "ratio": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "bits": (1, 2, 3, 4, 5, 6, 7, 8),
    "levels": (1, 2, 3, 7, 15, 31, 63, 127),
    "rate": (0.03125, 0.0625, 0.125, 0.25, 0.5, 1, 2, 3, 4),
    "error_bound": (2**-12, 2**-10, 2**-8, 2**-6, 2**-4, 2**-2),
    "tau": (6, 4, 3, 2, 1, 0.3),
    "k": (4, 16, 64, 256, 1024),
    "clip": (0, 4, 2.5, 1.5),
}
# Values that suit a few hundred elements.
SMALL: Mapping[str, float] = {"ratio": 0.1, "chunk": 8, "tau": 2, "k": 410}

CURVE_NUMEL = 1 << 18
DOTS = 4096
BARS = 320
SEEDS = 100


@dataclass(frozen=True)
class Point:
    """One spec on the curve's input: its label, bits per element on the wire, and vNMSE."""

    label: str
    spec: str
    bits: float
    error: float


def normal(numel: int) -> FloatArray:
    """Standard normal elements."""
    return np.random.default_rng(0).standard_normal(numel, np.float32)


def laplace(numel: int) -> FloatArray:
    """Elements with heavier tails, like gradients."""
    return np.random.default_rng(1).laplace(size=numel).astype(np.float32)


def round_trip(spec: str, x: FloatArray, seed: int = 0) -> FloatArray:
    """The decoded elements of x."""
    codec = get_codec(spec)
    return codec.decode(codec.encode(x, seed=seed))


def with_values(spec: str, values: Mapping[str, float]) -> str:
    """A spec with other values for the parameters that it names."""
    *others, codec = parse(spec).stages
    params = {**codec.params, **{name: values[name] for name in values if name in codec.params}}
    texts = [f"{name}={_text(value)}" for name, value in params.items()]
    arguments = f"({','.join(texts)})" if texts else ""
    return "|".join([*(stage.text for stage in others), codec.name + arguments])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def short(spec: str) -> str:
    """A spec without the parameters that have their default values."""
    rows = {stage.name: stage for stage in stages()}
    parts = []
    for stage in parse(spec).stages:
        defaults = {param.name: param.default for param in rows[stage.name].params}
        texts = [
            f"{name}={_text(value)}"
            for name, value in stage.params.items()
            if str(value).lower() != str(defaults[name])
            and (defaults[name] is None or _text(value) != _text_of_default(str(defaults[name])))
        ]
        parts.append(stage.name + (f"({','.join(texts)})" if texts else ""))
    return "|".join(parts)


def _text_of_default(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def curve_specs(spec: str) -> list[tuple[str, str]]:
    """Labels and specs of a codec's curve: the parameter that trades size for error, swept."""
    params = parse(spec).stages[-1].params
    for name, values in SWEPT.items():
        if name in params:
            specs = [(f"{name}={value:g}", with_values(spec, {name: value})) for value in values]
            return [(label, swept) for label, swept in specs if _valid(swept)]
    return [("", spec)]


def _valid(spec: str) -> bool:
    try:
        parse(spec)
    except SpecError:
        return False
    return True


@cache
def curve(spec: str) -> list[Point]:
    """The points of a codec, without those that lose nothing."""
    x = laplace(CURVE_NUMEL)
    points = []
    for label, swept in curve_specs(spec):
        codec = get_codec(swept)
        frame = codec.encode(x)
        error = vnmse(x, codec.decode(frame))
        points.append(Point(label, swept, 8 * frame.size / x.size, error))
    return [point for point in points if point.error > 0]


def codecs() -> list[StageInfo]:
    """The lossy codecs."""
    return [stage for stage in stages() if stage.kind == "codec" and curve(stage.example)]


def draw_curves(axes: Axes, specs: Mapping[str, str]) -> None:
    """vNMSE by bits per element of the given specs, with their colours, among all codecs."""
    for stage in codecs():
        points = curve(stage.example)
        axes.plot(
            [point.bits for point in points],
            [point.error for point in points],
            ".-",
            color=GREY,
            linewidth=0.8,
            markersize=3,
            zorder=1,
        )
    for spec, colour in specs.items():
        points = curve(spec)
        label = short(spec) if len(points) == 1 else short(spec).split("(")[0]
        axes.plot(
            [point.bits for point in points],
            [point.error for point in points],
            "o-",
            color=colour,
            linewidth=1.8,
            markersize=4.5,
            label=label if len(specs) > 1 else None,
            zorder=3,
        )
        # Labels of similar curves are in the same places.
        ends = {points[0], points[-1]} if len(points) > 1 and colour == FIRST else set()
        for point in ends:
            right = point.bits > 2
            axes.annotate(
                point.label,
                (point.bits, point.error),
                xytext=(-5, -4) if right else (5, 5),
                textcoords="offset points",
                ha="right" if right else "left",
                va="top" if right else "bottom",
                color=colour,
                fontsize=8,
                zorder=4,
            )
    axes.plot([], [], ".-", color=GREY, linewidth=0.8, markersize=3, label="other codecs")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    least = min(point.error for spec in specs for point in curve(spec))
    axes.set(xlim=(0.008, 45), ylim=(max(1e-8, 10 ** math.floor(math.log10(least) - 1)), 60))
    axes.set(xscale="log", yscale="log")
    show_ticks(axes, (0.01, 0.03, 0.1, 0.3, 1, 2, 4, 8, 16, 32))
    axes.set_title("error by size, Laplace input")
    axes.set_xlabel("bits per element on the wire")
    axes.set_ylabel("vNMSE")


def show_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """Ticks at these places of a logarithmic x axis, and no others."""
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def draw_dots(axes: Axes, spec: str, x: FloatArray, limit: float) -> None:
    """Decoded values; the error instead, if they are hard to tell from the input."""
    decoded = round_trip(spec, x)
    errors = vnmse(x, decoded) < 1e-3
    base = x if errors else np.zeros_like(x)
    random = not np.array_equal(decoded, round_trip(spec, x, seed=1))
    if not errors:
        axes.plot([-limit, limit], [-limit, limit], color=GREY, linewidth=1, zorder=1)
    axes.plot(x, decoded - base, ".", color=FIRST, markersize=1.6, label="decoded", zorder=2)
    if random:
        total = sum(round_trip(spec, x, seed).astype(np.float64) for seed in range(SEEDS))
        label = f"mean of {SEEDS} seeds"
        axes.plot(x, total / SEEDS - base, ".", color=SECOND, markersize=1, label=label, zorder=3)
        axes.legend(frameon=False, fontsize=8, loc="upper left", markerscale=6, handletextpad=0)
    axes.set_xlim(-limit, limit)
    inside = np.abs(x) <= limit
    span = float(np.max(np.abs((decoded - base)[inside])))
    height = (1.6 if random and errors else 1.25) * max(span, 0 if errors else limit)
    axes.set_ylim(-height, height)
    if errors:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    axes.set_title(short(spec))
    axes.set_xlabel("input")
    axes.set_ylabel("decoded - input" if errors else "decoded")


def draw_bars(axes: Axes, spec: str) -> None:
    """The kept elements of a small signal, and their values."""
    x = laplace(BARS) * np.repeat(np.float32([0.6, 1.4, 0.8, 1.2]), BARS // 4)
    codec = get_codec(spec)
    tensors = [x]
    if "whole_bucket" in codec.caps:
        half = BARS // 2
        tensors = [x[:half] * np.float32(0.5), x[half:] * np.float32(1.5)]
        axes.axvline(half - 0.5, color="black", linewidth=0.8, linestyle="--")
        axes.text(half - 4, 8.4, "one tensor", ha="right", va="top", fontsize=8)
        axes.text(half + 4, 8.4, "another, of the same bucket", va="top", fontsize=8)
    data, sizes = encode_batch([EncodeItem(codec, tensor) for tensor in tensors])
    decoded = np.concatenate([codec.decode(frame) for frame in split_frames(data, len(sizes))])
    x = np.concatenate(tensors)
    kept = np.flatnonzero(decoded)
    axes.vlines(np.arange(BARS), 0, x, color=GREY, linewidth=1.1, label="input")
    axes.vlines(kept, 0, decoded[kept], color=FIRST, linewidth=1.1, zorder=2)
    label = f"decoded: {kept.size} of {BARS} are not 0"
    axes.plot(kept, decoded[kept], "o", color=FIRST, markersize=3, label=label, zorder=3)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set(xlim=(-2, BARS + 1), ylim=(-9, 9), xlabel="index", ylabel="value")
    axes.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)
    axes.set_title(short(spec))


def new_figure(widths: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with axes side by side."""
    figure = Figure(figsize=(9.6, 3.1), dpi=100, layout="constrained")
    grid = figure.subplots(1, len(widths), gridspec_kw={"width_ratios": widths}, squeeze=False)
    axes = list(grid[0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=8)
    return figure, axes


def draw_codec(stage: StageInfo) -> Figure:
    """A codec's output, and its curve."""
    if "sparse" in get_codec(stage.example).caps:
        figure, axes = new_figure([1.7, 1])
        draw_bars(axes[0], with_values(stage.example, SMALL))
    else:
        figure, axes = new_figure([1, 1, 1.3])
        x = normal(DOTS)
        draw_dots(axes[0], stage.example, x, 3.5)
        # Beside the example, the setting with the most visible steps; if there is none, a closer look.
        example = short(stage.example)
        others = [point for point in curve(stage.example) if short(point.spec) != example]
        if others:
            best = min(
                others, key=lambda point: (round(abs(math.log(point.error / 0.05)), 1), point.bits)
            )
            draw_dots(axes[1], best.spec, x, 3.5)
        else:
            draw_dots(axes[1], stage.example, x, 0.25)
            axes[1].set_title("the same, near 0")
    draw_curves(axes[-1], {stage.example: FIRST})
    return figure


def draw_rotate() -> Figure:
    """Uniform levels without and with a rotation, of an input with outliers."""
    figure, axes = new_figure([1, 1, 1.3])
    x = laplace(DOTS)
    x[::512] *= np.float32(5)
    for each, spec in zip(axes, ("uniform(bits=3)", "rotate|uniform(bits=3)"), strict=False):
        draw_dots(each, spec, x, 10)
    draw_curves(axes[2], {"uniform(bits=4)": SECOND, "rotate|uniform(bits=4)": FIRST})
    return figure


def draw_signum() -> Figure:
    """The codec's input for one element's noisy gradient."""
    figure, axes = new_figure([1])
    steps = np.arange(120)
    gradients = (np.cos(steps / 25) + normal(steps.size)).astype(np.float32)
    axes[0].plot(steps, gradients, color=GREY, linewidth=1, label="gradient")
    for momentum, colour in ((0.5, FIFTH), (0.9, FIRST), (0.97, SECOND)):
        memory = Signum(momentum, {})
        sent = []
        key = TensorKey("x", (1,), 1)
        for gradient in gradients:
            sent.append(float(memory.source(gradient[None], key).grad[0]))
            memory.sent(key)
        axes[0].plot(steps, sent, color=colour, linewidth=1.8, label=f"momentum={momentum}")
    axes[0].axhline(0, color="black", linewidth=0.6)
    axes[0].set_title("what the codec is given: one element's gradient, averaged over steps")
    axes[0].set(xlabel="step", ylabel="value", xlim=(0, 119))
    axes[0].legend(frameon=False, fontsize=8, ncols=4, loc="lower left")
    return figure


def draw_index_coders() -> Figure:
    """Bits of the kept elements' indices."""
    figure, axes = new_figure([1, 1])
    x = normal(1 << 18)
    ratios = np.geomspace(0.001, 0.9, 16)
    bound = np.array([log2_binomial(x.size, round(r * x.size)) / (r * x.size) for r in ratios])
    colours = (GREY, FIFTH, THIRD, FIRST, "black")
    for coder, colour in zip(CODERS, colours, strict=True):
        bits = []
        for ratio in ratios:
            frame = get_codec(f"topk(ratio={ratio:.6f})|{coder}").encode(x)
            k = round(float(f"{ratio:.6f}") * x.size)
            bits.append(8 * (frame.size - FIXED_BYTES - 4 * k) / k)
        style = {"color": colour, "linewidth": 1.6, "linestyle": ":" if coder == "auto" else "-"}
        axes[0].plot(ratios, bits, label=coder, **style)
        axes[1].plot(ratios, np.array(bits) / bound, label=coder, **style)
    axes[0].plot(ratios, bound, color=FOURTH, linewidth=1, label="log2 C(n, k) / k")
    axes[0].set(ylim=(0, 34), ylabel="bits per kept index")
    axes[1].set(ylim=(0.98, 1.6), ylabel="multiple of log2 C(n, k)")
    axes[0].set_title("size")
    axes[1].set_title("overhead")
    axes[0].legend(frameon=False, fontsize=8)
    for each in axes:
        each.set(xscale="log", xlabel="fraction of the elements that is kept")
    return figure


def draw_level_coders() -> Figure:
    """Bits per level of the three coders."""
    figure, axes = new_figure([1, 1])
    x = normal(1 << 18)
    levels = (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63, 95, 127)
    for each, norm in zip(axes, ("max", "l2"), strict=True):
        for coder, colour in (("packed", GREY), ("elias_delta", FIFTH), ("rans", FIRST)):
            sizes = []
            for count in levels:
                spec = f"qsgd(levels={count},norm={norm})|{coder}"
                sizes.append(8 * get_codec(spec).encode(x).size / x.size)
            each.plot(levels, sizes, "o-", color=colour, linewidth=1.6, markersize=3.5, label=coder)
        each.set(xscale="log", xlabel="levels", ylabel="bits per element", ylim=(0, 9))
        show_ticks(each, (1, 3, 7, 15, 31, 63, 127))
        each.set_title(f"qsgd(levels,norm={norm})|coder, normal input")
        each.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def draw_lossless() -> Figure:
    """Bits per element by size of the tensor and type of its values."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    codec = get_codec("lossless")
    numels = [10**power for power in range(2, 7)]
    for values, colour, bits in (("float32", FIRST, 32), ("bfloat16", SECOND, 16)):
        sizes = []
        for numel in numels:
            x = normal(numel)
            if bits == 16:
                x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
            sizes.append(8 * codec.encode(x).size / numel)
        axes.plot(numels, sizes, "o-", color=colour, markersize=3.5, label=f"{values} values")
        axes.axhline(bits, color=GREY, linewidth=1)
    axes.set(xscale="log", xlabel="elements", ylabel="bits per element", ylim=(0, 36))
    axes.legend(frameon=False, fontsize=8)
    return figure


def figures() -> dict[str, Callable[[], Figure]]:
    """The function that draws each figure, by name."""
    drawn: dict[str, Callable[[], Figure]] = {
        "rotate": draw_rotate,
        "signum": draw_signum,
        "index-coders": draw_index_coders,
        "level-coders": draw_level_coders,
        "lossless": draw_lossless,
    }
    for stage in codecs():
        drawn[stage.name] = lambda stage=stage: draw_codec(stage)
    return drawn


def save(figure: Figure, path: Path) -> None:
    """Write a small PNG with few colours and without metadata about its creation."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture.quantize(48, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Write the figures that the command line names, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    drawn = figures()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(sorted(drawn))}")
    names = parser.parse_args().names or sorted(drawn)
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        save(drawn[name](), FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
