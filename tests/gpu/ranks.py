"""Ranks on a device of interpreted kernels beside ranks on the host, as a process: python ranks.py

Prints the number of averages and states that were compared; the first difference is an error.
"""

from __future__ import annotations

import os
from itertools import product
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

import gpu.quick_interpreter  # noqa: F401
from gradcomp import EncodeItem, Pipeline, get_codec
from gradcomp.codec.batch_items import PeerItem
from gradcomp.codec.devices import HOST
from gradcomp.runtime.loopback import run_rounds
from gradcomp_torch import devices as torch_devices
from gradcomp_torch.float_copies import FloatCopies
from gradcomp_torch.gpu.device import TorchDevice
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.peer_device import DirectDevice
from support.mixed_ranks import RANKS, SHAPES, average, gradients, ranks_of, residuals
from support.pipelines import configured, rules_of


def main() -> None:
    """Compare steps, and steps after checkpoints have moved to ranks on other devices."""
    tiling.TILE, tiling.BLOCK, tiling.SLOTS = 128, 64, 64
    dgc = "momentum_correction(momentum=0.9)|"
    rules = {
        "conv": dgc + "topk(ratio=0.2,values=int8)|rice",
        "fc": "momentum_correction(momentum=0.9,masking=false)|randomk(ratio=0.05)",
        "bias": dgc + "adaq(ratio=0.1)",
    }
    others = {
        "conv": "residual(lr=scale)|fp16",
        "fc": "residual(beta=0.9)|topk(ratio=0.1,values=bf16)",
        "bias": "residual|rotate|uniform(bits=4)",
    }
    payloads = {
        "conv": "residual|sign",
        "fc": "residual|int8(bucket=64)",
        "bias": "residual|qsgd(levels=7)",
    }
    configs = [
        configured(
            next(iter(use.values())), rules=rules_of(use, "{}"), exchange="gather", device="auto"
        )
        for use in (rules, others, payloads)
    ]
    compared = launched = 0
    for config in configs:
        device = TorchDevice(torch.device("cpu"))
        devices, elsewhere = [device, HOST, HOST], [HOST, device, HOST]
        mixed, alone, moved = ranks_of(config), ranks_of(config), ranks_of(config)
        resolved = mixed[0].resolve_all(SHAPES)
        launched += sum(mixed[0].on_device(one, device) for one in resolved.values())
        for step in range(3):
            if step == 2:
                for one, other in zip(mixed, moved, strict=True):
                    other.load_state_dict(one.state_dict())
            for rank in (*mixed, *alone, *moved):
                rank.set_lr(0.1 / (1 + step))
            grads = gradients(step)
            expected = average(alone, [HOST] * RANKS, grads)
            for ranks, places in ((mixed, devices), (moved, elsewhere))[: 1 + step // 2]:
                if average(ranks, places, grads) != expected:
                    raise AssertionError(f"{config.compress}: averages differ in step {step}")
                if [residuals(one) for one in ranks] != [residuals(one) for one in alone]:
                    raise AssertionError(f"{config.compress}: states differ in step {step}")
                compared += 1
    print(f"{compared} steps compared, {launched} tensors on a device")
    print(f"{compare_direct()} steps compared, from device to device")
    print(f"{compare_scattered()} steps compared, of a reduce-scatter")
    print(f"{compare_numbers()} sums compared, from device to device")
    print(f"{compare_halves()} steps compared, of gradients of 16 bits")
    print(f"{compare_repeated()} steps compared, of gradients that stay where they are")


def compare_direct() -> int:
    """Ranks whose devices send each other messages; where one codec cannot, its bucket goes through the host."""
    uses = [
        ["residual|topk(ratio=0.2)|rice", "residual|topk(ratio=0.1,values=fp16)", "residual|bf16"],
        ["residual|rotate|uniform(bits=4)", "residual(lr=scale)|sign", "residual|int8(bucket=64)"],
        ["residual|topk(ratio=0.2,values=int8)", "residual|qsgd(levels=7)", "residual|terngrad"],
        ["momentum_correction(momentum=0.9)|topk(ratio=0.2)"] * 3,
        [
            "residual|sampled_topk(ratio=0.2,sample_ratio=0.1)",
            "residual|topk(ratio=0.1)",
            "residual|sampled_topk(ratio=0.1,values=bf16)",
        ],
    ]
    for exchange, (number, specs) in product(("gather", "sra"), enumerate(uses)):
        use = dict(zip(SHAPES, specs, strict=True))
        rules = rules_of(use, "{}")
        config = configured(specs[0], rules=rules, exchange=exchange, device="direct")
        devices = [DirectDevice(torch.device("cpu")) for _ in range(RANKS)]
        direct, alone = ranks_of(config), ranks_of(config)
        for step in range(3):
            for rank in (*direct, *alone):
                rank.set_lr(0.1 / (1 + step))
            grads = gradients(step)
            if average(direct, devices, grads) != average(alone, [HOST] * RANKS, grads):
                raise AssertionError(f"{specs}: averages differ in step {step}")
            if [residuals(one) for one in direct] != [residuals(one) for one in alone]:
                raise AssertionError(f"{specs}: states differ in step {step}")
        through_host = direct[0].stats.sent_bytes == alone[0].stats.sent_bytes
        if through_host is not (number == 2):
            raise AssertionError(f"{specs}: {direct[0].stats}")
    return 3 * 2 * len(uses)


def compare_scattered() -> int:
    """Each rank gets sums of its own rows, through the hosts and from device to device."""
    fed = "residual(beta=0.9,gamma=0.8)|"
    uses = [
        [fed + "topk(ratio=0.2)", "residual|sketch(ratio=0.5)", "int8(bucket=64)"],
        [fed + "sampled_topk(ratio=0.2)", "residual|rotate|uniform(bits=4)", "identity"],
    ]
    compared = 0
    for device, (number, specs) in product(("auto", "direct"), enumerate(uses)):
        rules = rules_of(dict(zip(SHAPES, specs, strict=True)), "{}")
        config = configured(specs[0], rules=rules, device=device)
        there, alone = (
            [Pipeline(config, rank, RANKS, scatters=True) for rank in range(RANKS)]
            for _ in range(2)
        )
        made = DirectDevice if device == "direct" else TorchDevice
        devices = [made(torch.device("cpu")) for _ in range(RANKS)]
        if device == "auto":
            devices[1] = HOST
        for step in range(3):
            grads = gradients(step)
            if average(there, devices, grads) != average(alone, [HOST] * RANKS, grads):
                raise AssertionError(f"{specs}, {device}: sums differ in step {step}")
            if [residuals(one) for one in there] != [residuals(one) for one in alone]:
                raise AssertionError(f"{specs}, {device}: residuals differ in step {step}")
            compared += 1
        through_host = there[0].stats.sent_bytes == alone[0].stats.sent_bytes
        if through_host is not (device == "auto" or number == 0):
            raise AssertionError(f"{specs}, {device}: {there[0].stats}")
    return compared + compare_single_row()


def compare_single_row() -> int:
    """One rank owns it, and the others own nothing."""
    config = configured("int8", rules=rules_of({"row": "int8"}, "{}"), device="direct")
    grads = [
        np.random.default_rng(rank).standard_normal((1, 200), np.float32) for rank in range(RANKS)
    ]
    found = []
    for devices in ([DirectDevice(torch.device("cpu")) for _ in grads], [HOST for _ in grads]):
        ranks = [Pipeline(config, rank, RANKS, scatters=True) for rank in range(RANKS)]
        rounds = [
            one.bucket_round("row", {"row": device.from_host(grad)})
            for one, device, grad in zip(ranks, devices, grads, strict=True)
        ]
        sums = [
            device.to_host(own) for device, (own,) in zip(devices, run_rounds(rounds), strict=True)
        ]
        found.append([own.tobytes() for own in sums])
    if found[0] != found[1] or [bool(own) for own in found[0]] != [True, False, False]:
        raise AssertionError("sums of a single row differ")
    return 1


def compare_numbers() -> int:
    """Payloads of two ranks that an engine adds."""
    device = DirectDevice(torch.device("cpu"))
    names = ("fp16", "fp16(overflow=saturate)")
    compared = 0
    for step in range(3):
        grads = gradients(step)
        fields = {"seed": 1, "step": step, "tensor_id": 2}
        of_ranks, expected = [], []
        for rank in range(2):
            tensors = []
            for number, name in enumerate(SHAPES):
                codec, grad = get_codec(names[number % 2]), grads[name][rank]
                grad[:1] = -0.0
                payload = codec.encode_payload(grad, **fields)
                if rank == 0:
                    expected.append(payload)
                else:
                    average = (expected[number] + payload) * np.float16(0.5)
                    expected[number] = codec.decode_payload(average, grad.size, **fields)
                tensors.append(EncodeItem(codec, device.from_host(grad), **fields))
            of_ranks.append(device.begin_messages(f"sum of rank {rank}", [tensors]))
        numbers = of_ranks[0].numbers
        numbers.data.add_(of_ranks[1].numbers.data).mul_(0.5)
        outs = [device.zeros(tensor.grad.size) for tensor in tensors]
        to_decode = [
            PeerItem(tensor.codec, out, [0]) for tensor, out in zip(tensors, outs, strict=True)
        ]
        for _ in range(2):  # the second time with the launches of the first one
            device.decode_numbers(of_ranks[0], to_decode, numbers)
        for out, wanted in zip(outs, expected, strict=True):
            assert device.to_host(out).tobytes() == wanted.tobytes()
            compared += 1
    return compared


class _Staying:
    """A device of gradients that are in the same memory in each step."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._device = DirectDevice(torch.device("cpu"))
        self._dtype = dtype
        self._copies = FloatCopies()
        self._grads: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def from_host(self, grad: np.ndarray) -> Any:
        name = str(grad.shape)
        new = torch.tensor(grad)
        if name in self._grads:
            self._grads[name].copy_(new)
            self._copies.renew({name: self._grads[name]}, {name: self._arrays[name]})
        else:
            self._grads[name] = new.to(self._dtype)
            self._arrays |= self._copies.arrays({name: self._grads[name]}, self._device)
        return self._arrays[name]


def compare_repeated() -> int:
    """Launches are made again where a step's tensors and messages are those of the last one, and only there."""
    uses = [
        ["residual|topk(ratio=0.2)", "residual(lr=scale)|int8(bucket=64)", "residual|sign"],
        ["topk(ratio=0.2)", "residual|qsgd(levels=7)", "residual|rotate|uniform(bits=4)"],
    ]
    compared = 0
    for specs, dtype in product(uses, (torch.float32, torch.bfloat16)):
        exchange = "gather" if dtype == torch.float32 else "sra"
        rules = rules_of(dict(zip(SHAPES, specs, strict=True)), "{}")
        config = configured(specs[0], rules=rules, exchange=exchange, device="direct")
        there = [_Staying(dtype) for _ in range(RANKS)]
        ranks, alone = ranks_of(config), ranks_of(config)
        for step in range(4):
            if step == 2:  # residuals are in other memory
                for rank in ranks:
                    rank.load_state_dict(rank.state_dict())
            for rank in (*ranks, *alone):
                rank.set_lr(0.05 if step == 3 else 0.1)
            grads = {
                name: [torch.tensor(grad).to(dtype).float().numpy() for grad in of_ranks]
                for name, of_ranks in gradients(step).items()
            }
            found = average(ranks, there, grads, overwrite=True)
            if found != average(alone, [HOST] * RANKS, grads):
                raise AssertionError(f"{specs}, {dtype}: averages differ in step {step}")
            if [residuals(one) for one in ranks] != [residuals(one) for one in alone]:
                raise AssertionError(f"{specs}, {dtype}: states differ in step {step}")
            compared += 1
    return compared


class _Halves:
    """A device of gradients of 16 bits."""

    def __init__(self, device: TorchDevice, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._copies = FloatCopies()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def from_host(self, grad: np.ndarray) -> Any:
        given = {str(grad.shape): torch.tensor(grad).to(self._dtype)}
        (array,) = self._copies.arrays(given, self._device).values()
        return array


def compare_halves() -> int:
    """Kernels read gradients of 16 bits, where a residual is fed back; else they are converted once in a step."""
    conversions = []
    copy = torch_devices.foreach_copy_
    torch_devices.foreach_copy_ = lambda floats, halves: (
        conversions.extend(floats) or copy(floats, halves)
    )
    uses = [
        (["residual|topk(ratio=0.2)", "residual|int8(bucket=64)", "residual(lr=scale)|sign"], 0),
        (["momentum_correction(momentum=0.9)|topk(ratio=0.2)"] * 3, 0),
        (["residual|rotate|uniform(bits=4)", "topk(ratio=0.1)", "ef21|topk(ratio=0.2)"], 2),
    ]
    compared = 0
    ways = [("auto", "gather"), ("direct", "gather"), ("direct", "sra")]
    for (device, exchange), (specs, converted) in product(ways, uses):
        rules = rules_of(dict(zip(SHAPES, specs, strict=True)), "{}")
        config = configured(specs[0], rules=rules, exchange=exchange, device=device)
        dtype = (torch.bfloat16, torch.float16)[compared // 2 % 2]
        made = DirectDevice if device == "direct" else TorchDevice
        there = [_Halves(made(torch.device("cpu")), dtype) for _ in range(RANKS)]
        ranks, alone = ranks_of(config), ranks_of(config)
        for step in range(2):
            for rank in (*ranks, *alone):
                rank.set_lr(0.1 / (1 + step))
            grads = {
                name: [torch.tensor(grad).to(dtype).float().numpy() for grad in of_ranks]
                for name, of_ranks in gradients(step).items()
            }
            conversions.clear()
            found = average(ranks, there, grads, overwrite=True)
            if len(conversions) != converted * RANKS:
                raise AssertionError(f"{specs}, {device}: {len(conversions)} are converted")
            if found != average(alone, [HOST] * RANKS, grads):
                raise AssertionError(f"{specs}, {device}: averages differ in step {step}")
            if [residuals(one) for one in ranks] != [residuals(one) for one in alone]:
                raise AssertionError(f"{specs}, {device}: states differ in step {step}")
            compared += 1
    return compared


if __name__ == "__main__":
    main()
