r"""The adaptive codec beside others on recorded gradients: error by bits on the wire.

    for model in digits-cnn char-lstm char-transformer; do
        python scripts/results/record_gradients.py --model $model --steps 111:150 runs/late/$model.npz
    done
    python scripts/results/record_gradients.py --model char-transformer-1m --steps 161:200 \
        runs/late/char-transformer-1m.npz
    python benchmarks/adaptive_comparison.py runs/late/*.npz --output docs/results/adaptive
    python benchmarks/adaptive_comparison.py --coders runs/late/*.npz

Each file holds the gradients of several steps of a model, as scripts/results/record_gradients.py records
them. All tensors of a step travel as one bucket. Two errors are measured:

- the error of the last step's gradient by itself (vNMSE);
- with error feedback, over the last five steps, the unsent part of their sum at the end:
  |residual|^2 / |sum of the gradients|^2.

Bits count every byte of the frames, except for methods marked as ideal: these are bounds without
any framing. preset=basis learns from the earlier steps, as decoded by one rank.

    python benchmarks/adaptive_comparison.py --speeds runs/late/*.npz

measures speeds instead: on a large matrix, and on the files' buckets, as first steps and as steps
of training.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import gradcomp
from adaptive_methods import Bucket, Learning, energy, frames, load, methods, numel
from gradcomp import DecodeItem, EncodeItem, _core, decode_batch_add, encode_batch
from gradcomp.codec.frame import split_frames
from polar_targets import fastest

FEEDBACK_STEPS = 5

OWN_STYLES: dict[str, dict[str, Any]] = {
    "adaptive": {"color": "black", "lw": 2.0},
    "adaptive, coder=polar": {"color": "black", "ls": "--"},
    "adaptive, preset=basis": {"color": "red", "lw": 2.0},
    "adaptive, preset=basis, coder=polar": {"color": "red", "ls": "--"},
}
OTHER_COLORS = ("C0", "C1", "C2", "C4", "C5", "C6", "C7", "C8", "C9", "navy")


class Point(NamedTuple):
    """One method at one rate."""

    model: str
    feedback: bool
    method: str
    asked: float
    bits: float
    error: float


def measure(model: str, steps: Sequence[Bucket]) -> Iterator[Point]:
    """Every method, without and with error feedback."""
    last, used_steps = steps[-1], steps[-FEEDBACK_STEPS:]
    scale = float(np.sqrt(energy(last) / numel(last)))
    total = [np.sum([step[i] for step in used_steps], axis=0) for i in range(len(last))]
    for name, asked, run in methods(scale):
        if isinstance(run, Learning):
            run.begin(steps[:-1])
        bits, decoded = run(last)
        error = energy([x - y for x, y in zip(last, decoded, strict=True)]) / energy(last)
        yield Point(model, False, name, asked, bits, error)
        if name == "QSGD":
            continue  # unbiased, and too far from the gradient for error feedback
        if isinstance(run, Learning):
            run.begin(steps[:-FEEDBACK_STEPS])
        residual = [np.zeros_like(x) for x in last]
        used = []
        for step in used_steps:
            corrected = [r + x for r, x in zip(residual, step, strict=True)]
            bits, decoded = run(corrected)
            residual = [x - y for x, y in zip(corrected, decoded, strict=True)]
            used.append(bits)
        error = energy(residual) / energy(total)
        yield Point(model, True, name, asked, float(np.mean(used)), error)


def plot(points: Sequence[Point], path: Path) -> None:
    """A panel for each model, raw above and with error feedback below."""
    models = list(dict.fromkeys(point.model for point in points))
    figure = Figure(figsize=(4.2 * len(models), 8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(models), squeeze=False, sharex=True)
    names = list(dict.fromkeys(point.method for point in points))
    others = [name for name in names if name not in OWN_STYLES]
    colors = dict(zip(others, itertools.cycle(OTHER_COLORS), strict=False))
    for row, feedback in enumerate((False, True)):
        for axes, model in zip(panels[row], models, strict=True):
            for name in names:
                curve = sorted(
                    (point.bits, point.error)
                    for point in points
                    if (point.model, point.feedback, point.method) == (model, feedback, name)
                )
                if curve:
                    style = OWN_STYLES.get(name) or {"color": colors[name]}
                    style = {"marker": ".", "lw": 1.0} | style
                    axes.plot(*zip(*curve, strict=True), label=name, **style)
            axes.set(xscale="log", yscale="log", xlim=(0.04, 3), ylim=(1e-4, 2))
            axes.set_title(f"{model}{', error feedback' if feedback else ''}", fontsize=10)
            axes.grid(alpha=0.3)
        panels[row][0].set_ylabel("part of the sum not sent" if feedback else "vNMSE")
    for axes in panels[1]:
        axes.set_xlabel("bits per element on the wire")
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=5, fontsize=8)
    figure.savefig(path, dpi=80)


def interpolated(points: Sequence[Point], name: str, bits: float) -> float:
    """A method's error at other bits, between its neighbours on logarithmic axes."""
    curve = sorted(
        (np.log(point.bits), np.log(point.error)) for point in points if point.method == name
    )
    x, y = zip(*curve, strict=True)
    return float(np.exp(np.interp(np.log(bits), x, y)))


def table(points: Sequence[Point]) -> None:
    """Errors by rate, and the ratios of others' errors to them at the same bits."""
    for model in dict.fromkeys(point.model for point in points):
        for feedback in (False, True):
            of_model = [p for p in points if (p.model, p.feedback) == (model, feedback)]
            print(f"\n{model}{', error feedback' if feedback else ''}")
            print(f"{'rate':>6} {'bits':>7} {'error':>9} {'/top-k fp16':>12} {'/ECSQ':>7}")
            for point in sorted(of_model, key=lambda point: point.method):
                if point.method not in ("adaptive", "adaptive, preset=basis"):
                    continue
                ratios = [
                    interpolated(of_model, name, point.bits) / point.error
                    if point.asked <= limit
                    else float("nan")
                    for name, limit in (("top-k, fp16", 1), ("ECSQ, ideal", 2))
                ]
                print(
                    f"{point.asked:6g} {point.bits:7.4f} {point.error:9.5f} {ratios[0]:12.2f} "
                    f"{ratios[1]:7.2f}  {point.method}"
                )


def coders(name: str, steps: Sequence[Bucket], learns: bool = False) -> None:
    """The gain of coder=polar over the usual coder, at the latter's bits.

    For the last step; with ``learns`` with preset=basis, learned from the steps before.
    """
    bucket = steps[-1]
    rates = (0.25, 0.5, 1, 2)
    bits, errors = np.empty((2, len(rates))), np.empty((2, len(rates)))
    for row, coder in enumerate(("ecsq", "polar")):
        for column, rate in enumerate(rates):
            run = frames(f"adaptive(rate={rate},coder={coder})")
            if learns:
                run = learning = Learning(rate, coder)
                learning.begin(steps[:-1])
            used, decoded = run(bucket)
            left = energy([x - y for x, y in zip(bucket, decoded, strict=True)])
            bits[row, column], errors[row, column] = used, 10 * np.log10(left / energy(bucket))
    gains = errors[0] - errors[1] - np.gradient(errors[1], bits[1]) * (bits[0] - bits[1])
    print(f"\n{name}{', preset=basis' if learns else ''}")
    print(f"{'rate':>6} {'ecsq: bits':>11} {'dB':>7} {'polar: bits':>12} {'dB':>7} {'gain':>6}")
    for column, rate in enumerate(rates):
        print(
            f"{rate:6g} {bits[0, column]:11.4f} {errors[0, column]:7.2f} {bits[1, column]:12.4f} "
            f"{errors[1, column]:7.2f} {gains[column]:6.2f}"
        )


def speeds() -> None:
    """Speeds on a matrix of 8 Mi elements, beside a memcpy of it in the same run."""
    rng = np.random.default_rng(0)
    scales = np.exp(0.7 * (rng.normal(size=(4096, 1)) + rng.normal(size=2048)))
    pairs = rng.normal(size=(4096, 2)) @ rng.normal(size=(2, 2048))
    x = (scales * rng.normal(size=scales.shape) + 0.5 * pairs).astype(np.float32)
    y = np.empty_like(x)
    print(f"8 Mi elements, 10^6/s and in multiples of a memcpy\n{'spec':<40} {'rank':>4}", end="")
    print(f" {'encode':>12} {'carried':>12} {'decode':>12}")
    specs = [
        f"adaptive(rate={rate},rank={rank})" for rate in (0.1, 0.25, 0.5, 1) for rank in ("auto", 0)
    ]
    specs += [f"adaptive(rate={rate},rank=0,coder=polar)" for rate in (0.25, 0.5, 1)]
    for spec in specs:
        codec = gradcomp.get_codec(spec)
        out = np.empty(codec.max_encoded_size(x.size), np.uint8)
        frame = codec.encode(x, out=out).copy()
        copying = fastest(lambda: np.copyto(y, x), 5)
        encoding = fastest(lambda c=codec, o=out: c.encode(x, out=o), 3)  # type: ignore[misc]
        carried = np.zeros(codec.carried, np.float32)
        item = EncodeItem(codec, x, carried=carried)
        encode_batch([item])
        resuming = fastest(lambda i=item: encode_batch([i]), 5)  # type: ignore[misc]
        decoding = fastest(lambda c=codec, f=frame: c.decode(f, out=y), 5)  # type: ignore[misc]
        print(f"{spec:<40} {frame[24] >> 3:4}", end="")
        for taken in (encoding, resuming, decoding):
            print(f" {x.size / taken / 1e6:6.0f} {copying / taken:5.3f}", end="")
        print()
    learning = Learning(0.25, resumes=True)
    learning.begin([[x]] * 2)
    data = learning.encode([x])
    print(f"preset=basis, rate 0.25, {'turned' if data[24] >> 3 == 17 else 'as it is'}")
    for what, run in (
        ("encode", lambda: learning.encode([x])),
        ("decode", lambda: learning.decode(data, [x])),
        ("learn", lambda: learning.learn([x])),
    ):
        copying = fastest(lambda: np.copyto(y, x), 5)
        taken = fastest(run, 3)
        print(f"  {what:<8} {x.size / taken / 1e6:6.0f} {copying / taken:5.3f}")


def bucket_speeds(path: Path) -> None:
    """CPU time for each step of a file in ns per element: as a first step, and as a step of training.

    A step of training has error feedback and the state of the step before. Decoding adds a rank's frames to a
    sum. Two threads are measured in elapsed time.
    """
    steps = load(path)
    elements = numel(steps[0])
    print(f"\n{path.stem}, {elements} elements in {len(steps[0])} tensors, ns an element")
    print(f"{'rate':>6} {'first':>8} {'training':>8} {'decode':>8} {'training':>10} {'decode':>8}")
    print(f"{'':>6} {'':>8} {'':>8} {'':>8} {'2 threads':>10} {'':>8}")
    for rate in (0.1, 0.25, 0.5, 1):
        codec = gradcomp.get_codec(f"adaptive(rate={rate})")
        figures: list[float] = []
        for threads, clock in ((1, time.thread_time), (2, time.perf_counter)):
            _core.set_thread_count(threads)
            first, training, decoding = [], [], []
            carried = [np.zeros(codec.carried, np.float32) for _ in steps[0]]
            residuals = [np.zeros(x.size, np.float32) for x in steps[0]]
            sums = [np.zeros(x.size, np.float32) for x in steps[0]]
            for bucket in steps:
                start = clock()
                encode_batch([EncodeItem(codec, x) for x in bucket])
                first.append(clock() - start)
                items = [
                    EncodeItem(codec, x, residual=residual, carried=state)
                    for x, residual, state in zip(bucket, residuals, carried, strict=True)
                ]
                start = clock()
                data, _ = encode_batch(items)
                training.append(clock() - start)
                decoded = [
                    DecodeItem("", codec, [frame], out)
                    for frame, out in zip(split_frames(data, len(bucket)), sums, strict=True)
                ]
                start = clock()
                decode_batch_add(decoded, 1.0)
                decoding.append(clock() - start)
            shown = (first, training[1:], decoding) if threads == 1 else (training[1:], decoding)
            figures += [1e9 * float(np.median(times)) / elements for times in shown]
        first_ns, training_ns, decode_ns, training_2, decode_2 = figures
        print(
            f"{rate:6g} {first_ns:8.2f} {training_ns:8.2f} {decode_ns:8.2f} "
            f"{training_2:10.2f} {decode_2:8.2f}"
        )
    _core.set_thread_count(1)


def basis_speeds(path: Path) -> None:
    """CPU time for each step of a file with preset=basis, and the errors' ratio to the default."""
    steps = load(path)
    codec = gradcomp.get_codec("adaptive(preset=basis)")
    share = sum(codec.basis_size(x.shape) for x in steps[0]) / numel(steps[0])
    print(f"\n{path.stem}, preset=basis of {share:.0%} of the elements, ms")
    print(f"{'rate':>6} {'encode':>8} {'learn':>8} {'error':>8}")
    for rate in (0.1, 0.25, 0.5):
        usual = frames(f"adaptive(rate={rate})")
        learning = Learning(rate, resumes=True)
        learning.begin(steps[:1])
        times, errors = [], np.zeros(2)
        for bucket in steps[1:]:
            start = time.thread_time()
            data = learning.encode(bucket)
            encoded = time.thread_time()
            decoded = learning.decode(data, bucket)
            before = time.thread_time()
            learning.learn(decoded)
            times.append((1e3 * (encoded - start), 1e3 * (time.thread_time() - before)))
            errors += [
                energy([x - y for x, y in zip(bucket, found, strict=True)])
                for found in (decoded, usual(bucket)[1])
            ]
        encoding, teaching = np.median(times, axis=0)
        print(f"{rate:6g} {encoding:8.2f} {teaching:8.2f} {errors[0] / errors[1]:8.3f}")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files", nargs="*", type=Path, help="of scripts/results/record_gradients.py"
    )
    parser.add_argument("--output", type=Path, help="of .csv and .png")
    parser.add_argument("--speeds", action="store_true", help="measure speeds instead")
    parser.add_argument(
        "--coders", action="store_true", help="compare the coders, also on noise, and nothing else"
    )
    arguments = parser.parse_args()
    if arguments.coders:
        rng = np.random.default_rng(0)
        coders("normal noise", [[rng.normal(size=(512, 512)).astype(np.float32)]])
        for path in arguments.files:
            for learns in (False, True):
                coders(path.stem, load(path), learns)
        return
    if arguments.speeds:
        speeds()
        for path in arguments.files:
            bucket_speeds(path)
            basis_speeds(path)
        return
    if not arguments.files or arguments.output is None:
        parser.error("give files and --output, or --speeds, or --coders")
    points = []
    for path in arguments.files:
        points += measure(path.stem, load(path))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Point._fields)
        for p in points:
            writer.writerow([*p[:4], f"{p.bits:.5g}", f"{p.error:.5g}"])
    plot(points, arguments.output.with_suffix(".png"))
    table(points)


if __name__ == "__main__":
    main()
