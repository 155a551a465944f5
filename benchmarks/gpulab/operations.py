"""The operations that are timed: bytes that they move, targets, and the same by PyTorch's operators."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from gpulab.clock import Work
from gradcomp import EncodeItem, get_codec
from gradcomp.device_api import ProductItem, SettleItem
from gradcomp_torch.devices import tensor_of
from gradcomp_torch.gpu import codecs
from gradcomp_torch.gpu.add import KEPT, AddItem, Addition, Form, form_of
from gradcomp_torch.gpu.bucket import LaunchItem, Table
from gradcomp_torch.gpu.encoders.encoder import Launches
from gradcomp_torch.gpu.encoders.rotated import RotatedUniform
from gradcomp_torch.gpu.factors import FactorExchange, kinds_of
from gradcomp_torch.gpu.peer_device import DirectDevice
from gradcomp_torch.gpu.peer_receive import FLAGS
from gradcomp_torch.gpu.peer_sums import PeerTensor, peer_form_of, sums_of

__all__ = ["OPERATIONS", "Operation"]

BETA, GAMMA = 0.9, 0.7
RATIO = 0.01
FRAMES = 8
RANK = 4

Make = Callable[[int, torch.device], Work]


@dataclass(frozen=True)
class Operation:
    """One operation on a gradient, with error feedback.

    Attributes:
        bytes: read and written per element; tests/gpu/test_traffic.py counts those of kernels.
        target: least fraction of the bandwidth of a copy, at 25M elements and more; None: none.
        make: for so many elements on a device, the work.
        others: the same by PyTorch's operators, or another library.
        package: of `others`.
    """

    name: str
    bytes: float
    target: float | None
    make: Make
    others: Make | None = None
    package: str = "torch"

    def other(self, numel: int, device: torch.device) -> Work | None:
        """The same by others, where they are installed."""
        if self.others is None or find_spec(self.package) is None:
            return None
        return self.others(numel, device)


def _gradient(numel: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(numel)
    return torch.randn(numel, generator=generator, device=device)


def _encodes(spec: str, *, lopsided: bool = False) -> Make:
    """Kernels of a codec; in a lopsided gradient all kept elements lie together, in tiles with too few slots."""

    def make(numel: int, device: torch.device) -> Work:
        launches = Launches(codecs.encoder(spec, [numel], device))
        grad = _gradient(numel, device)
        if lopsided:
            grad[: numel - numel // 10] *= 1e-3
        # The residual is corrected by nothing: else the gradient would no longer be lopsided.
        beta = 0.0 if lopsided else BETA
        tensor = LaunchItem(grad, torch.zeros_like(grad), beta, GAMMA)
        return lambda: launches.run([tensor])

    return make


def _rotates(numel: int, device: torch.device) -> Work:
    """The rotation alone, without error feedback."""
    encoder = RotatedUniform({"bits": 4, "rounding": "nearest"}, [numel], device)
    table = Table(encoder.bucket)
    tensor = LaunchItem(_gradient(numel, device))

    def work() -> None:
        encoder.rotate(table.memory, table.fill([tensor]))

    return work


def _adds_kept(numel: int, device: torch.device) -> Work:
    """The launches alone: parts of the frames are on the device."""
    acc, frames = _frames(numel, device)
    parts = [
        AddItem(acc, values.cpu().numpy(), indices.cpu().numpy()) for indices, values in frames
    ]
    return _added(parts, KEPT)


def _adds(spec: str) -> Make:
    """Launches that add payloads."""

    def make(numel: int, device: torch.device) -> Work:
        payload = get_codec(spec).encode_payload(_gradient(numel, device).cpu().numpy())
        part = AddItem(torch.zeros(numel, device=device), payload)
        return _added([part] * FRAMES, form_of(spec))

    return make


def _added(parts: list[AddItem], form: Form) -> Work:
    additions = [Addition(form, [part], 1 / FRAMES) for part in parts]

    def work() -> None:
        parts[0].acc.zero_()
        for addition in additions:
            addition.launch()

    return work


def _frames(
    numel: int, device: torch.device
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """An average, and kept elements of some ranks."""
    kept = max(1, int(RATIO * numel))
    frames = []
    for rank in range(FRAMES):
        generator = torch.Generator().manual_seed(rank)
        # One place in each run of 1 / RATIO elements: distinct and ascending.
        places = torch.randint(numel // kept, (kept,), generator=generator)
        indices = (places + (numel // kept) * torch.arange(kept)).to(torch.int32)
        frames.append((indices.to(device), torch.randn(kept, generator=generator).to(device)))
    return torch.zeros(numel, device=device), frames


def _adds_messages(numel: int, device: torch.device) -> Work:
    """Launches that add what other devices have sent."""
    spec = f"topk(ratio={RATIO})"
    of_device = DirectDevice(device)
    messages = []
    for rank in range(FRAMES):
        generator = torch.Generator(device).manual_seed(rank)
        grad = torch.randn(numel, generator=generator, device=device)
        sent = of_device.begin_messages("", [[EncodeItem(get_codec(spec), of_device.array(grad))]])
        with sent.behind():
            messages.append(sent.data.clone())
        sent.staging.join()
    [place] = sent.layouts[0].places
    sums = sums_of(peer_form_of(spec), begun=False, decodes=False)
    tensor = PeerTensor(torch.zeros(numel, device=device), place, [0] * FRAMES)
    damaged = torch.zeros((FRAMES, FLAGS), dtype=torch.int32, device=device)

    def work() -> None:
        sums.prepare([tensor], messages, 1 / FRAMES)
        sums.launch(damaged)

    work()
    if damaged.any():
        raise RuntimeError("the messages of the benchmark are not what they should be")
    return work


def _torch_adds(numel: int, device: torch.device) -> Work:
    acc, frames = _frames(numel, device)

    def work() -> None:
        acc.zero_()
        for indices, values in frames:
            acc.index_add_(0, indices, values, alpha=1 / FRAMES)

    return work


def _phase(numel: int, device: torch.device) -> tuple[FactorExchange, ProductItem, SettleItem]:
    """A phase of a power iteration with a matrix that is about square."""
    rows = math.isqrt(numel)
    cols = numel // rows
    of_device = DirectDevice(device)
    sizes = (RANK * cols, RANK * rows)
    factor, kept = (of_device.array(_gradient(size, device)) for size in sizes)
    m, grad, average = (
        of_device.array(_gradient(rows * cols, device).view(rows, cols)) for _ in range(3)
    )
    product = ProductItem(m, grad, BETA, factor, RANK, False)
    settle = SettleItem(m, factor, False, kept, average, False)
    return FactorExchange(kinds_of([product]), False, device), product, settle


def _multiplies(numel: int, device: torch.device) -> Work:
    """Error feedback, a basis, and the product, which is PyTorch's."""
    exchange, product, _ = _phase(numel, device)
    return lambda: exchange.multiply([product])


def _settles(numel: int, device: torch.device) -> Work:
    """The launches that follow from the average of a product."""
    exchange, _, settle = _phase(numel, device)
    return lambda: exchange.settle(exchange.sent, [settle], of_average=False)


def _torch_settles(numel: int, device: torch.device) -> Work:
    """As PyTorch's powerSGD_hook: the product of the averages, of which the gradient loses as much."""
    _, product, settle = _phase(numel, device)
    m, average, q, p = map(tensor_of, (product.m, settle.average, product.factor, settle.kept))
    rows, cols = m.shape
    left, right = p.view(RANK, rows).t(), q.view(RANK, cols)

    def work() -> None:
        torch.matmul(left, right, out=average)
        m.sub_(average)

    return work


def _corrected(
    encode: Callable[[torch.Tensor], object],
) -> Make:
    """Error feedback by PyTorch's operators; ``encode`` subtracts from the residual."""

    def make(numel: int, device: torch.device) -> Work:
        grad = _gradient(numel, device)
        residual = torch.zeros_like(grad)

        def work() -> None:
            residual.mul_(BETA).add_(grad, alpha=GAMMA)
            encode(residual)

        return work

    return make


def _torch_topk(residual: torch.Tensor) -> object:
    kept = max(1, int(RATIO * residual.numel()))
    _, indices = torch.topk(residual.abs(), kept, sorted=False)
    values = residual[indices]
    residual.index_fill_(0, indices, 0.0)
    return values, indices


def _torch_half(residual: torch.Tensor) -> object:
    half = residual.half()
    residual.sub_(half)
    return half


def _torch_sign(residual: torch.Tensor) -> object:
    """Without the packing of bits, for which PyTorch has no operator."""
    scale = residual.abs().mean()
    signs = residual.sign()
    residual.sub_(signs * scale)
    return signs.to(torch.int8), scale


def _bitsandbytes(residual: torch.Tensor) -> object:
    functional = importlib.import_module("bitsandbytes.functional")
    symbols, state = functional.quantize_blockwise(residual)
    residual.sub_(functional.dequantize_blockwise(symbols, state))
    return symbols, state


OPERATIONS = (
    Operation("fp16", 14, 0.85, _encodes("fp16"), _corrected(_torch_half)),
    Operation("qsgd(levels=127)", 13, 0.70, _encodes("qsgd(levels=127)")),
    Operation("int8", 13, None, _encodes("int8"), _corrected(_bitsandbytes), "bitsandbytes"),
    Operation(
        "topk(ratio=0.01)", 13.4, 0.70, _encodes("topk(ratio=0.01)"), _corrected(_torch_topk)
    ),
    Operation(
        "topk(ratio=0.01), all kept in a tenth",
        14.6,
        0.60,
        _encodes("topk(ratio=0.01)", lopsided=True),
        _corrected(_torch_topk),
    ),
    Operation("sampled_topk(ratio=0.01)", 13.9, None, _encodes("sampled_topk(ratio=0.01)")),
    Operation("randomk(ratio=0.01)", 12.3, None, _encodes("randomk(ratio=0.01)")),
    Operation("sign", 20, 0.60, _encodes("sign"), _corrected(_torch_sign)),
    Operation("terngrad", 20.4, None, _encodes("terngrad")),
    Operation("rotate|uniform(bits=4)", 40.5, None, _encodes("rotate|uniform(bits=4)")),
    Operation("rotate, without error feedback", 8, 0.70, _rotates),
    Operation(f"add {FRAMES} frames of topk(ratio=0.01)", 9.8, 0.60, _adds_kept, _torch_adds),
    Operation(f"add {FRAMES} messages of topk(ratio=0.01)", 9.8, 0.60, _adds_messages, _torch_adds),
    Operation(f"add {FRAMES} frames of int8", 76, None, _adds("int8")),
    Operation(f"add {FRAMES} frames of sign", 69, None, _adds("sign")),
    Operation(f"add {FRAMES} frames of terngrad", 69.6, None, _adds("terngrad")),
    Operation(f"add {FRAMES} frames of uniform(bits=4)", 72, None, _adds("uniform(bits=4)")),
    Operation(
        f"add {FRAMES} frames of rotate|uniform(bits=4)", 72, None, _adds("rotate|uniform(bits=4)")
    ),
    Operation(f"powersgd(rank={RANK}): product", 16, None, _multiplies),
    Operation(f"powersgd(rank={RANK}): average and residual", 12, 0.70, _settles, _torch_settles),
)
