"""Comparisons of kernels with the C++ core: of payloads, residuals and momenta, byte by byte.

A name is a group of comparisons, or a launch such as feedback:fp16. `main` prints the number of cases,
then those that differ. interpreted.py runs it without a GPU, compiled.py on one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu import factor_comparisons, share_comparisons
from gpu.guards import guard_all_tensors, used_guards
from gpu.inputs import FAMILIES, Floats, gradient
from gradcomp import EncodeItem, ProtocolError, _core, encode_batch, get_codec
from gradcomp.codec.batch_items import PeerItem
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.correction import Correction
from gradcomp.codec.devices import peer_device_of
from gradcomp.codec.frame_parts import kept_of_frames, payloads_of_frames
from gradcomp_torch.gpu import add, bucket, codecs, packed, peer_sums
from gradcomp_torch.gpu.bucket import Kept, LaunchItem, Momentum
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.encoder import Launches
from gradcomp_torch.gpu.encoders.topk import TopK
from gradcomp_torch.gpu.peer_device import DirectDevice

CPU = torch.device("cpu")
SEED, STEP = 5, 7
GRAD_TYPES = tuple(bucket.GRAD_TYPES)
"""Float32, float16 and bfloat16."""


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
    "unmasked nesterov": Mode(True, {**FACTORS, "masking": False, "nesterov": True}),
}


def cases(rng: np.random.Generator, sizes: list[int], count: int) -> list[Case]:
    """``count`` tensors: all families, sizes at random among ``sizes``."""
    made = []
    for i in range(count):
        family = FAMILIES[i % len(FAMILIES)]
        n = sizes[int(rng.integers(len(sizes)))]
        # Without a residual of its own, a gradient's ties, zeros, payloads and overflows reach the codec.
        own = i % 3 == 0
        if family == "a tenth of it large":
            n, own = max(sizes), True
        state = rng.standard_normal((2, n)).astype(np.float32) * np.float32(not own)
        made.append(Case(f"{family}, {n} elements", gradient(rng, family, n), *state))
    return made


def tie() -> Case:
    """A sum at a tie of rounding, which another order rounds to another float32."""
    grad = np.zeros(32, np.float32)
    grad[[0, 16, 1, 9]] = [2.0**60, 2.0**36, 2.0**7, 2.0**7]
    return Case("a tie", grad, np.zeros_like(grad), np.zeros_like(grad))


def two_nans() -> Case:
    """Of two NaN, a codec of one element leaves one."""
    grad = np.zeros(200, np.float32)
    grad[[3, 170]] = np.nan
    return Case("two NaN", grad, np.zeros_like(grad), np.zeros_like(grad))


def many_nans() -> Case:
    """A sample holds several NaN, none of which is a threshold."""
    grad = np.ones(1000, np.float32)
    grad.view(np.uint32)[::3] = 0x7FC00000 + np.arange(334, dtype=np.uint32)
    return Case("many NaN", grad, np.zeros_like(grad), np.zeros_like(grad))


def many_ties() -> Case:
    """Ties for the last places in several spans, next to elements that differ from them in the last bit."""
    grad = np.full(700, 0.5, np.float32)
    grad[::9], grad[::37], grad[::101] = 1, np.nextafter(np.float32(1), np.float32(2)), 2
    return Case("many ties", grad, np.zeros_like(grad), np.zeros_like(grad))


def overflow_beside_rest() -> Case:
    """As the first tensor after `rotate`: the scale of a block is NaN, that of the rest is not."""
    block = np.array([2.0**110, 2.0**110, 0, 0], np.float32)
    _core.rotate_back(block, derive_stream(SEED, STEP, 0))
    grad = np.concatenate([block, np.array([1, 3], np.float32)])
    return Case("a scale beside the rest's", grad, np.zeros_like(grad), np.zeros_like(grad))


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
            EncodeItem(
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


def of_kernels(
    spec: str,
    mode: Mode,
    tensors: list[Case],
    device: torch.device = CPU,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Iterator[list[Result]]:
    """The kernels' results in each of some launches of one encoder, all with the same input."""
    encoder = codecs.encoder(spec, [case.grad.size for case in tensors], device)
    launches = Launches(encoder)
    grads = [_given(case.grad, dtype, device) for case in tensors]
    for _ in range(steps):
        states = [
            tuple(torch.tensor(array, device=device) for array in (case.residual, case.momentum))
            for case in tensors
        ]
        launches.run(
            [
                LaunchItem(
                    grad,
                    residual if mode.residual else None,
                    *(0.9, 0.7),
                    None if mode.correction is None else Momentum(momentum, **mode.correction),
                    derive_stream(SEED, STEP, i),
                )
                for i, (grad, (residual, momentum)) in enumerate(zip(grads, states, strict=True))
            ]
        )
        yield [
            Result(_sent(result), _bytes(residual), _bytes(momentum))
            for result, (residual, momentum) in zip(
                encoder.results(encoder.memory), states, strict=True
            )
        ]


def _given(grad: Floats, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The gradient as it is in memory, between guards."""
    if dtype == torch.float32:
        return torch.tensor(grad, device=device)
    bits = torch.from_numpy(grad).to(dtype).view(torch.int16).numpy()
    return torch.tensor(bits, device=device).view(dtype)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _sent(result: Any) -> bytes:
    if not isinstance(result, Kept):
        return _bytes(result.data)
    # A payload with index coding raw32.
    head = np.array([result.indices.numel(), 0], np.uint32).tobytes()
    return head + _bytes(result.indices) + _bytes(result.values)


def _of_nvidia(case: Case) -> Case:
    """The case with the bits of NVIDIA's own NaN, which keep them in arithmetic on all processors.

    An operand's payload survives on x86 alone: see gradcomp_torch/gpu/kernels/correct.py.
    """
    nan = np.uint32(0x7FFFFFFF).view(np.float32)
    return case._replace(grad=np.where(np.isnan(case.grad), nan, case.grad))


def differences(
    spec: str,
    mode: str,
    tensors: list[Case],
    sent: str = "",
    device: torch.device = CPU,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Iterator[str]:
    """The tensors whose results differ, in any of some launches.

    Args:
        dtype: of the gradients that kernels read; the core gets them as float32.
    """
    if dtype != torch.float32:
        tensors = [_rounded(case, dtype) for case in tensors]
    if device != CPU and mode != "plain":
        tensors = [_of_nvidia(case) for case in tensors]
    want = of_core(spec, sent or spec, MODES[mode], tensors)
    for got in of_kernels(spec, MODES[mode], tensors, device, steps, dtype):
        for case, expected, actual in zip(tensors, want, got, strict=True):
            for field, a, b in zip(Result._fields, expected, actual, strict=True):
                if a != b:
                    yield f"{spec}, {mode}, {dtype}, {case.name}: {field} differs"


def _rounded(case: Case, dtype: torch.dtype) -> Case:
    return case._replace(grad=torch.from_numpy(case.grad).to(dtype).float().numpy())


SIZES = [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 128, 129, 200, 255, 256, 257, 300, 520]
"""Around multiples of the small tiles of these tests."""

FEW = [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 128, 129, 200]
"""Most sizes for kernels that the interpreter runs slowly; see `mostly_small`."""


def mostly_small(rng: np.random.Generator, each: int) -> list[Case]:
    """Tensors of up to two tiles, and some of more."""
    larger = [size for size in SIZES if size > max(FEW)]
    return [*cases(rng, FEW, each - len(larger)), *cases(rng, larger, len(larger))]


class Tally:
    """Counts cases on a device and collects the differing ones."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.count = 0
        self.faults: list[str] = []

    def compare(
        self,
        spec: str,
        mode: str,
        tensors: list[Case],
        sent: str = "",
        steps: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """One launch of all tensors."""
        self.add(len(tensors), differences(spec, mode, tensors, sent, self.device, steps, dtype))

    def add(self, count: int, faults: Iterator[str]) -> None:
        """Make a comparison of ``count`` cases; what it yields are faults, as are uses of guards."""
        self.count += count
        self.faults += faults
        self.faults += used_guards()


def small_tiles() -> None:
    """Tiles and samples so small that tensors of a few hundred elements have several, or are larger."""
    tiling.TILE, tiling.BLOCK, tiling.SLOTS = 128, 64, 64
    TopK.SAMPLE = 256


VALUES = ("fp32", "fp16", "bf16", "int8", "sign", "means", "2bit")


def topk(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    for i, values in enumerate(VALUES):
        for mode in MODES:
            ratio = (0.01, 0.05, 0.3, 0.9)[i % 4]
            spec = f"topk(ratio={ratio},values={values})"
            sent = f"topk(ratio={ratio})|raw32"
            tally.compare(spec, mode, cases(rng, SIZES, each), sent)
    spec = "sampled_topk(ratio=0.05,sample_ratio=1)"
    tally.compare(spec, "correction", cases(rng, SIZES, each), f"{spec}|raw32")


SAMPLED = (
    "ratio=0.05",
    "ratio=0.3,sample_ratio=0.1,values=fp16",
    "ratio=0.1,sample_ratio=0.06,upper_bound=1,lower_bound=1,values=int8",
    "k=40,lower_bound=0.97,max_adaptation_iters=3,values=means",
    "ratio=0.2,max_adaptation_iters=0,upper_bound=3",
)


def sampled_topk(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Thresholds of samples that too many, too few or about k elements reach."""
    small_tiles()
    for params in SAMPLED:
        for mode in MODES:
            spec = f"sampled_topk({params})"
            sent = re.sub(",values=.*", ")", spec) + "|raw32"
            steps = 1 + (mode == "correction")  # the second finds the state of the first
            tally.compare(spec, mode, cases(rng, [*SIZES, 1000, 2500], each), sent, steps)


def topk_state(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Later steps find the state of earlier ones; real tiles; large tensors are sampled."""
    small_tiles()
    tally.compare("topk(k=9)", "feedback", cases(rng, SIZES, each), "topk(k=9)|raw32", steps=2)
    tiling.TILE, tiling.BLOCK, tiling.SLOTS, TopK.SAMPLE = 2048, 1024, 2048, 8192
    for n in (2047, 2049, 9000, 40001):
        spec = "topk(ratio=0.01)"
        tally.compare(spec, "feedback", cases(rng, [n], len(FAMILIES)), spec + "|raw32")


def half(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    for spec in ("identity", "fp16", "fp16(overflow=saturate)", "bf16"):
        for mode in ("plain", "feedback", "unmasked"):
            tally.compare(spec, mode, cases(rng, SIZES, each))


def sixteen(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Gradients of 16 bits, which each codec's first kernel reads."""
    small_tiles()
    tiling.UNROLL = 1
    specs = (
        *("topk(ratio=0.05)", "fp16", "int8(bucket=64)", "rotate|uniform(bits=4)", "sign"),
        *("terngrad", "randomk(ratio=0.1)", "qsgd(levels=7,bucket=64)", "uniform(bits=4)"),
        "sampled_topk(ratio=0.1,sample_ratio=0.06)",
    )
    for i, spec in enumerate(specs):
        for dtype in GRAD_TYPES[1:] if i < 2 else [GRAD_TYPES[1 + i % 2]]:
            mode = ("feedback", "unmasked", "unmasked nesterov")[i % 3]
            sent = f"{spec}|raw32" if "topk" in spec else spec
            tally.compare(spec, mode, mostly_small(rng, each), sent, dtype=dtype)


def quantized(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    specs = (
        *("qsgd(levels=127,bucket=64)", "qsgd(levels=7,bucket=256)"),
        *("int8(bucket=64)", "int8(bucket=256,rounding=stochastic)"),
        *("uniform(bits=8)", "uniform(bits=2,rounding=stochastic)"),
        *("int4(bucket=64)", "int4(bucket=16,rounding=stochastic)"),
    )
    for spec in specs:
        for mode in ("plain", "feedback", "unmasked"):
            tally.compare(spec, mode, cases(rng, SIZES, each))


def signs(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    tiling.UNROLL = 1
    for spec in ("sign", "onebit"):
        for mode in ("plain", "feedback", "unmasked"):
            tally.compare(spec, mode, mostly_small(rng, each))
    tally.compare("sign", "plain", [tie()])
    # Several chunks.
    tiling.UNROLL = 8
    tally.compare("sign", "feedback", cases(rng, [65537], 1))


def ternary(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    tiling.UNROLL = 1
    larger = [1279, 1280, 1281, 2600]
    for spec in ("terngrad", "terngrad(clip=0)"):
        for mode in ("plain", "feedback", "unmasked"):
            tally.compare(spec, mode, [*mostly_small(rng, each), *cases(rng, larger, 4)])


def rotated(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Tensors below the 4096 elements of a block have one of 2^k, and a rest unless that is all."""
    tiling.UNROLL = 1
    specs = (
        *("rotate|uniform(bits=4)", "rotate|uniform(bits=1)", "rotate|uniform(bits=8,clip=2.5)"),
        *("rotate|uniform(bits=2,rounding=stochastic)", "rotate|uniform(bits=4,clip=0.3)"),
    )
    for spec in specs:
        for mode in ("plain", "feedback", "unmasked"):
            tally.compare(spec, mode, [overflow_beside_rest(), *mostly_small(rng, each)])
    tiling.UNROLL = 8
    whole = [4095, 4096, 4097, 6000, 8192, 9000]
    tally.compare(specs[0], "feedback", cases(rng, whole, len(FAMILIES)))


def randomk(tally: Tally, rng: np.random.Generator, each: int) -> None:
    small_tiles()
    for spec in ("randomk(ratio=0.1)", "randomk(k=1)", "randomk(ratio=0.9)"):
        for mode in ("plain", "feedback", "unmasked", "unmasked nesterov"):
            tally.compare(spec, mode, [*mostly_small(rng, each), *cases(rng, [5000], 1)])
    tally.compare("randomk(ratio=0.1,unbiased=true)", "plain", mostly_small(rng, each))


ADDED = (
    *("topk(ratio=0.2)|raw32", "identity", "fp16", "bf16", "sign", "onebit", "terngrad"),
    *("int8", "int8(bucket=16)", "int4", "int4(bucket=64,rounding=stochastic)"),
    *("qsgd(levels=127)", "qsgd(levels=7,bucket=64)", "qsgd(levels=1)"),
    *(f"uniform(bits={bits})" for bits in (1, 2, 4, 8)),
    *(f"rotate|uniform(bits={bits})" for bits in (1, 2, 4, 8)),
)


def added(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Frames of several ranks are added to averages, in their order; all specs of a kernel have ``each``."""
    add.BLOCK = 256
    kernels = Counter(add.form_of(spec).kernel for spec in ADDED)
    for spec in ADDED:
        count = -(-each // kernels[add.form_of(spec).kernel])
        for weight in (1.0, 1 / 3):
            ranks = [
                [*cases(rng, SIZES, count - 4), *cases(rng, [1280, 8192, 9000], 4)]
                for _ in range(2)
            ]
            tally.add(count, _added(spec, weight, ranks, tally.device))


def _added(
    spec: str, weight: float, ranks: list[list[Case]], device: torch.device
) -> Iterator[str]:
    codec = get_codec(spec)
    sizes = [case.grad.size for case in ranks[0]]
    wants = [np.zeros(n, np.float32) for n in sizes]
    accs = [torch.zeros(n, device=device) for n in sizes]
    form = add.form_of(spec)
    for number, rank in enumerate(ranks):
        grads = [np.resize(case.grad, n) for case, n in zip(rank, sizes, strict=True)]
        frames = [
            codec.encode(grad, seed=SEED + number, step=STEP, tensor_id=i)
            for i, grad in enumerate(grads)
        ]
        for frame, want in zip(frames, wants, strict=True):
            codec.decode_add(frame, want, weight)
        given = [(codec, *pair) for pair in zip(frames, sizes, strict=True)]
        if form is add.KEPT:
            tensors = [
                add.AddItem(acc, values, indices.view(np.int32))
                for acc, (indices, values) in zip(accs, kept_of_frames(given), strict=True)
            ]
        else:
            tensors = [
                add.AddItem(acc, payload.data, stream=payload.stream)
                for acc, payload in zip(accs, payloads_of_frames(given), strict=True)
            ]
        add.Addition(form, tensors, weight).launch()
    for case, want, acc in zip(ranks[0], wants, accs, strict=True):
        if _sums(want) != _sums(acc.cpu().numpy()):
            yield f"{spec}, weight {weight}, {case.name}: the average differs"


KEPT = [
    "topk(ratio=0.2)",
    "topk(ratio=0.02,values=fp16)",
    "topk(ratio=0.9,values=bf16)|raw32",
    "sampled_topk(ratio=0.1,sample_ratio=0.06)",
    "sampled_topk(ratio=0.1,sample_ratio=0.06,values=fp16)|raw32",
]
PAYLOADS = [spec for spec in ADDED if not spec.startswith("topk")]


def peer(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Messages of two ranks from device to device; the last bucket has all specs with payloads."""
    small_tiles()
    add.BLOCK, packed.WORDS = 256, 4
    peer_sums.RANGE, peer_sums.BLOCK, peer_sums.SEARCHES = 128, 32, 4
    counts = {True: -(-each // 3), False: each}
    for specs in (*([spec] * counts["sampled" in spec] for spec in KEPT), PAYLOADS * 3):
        ranks = [mostly_small(rng, len(specs)) for _ in range(2)]
        tally.add(2 * len(specs), _peer(specs, ranks, tally.device))


def _peer(specs: list[str], ranks: list[list[Case]], device: torch.device) -> Iterator[str]:
    weight = 1 / 3
    codecs_ = [get_codec(spec) for spec in specs]
    sizes = [case.grad.size or 1 for case in ranks[0]]  # no message has an empty tensor
    wants = [np.zeros(n, np.float32) for n in sizes]
    messages = []
    for number, rank in enumerate(ranks):
        direct = DirectDevice(device)
        grads = [np.resize(case.grad, n) for case, n in zip(rank, sizes, strict=True)]
        tensors = [
            EncodeItem(codec, grad, SEED + number, STEP, i)
            for i, (codec, grad) in enumerate(zip(codecs_, grads, strict=True))
        ]
        decoded = []  # of the last rank
        for codec, want, tensor in zip(codecs_, wants, tensors, strict=True):
            frame, _ = encode_batch([tensor])
            codec.decode_add(frame, want, weight)
            decoded.append(codec.decode(frame))
        there = [one._replace(grad=direct.from_host(one.grad)) for one in tensors]
        assert peer_device_of(there) is direct
        messages.append(direct.begin_messages("bucket", [there]))
    # What they held does not count.
    accs = [direct.from_host(np.full(n, 7, np.float32)) for n in sizes]
    direct.add_messages(
        messages[-1],
        0,
        [
            PeerItem(
                codec, acc, [derive_stream(SEED + rank, STEP, i) for rank in range(len(ranks))]
            )
            for i, (codec, acc) in enumerate(zip(codecs_, accs, strict=True))
        ],
        messages,
        weight,
    )
    outs = [direct.from_host(np.full(n, 7, np.float32)) for n in sizes]
    streams = [derive_stream(SEED + len(ranks) - 1, STEP, i) for i in range(len(outs))]
    to_decode = [
        PeerItem(codec, out, [stream])
        for codec, out, stream in zip(codecs_, outs, streams, strict=True)
    ]
    direct.decode_messages(messages[-1], [to_decode], messages[-1:])
    for spec, case, one, out in zip(specs, ranks[0], decoded, outs, strict=True):
        if _sums(one) != _sums(direct.to_host(out)):
            yield f"{spec}, peer, {case.name}: the decoded result differs"
    try:
        direct.begin_messages("bucket", [there])
    except ProtocolError as error:
        yield f"{specs[0]}, peer: a message differs: {error}"
    for spec, case, want, acc in zip(specs, ranks[0], wants, accs, strict=True):
        if _sums(want) != _sums(direct.to_host(acc)):
            yield f"{spec}, peer, {case.name}: the average differs"


def _sums(array: np.ndarray) -> bytes:
    """The bytes. A sum of two NaN is one of them, and the order of operands is the compiler's choice."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


def large(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Tensors of ``each`` thousand elements beside an empty one; launches that race would differ."""
    n = 1000 * each
    for spec in LARGE:
        tensors = [*cases(rng, [n], 2), *cases(rng, [0], 1), *cases(rng, [n // 3 + 1], 1)]
        sent = f"{spec}|raw32" if "topk" in spec else spec
        tally.compare(spec, "feedback", tensors, sent, steps=5)


def shares(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Three steps of three ranks for each case, whose gradients are always the same."""
    small_tiles()
    peer_sums.RANGE, peer_sums.BLOCK, peer_sums.SEARCHES = 128, 64, 16
    for case in range(min(each, len(share_comparisons.CASES))):
        tally.add(9, share_comparisons.steps(case, 3, 3, tally.device))


def bases(tally: Tally, rng: np.random.Generator, each: int) -> None:
    for _ in range(25):
        tally.add(each, factor_comparisons.bases(rng, each, tally.device))


def matrices(tally: Tally, rng: np.random.Generator, each: int) -> None:
    """Phases of a power iteration, of ten matrices each."""
    for seed in range(each):
        tally.add(10, factor_comparisons.matrices(rng, 10, seed, tally.device))


LARGE = (
    *("topk(ratio=0.01)", "sampled_topk(ratio=0.01)", "randomk(ratio=0.01)", "fp16", "bf16"),
    *(
        "qsgd(levels=127)",
        "int8",
        "int4",
        "uniform(bits=4)",
        "rotate|uniform(bits=4)",
        "sign",
        "onebit",
        "terngrad",
    ),
)

GROUPS: dict[str, tuple[Callable[[Tally, np.random.Generator, int], None], int]] = {
    "topk": (topk, 30),
    "topk_state": (topk_state, 24),
    "sampled_topk": (sampled_topk, 34),
    "half": (half, 120),
    "sixteen": (sixteen, 90),
    "quantized": (quantized, 42),
    "signs": (signs, 180),
    "ternary": (ternary, 180),
    "rotated": (rotated, 70),
    "randomk": (randomk, 84),
    "added": (added, 510),
    "peer": (peer, 170),
    "shares": (shares, 10),
    "bases": (bases, 40),
    "matrices": (matrices, 100),
    "large": (large, 25000),
}
"""Comparisons, and the number of tensors in a launch; of `matrices` launches, of `shares` cases; of `large` thousands
of elements, on GPUs."""


def one(tally: Tally, rng: np.random.Generator, name: str) -> None:
    """A launch in a mode, given as MODE:SPEC, or frames or messages of a spec, as added:SPEC or peer:SPEC."""
    small_tiles()
    tiling.UNROLL = 1
    add.BLOCK, packed.WORDS = 64, 4
    peer_sums.RANGE, peer_sums.BLOCK, peer_sums.SEARCHES = 128, 32, 4
    mode, _, spec = name.partition(":")
    tensors = [overflow_beside_rest(), *cases(rng, [*SIZES, 1300], 2 * len(FAMILIES))]
    tensors += [two_nans(), many_nans(), many_ties(), tie()]
    others = [*tensors[1:], tensors[0]]  # an average with two NaN does not show which was there
    if mode == "added":
        tally.add(len(tensors), _added(spec, 1 / 3, [tensors, others], tally.device))
    elif mode == "peer":
        tally.add(len(tensors), _peer([spec] * len(tensors), [tensors, others], tally.device))
    else:
        # Kernels leave the types of values to the host.
        tally.compare(spec, mode, tensors, re.sub(",values=[^)]*", "", spec))


def main(names: list[str], share: float, device: torch.device) -> int:
    """Run groups with a share of their cases, and single launches; 1 if any bit differs.

    Without names, all groups, of which `large` only on GPUs.
    """
    np.seterr(all="ignore")
    guard_all_tensors()
    status = 0
    for name in names or [group for group in GROUPS if group != "large" or device != CPU]:
        tally = Tally(device)
        rng = np.random.default_rng(len(name))
        if name in GROUPS:
            compare, each = GROUPS[name]
            compare(tally, rng, max(len(FAMILIES), int(each * share)))
        else:
            one(tally, rng, name)
        print(f"{name}: {tally.count} cases, {len(tally.faults)} differences")
        print(*tally.faults[:20], sep="\n", flush=True)
        status |= bool(tally.faults)
    return status
