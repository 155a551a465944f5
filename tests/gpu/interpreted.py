"""Runs kernels in Triton's interpreter beside the C++ core, as a process: python interpreted.py GROUP...

Prints the number of cases of each group, then the cases that differ; these are exit status 1. The
interpreter replaces Triton's language in the whole process, hence one of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton import language
from triton.runtime import interpreter

from gpu.inputs import FAMILIES, Floats, gradient
from gradcomp import ToEncode, encode_batch, get_codec
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.correction import Correction
from torch_compressors.gpu import codecs
from torch_compressors.gpu.bucket import Kept, Momentum, ToLaunch

CPU = torch.device("cpu")
SEED, STEP = 5, 7

_patch = interpreter._patch_lang
_patched: set[int] = set()


def _patch_once(fn: Any) -> Any:
    """Patches Triton's language once for a launch, not at each call of a function: half of the time."""
    if language.core.is_builtin(language.load):  # a new launch
        _patched.clear()
    modules = {id(value) for value in fn.__globals__.values() if value in (language, language.core)}
    if modules <= _patched:
        return interpreter._LangPatchScope()
    _patched.update(modules)
    return _patch(fn)


interpreter._patch_lang = _patch_once


class Case(NamedTuple):
    """One tensor in a launch."""

    name: str
    grad: Floats
    residual: Floats
    momentum: Floats


class Mode(NamedTuple):
    """Error feedback around the codec of a launch."""

    residual: bool = False
    correction: dict[str, Any] | None = None


# Factors are no powers of two, so that contraction would show.
FACTORS = {"factor": 0.9, "scale": 0.7}
MODES = {
    "plain": Mode(),
    "feedback": Mode(True),
    "correction": Mode(True, {**FACTORS, "masking": True}),
    "nesterov": Mode(True, {**FACTORS, "masking": True, "nesterov": True}),
    "unmasked": Mode(True, {**FACTORS, "masking": False}),
}


def cases(rng: np.random.Generator, sizes: list[int], count: int) -> list[Case]:
    """``count`` tensors: all families, sizes at random among ``sizes``."""
    made = []
    for i in range(count):
        family = FAMILIES[i % len(FAMILIES)]
        n = sizes[int(rng.integers(len(sizes)))]
        # Without a residual of its own, a gradient's ties, zeros and payloads reach the codec.
        state = rng.standard_normal((2, n)).astype(np.float32) * np.float32(i % 3 > 0)
        made.append(Case(f"{family}, {n} elements", gradient(rng, family, n), *state))
    return made


class Result(NamedTuple):
    """A tensor after a step: bytes that travel, residual and momentum."""

    sent: bytes
    residual: bytes
    momentum: bytes


def of_core(spec: str, sent: str, mode: Mode, tensors: list[Case]) -> list[Result]:
    """The C++ core's results; residuals with ``spec``, payloads with ``sent``."""
    states = []
    for text in dict.fromkeys((spec, sent)):
        codec = get_codec(text)
        states = [(case.residual.copy(), case.momentum.copy()) for case in tensors]
        items = [
            ToEncode(
                *(codec, case.grad, SEED, STEP, i),
                residual if mode.residual else None,
                *(0.9, 0.7),
                None if mode.correction is None else Correction(momentum, **mode.correction),
            )
            for i, (case, (residual, momentum)) in enumerate(zip(tensors, states, strict=True))
        ]
        data, sizes = encode_batch(items)
        if text == sent:
            header = 32 if "seeded" in codec.caps else 24
            ends = np.cumsum(sizes)
            payloads = [
                bytes(data[end - size + header : end - 4])
                for end, size in zip(ends, sizes, strict=True)
            ]
        if text == spec:
            after = states
    return [
        Result(payload, residual.tobytes(), momentum.tobytes())
        for payload, (residual, momentum) in zip(payloads, after, strict=True)
    ]


def of_kernels(spec: str, mode: Mode, tensors: list[Case], steps: int = 1) -> list[Result]:
    """The kernels' results; of a later launch of the same encoder, if there are several."""
    encoder = codecs.encoder(spec, [case.grad.size for case in tensors], CPU)
    for _ in range(steps):
        states = [
            (torch.from_numpy(case.residual.copy()), torch.from_numpy(case.momentum.copy()))
            for case in tensors
        ]
        launched = encoder.launch(
            [
                ToLaunch(
                    torch.from_numpy(case.grad),
                    residual if mode.residual else None,
                    *(0.9, 0.7),
                    None if mode.correction is None else Momentum(momentum, **mode.correction),
                    derive_stream(SEED, STEP, i),
                )
                for i, (case, (residual, momentum)) in enumerate(zip(tensors, states, strict=True))
            ]
        )
    return [
        Result(_sent(result), residual.numpy().tobytes(), momentum.numpy().tobytes())
        for result, (residual, momentum) in zip(launched, states, strict=True)
    ]


def _sent(result: Any) -> bytes:
    if not isinstance(result, Kept):
        return result.data.numpy().tobytes()
    values = result.values.numpy().tobytes()
    if result.indices is None:
        return values
    # A payload with index coding raw32.
    head = np.array([result.indices.numel(), 0], np.uint32).tobytes()
    return head + result.indices.numpy().tobytes() + values


def differences(
    spec: str, mode: str, tensors: list[Case], sent: str = "", steps: int = 1
) -> Iterator[str]:
    """The tensors whose results differ."""
    want = of_core(spec, sent or spec, MODES[mode], tensors)
    got = of_kernels(spec, MODES[mode], tensors, steps)
    for case, expected, actual in zip(tensors, want, got, strict=True):
        for field, a, b in zip(Result._fields, expected, actual, strict=True):
            if a != b:
                yield f"{spec}, {mode}, {case.name}: {field} differs"


SIZES = [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 128, 129, 200, 255, 256, 257, 300, 520]
"""Around multiples of the small tiles of these tests."""


class Tally:
    """Counts cases and collects the differing ones."""

    def __init__(self) -> None:
        self.count = 0
        self.faults: list[str] = []

    def compare(
        self, spec: str, mode: str, tensors: list[Case], sent: str = "", steps: int = 1
    ) -> None:
        """One launch of all tensors."""
        self.count += len(tensors)
        self.faults += differences(spec, mode, tensors, sent, steps)


def small_tiles() -> None:
    """Tiles so small that tensors of a few hundred elements have several."""
    codecs.TILE, codecs.BLOCK = 128, 64


VALUES = ("fp32", "fp16", "bf16", "int8", "sign", "means", "2bit")


def topk(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    for i, values in enumerate(VALUES):
        for mode in MODES:
            ratio = (0.01, 0.05, 0.3, 0.9)[i % 4]
            spec = f"topk(ratio={ratio},values={values})"
            sent = f"topk(ratio={ratio})|raw32"
            tally.compare(spec, mode, cases(rng, SIZES, each), sent)


def topk_state(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Later steps find the state of earlier ones; real tiles; large tensors are sampled."""
    small_tiles()
    tally.compare("topk(k=9)", "feedback", cases(rng, SIZES, each), "topk(k=9)|raw32", steps=2)
    codecs.TILE, codecs.BLOCK = 2048, 1024
    for n in (2047, 2049, 9000, 40001):
        spec = "topk(ratio=0.01)"
        tally.compare(spec, "feedback", cases(rng, [n], len(FAMILIES)), spec + "|raw32")


def half(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    for spec in ("fp16", "fp16(overflow=saturate)", "bf16"):
        for mode in ("plain", "feedback", "unmasked"):
            tally.compare(spec, mode, cases(rng, SIZES, each))


GROUPS: dict[str, tuple[Callable[[Tally, np.random.Generator, int], None], int]] = {
    "topk": (topk, 30),
    "topk_state": (topk_state, 24),
    "half": (half, 120),
}
"""Comparisons, and the number of tensors in a launch."""


def main(names: list[str], share: float) -> int:
    """Run groups with a share of their cases."""
    np.seterr(all="ignore")
    status = 0
    for name in names:
        tally = Tally()
        compare, each = GROUPS[name]
        # Whole rounds of the families.
        compare(tally, np.random.default_rng(len(name)), max(len(FAMILIES), int(each * share)))
        print(f"{name}: {tally.count} cases, {len(tally.faults)} differences")
        print(*tally.faults[:20], sep="\n")
        status |= bool(tally.faults)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], float(sys.argv[1])))
