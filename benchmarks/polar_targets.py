"""Errors and speeds of the polar codecs beside their targets, on normal values."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

import gradcomp
from gradcomp import _core
from gradcomp.tools.rate_distortion import measure

FloatArray = npt.NDArray[np.float32]

# Gaps to 2^(-2R) in dB of an 8-state entropy-constrained trellis-coded quantizer, by R.
ECTCQ_GAPS = {0.5: 0.46, 1.0: 0.45, 2.0: 0.44, 3.0: 0.43}


def normal(numel: int, seed: int = 1) -> FloatArray:
    """Normal values of variance 1."""
    return np.random.default_rng(seed).standard_normal(numel, np.float32)


def row(target: str, what: str, measured: float, sign: str, limit: float) -> None:
    """Print one line; ``sign`` gives the target's side of the limit."""
    met = measured <= limit if sign == "<=" else measured >= limit
    print(f"{target:<4} {what:<52} {measured:>8.4f} {sign} {limit:<7.4g} {'' if met else 'missed'}")


def fastest(call: Callable[[], object], repeats: int = 7) -> float:
    """CPU seconds of this thread."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


def errors() -> None:
    """T1 to T3, and the targets of `preset=best`."""
    x = normal(1 << 22)
    for rate, limit in {1 / 16: 0.930, 1 / 8: 0.860, 1 / 4: 0.730, 1 / 2: 0.529}.items():
        spec = f"rotate|polar_b(rate={rate},n=16384)"
        row("T1", f"vNMSE of {spec}", measure(spec, x).vnmse, "<=", limit)
    for rate, limit in {1 / 8: 0.855, 1 / 2: 0.526}.items():
        spec = f"rotate|polar_b(rate={rate},n=4096,preset=best)"
        row("best", f"vNMSE of {spec}", measure(spec, x).vnmse, "<=", limit)
    for rate in (0.5, 1, 2):
        spec = f"rotate|polar_ec(rate={rate})"
        row("T2", f"gap in dB of {spec}", measure(spec, x).gap, "<=", 0.30)
    for rate, gap in ECTCQ_GAPS.items():
        spec = f"rotate|polar_ec(rate={rate})"
        row("T3", f"dB better than ECTCQ: {spec}", gap - measure(spec, x).gap, ">=", 0.1)


def speeds(numel: int) -> None:
    """T4 to T6, in multiples of a memcpy of the same input in the same run."""
    x = normal(numel)
    y = np.zeros_like(x)
    targets = (
        ("T4", "polar_b(rate=0.5)", 1.0, 1.2),
        ("T4", "polar_b(rate=0.5,n=4096)", 1.0, 1.2),
        ("T4", "polar_b(rate=0.5,n=1024)", 1.0, 1.2),
        ("T5", "polar_ec(rate=1)", 0.4, 0.5),
        ("T6", "rotate|polar_ec(rate=1)", 0.3, 0.0),
        ("T6", "rotate|polar_b(rate=0.5)", 0.3, 0.0),
    )
    for target, spec, encode_limit, decode_limit in targets:
        codec = gradcomp.get_codec(spec)
        out = np.zeros(codec.max_encoded_size(numel), np.uint8)
        encoding, decoding, copying = [], [], []
        for _ in range(7):  # in turns: other load affects all alike
            copying.append(fastest(lambda: np.copyto(y, x), 1))
            encoding.append(fastest(lambda c=codec, o=out: c.encode(x, out=o), 1))
            frame = codec.encode(x, out=out)
            decoding.append(fastest(lambda c=codec, f=frame: c.decode(f, out=y), 1))
        copy = min(copying)
        row(target, f"encode of {spec}", copy / min(encoding), ">=", encode_limit)
        if decode_limit:
            row(target, f"decode of {spec}", copy / min(decoding), ">=", decode_limit)


def means() -> None:
    """T7: unbiasedness."""
    x = normal(1 << 18)
    energy = float(np.sum(x.astype(float) ** 2))
    for spec in ("polar_b(rate=0.5,unbiased=true)", "polar_ec(rate=1,unbiased=true)"):
        codec = gradcomp.get_codec(spec)
        mean = np.zeros(x.size)
        single = 0.0
        for step in range(64):
            y = codec.decode_payload(codec.encode_payload(x, step=step), x.size, step=step)
            mean += y / 64
            single += float(np.sum((y - x.astype(float)) ** 2)) / energy / 64
        ratio = 64 * float(np.sum((mean - x) ** 2)) / energy / single
        row("T7", f"off theory, mean of 64: {spec}", abs(ratio - 1), "<=", 0.02)
        row("T7", f"vNMSE of {spec}", single, "<=", 1.15 if "polar_b" in spec else 0.40)


def bytes_agree() -> None:
    """T10: the same frames at every SIMD level and number of threads."""
    x = normal(1_100_003)
    differing = 0
    level, threads = _core.simd_level(), _core.thread_count()
    for spec in (
        "polar_b(rate=0.25)",
        "polar_b(rate=0.25,preset=best)",
        "polar_ec(rate=1)",
        "rotate|polar_ec(rate=2)",
    ):
        codec = gradcomp.get_codec(spec)
        frames = set()
        for name in _core.simd_levels():
            for count in (1, 2, 5):
                _core.set_simd_level(name)
                _core.set_thread_count(count)
                frames.add(codec.encode(x).tobytes())
        differing += len(frames) - 1
    _core.set_simd_level(level)
    _core.set_thread_count(threads)
    row("T10", "frames that differ between levels or threads", differing, "<=", 0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=25_000_000, help="elements for speeds")
    numel = parser.parse_args().numel
    errors()
    speeds(numel)
    means()
    bytes_agree()


if __name__ == "__main__":
    main()
