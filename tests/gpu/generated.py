"""Compiles what encoders launch for real targets, as a process: python generated.py.

No GPU is needed: launches are recorded, with their constants and options. Prints a line for each
compiled kernel that could make other bits than the core, or is slow by its form; these are exit status 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from gpu.adaptive_kernels import levels_kernel, product_kernel
from gpu.comparisons import ADDED
from gradcomp import EncodeItem, get_codec
from gradcomp.codec.shares import Shares
from gradcomp.exchange.algorithms.factor_device import ProductItem, SettleItem
from gradcomp_torch.gpu import add, codecs, peer_sums
from gradcomp_torch.gpu.bucket import EXACT, LaunchItem, Momentum, Table
from gradcomp_torch.gpu.encoders.encoder import Launches
from gradcomp_torch.gpu.finite import Poison
from gradcomp_torch.gpu.kernels.add import compare_headers_kernel
from gradcomp_torch.gpu.peer_device import DirectDevice
from support.scope import FULL

TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.uint16: "*u16",
}
ALL = GPUTarget("cuda", 90, 32)
OTHERS = (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 100, 32), GPUTarget("hip", "gfx942", 64))
"""All variants of a kernel are compiled for one target, and one variant for each other target; by default the
kernels take turns with the other targets."""

# Fused multiply-adds, approximations, flushed denormals, and float atomics.
PTX = re.compile(
    r"\bfma\.\w+|\bmad\.\w*f\d+|div\.(?:full|approx)[\w.]*|\w+\.ftz[\w.]*|\w+\.approx[\w.]*"
    r"|(?:red|atom)\.\S*\.f\d+"
)
HALVES = re.compile(r"ld\.global\S*\.(?:v2\.b32|v4\.b16|b64)")
LLVM = re.compile(
    r"f(?:mul|add|sub|div) (?:[a-z]+ )*(?:contract|fast|reassoc|arcp|afn)[a-z ]*|atomicrmw f\w+"
)
FENCED = {"digits_kernel": 1, "count_kernel": 1, "adapt_kernel": 1}
"""Atomics that order other memory, by kernel: that of `select.ends_last`. Others would wait for it in vain."""

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
SHARED = 48 * 1024
"""Bytes of shared memory that every GPU grants without a request."""

Launch = tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]
launches: dict[str, Launch] = {}


def _record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    names = [param.name for param in self.params]
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    options = {name: values.pop(name) for name in list(values) if name not in names}
    constants = {p.name: values[p.name] for p in self.params if p.is_constexpr}
    signature = {
        name: "constexpr" if name in constants else _type_of(values[name]) for name in names
    }
    key = f"{self.fn.__name__} {constants} {options}"
    launches[key] = (self, signature, constants, options)


def _type_of(value: Any) -> str:
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"


def _launch(spec: str, mode: str) -> None:
    encoder = codecs.encoder(spec, [5000, 16], torch.device("cpu"))
    tensors = []
    mode, _, type_ = mode.partition("/")
    for n in (5000, 16):
        values = torch.zeros(n)
        grad = values.to(getattr(torch, type_)) if type_ else values
        momentum = Momentum(values, 0.9, nesterov=mode == "nesterov", masking="topk" in spec)
        plain = mode == "plain"
        corrects = mode in ("correction", "nesterov")
        tensors.append(
            LaunchItem(grad, None if plain else values, momentum=momentum if corrects else None)
        )
    Launches(encoder).run(tensors)


def _launch_factors() -> None:
    """Phases of a power iteration: what M loses is the average's product, or another one."""
    device = DirectDevice(torch.device("cpu"))
    for of_average in (False, True):
        m, factor, kept, average = (device.zeros(n) for n in (35, 10, 14, 35))
        m, average = m.reshape((5, 7)), average.reshape((5, 7))
        products = device.begin_products(
            "", [ProductItem(m, None, 1.0, factor, 2, True)], half=False
        )
        settle = SettleItem(m, factor, True, kept, average, False)
        device.settle(products, products, [settle], of_average=of_average)


def _compile(launch: Launch, target: GPUTarget) -> tuple[list[str], Any]:
    kernel, signature, constants, options = launch
    names = list(signature)
    # PyTorch aligns what it allocates.
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, type_ in signature.items()
        if type_.startswith("*")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=target, options=dict(options))
    if "ptx" in compiled.asm:
        found = PTX.findall(compiled.asm["ptx"])
    else:
        found = LLVM.findall(compiled.asm["llir"])
    if "ptx" in compiled.asm:
        fences = len(re.findall(r"\b(?:atom|red)\.\S*acq_rel", compiled.asm["ptx"]))
        if fences != FENCED.get(kernel.fn.__name__, 0):
            found.append(f"{fences} atomics with a fence")
        found += _stack(compiled.asm["cubin"])
    if compiled.metadata.shared > SHARED:
        found.append(f"{compiled.metadata.shared} bytes of shared memory")
    return sorted(set(found)), compiled


def _stack(binary: bytes) -> list[str]:
    """The bytes of a thread's registers that are in memory, if there are any."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    sizes = re.findall(r"STACK:(\d+)", done.stdout + done.stderr)
    assert sizes, done.stdout + done.stderr
    return [f"{size} bytes of stack" for size in sizes if size != "0"]


def _launch_shared() -> None:
    """What adds frames and messages, and works on factors and on a loss scale."""
    acc = torch.zeros(64)
    indices, values = np.zeros(2, np.int32), np.zeros(2, np.float32)
    add.Addition(add.KEPT, [add.AddItem(acc, values, indices)], 0.5).launch()
    for spec in ADDED:
        form = add.form_of(spec)
        if form is not add.KEPT:
            add.Addition(form, [add.AddItem(acc, np.zeros(1024, np.uint8))], 0.5).launch()
    damaged = torch.zeros((1, 4), dtype=torch.int32)
    for codec in (
        "topk(k=4)",
        "topk(k=4,values=fp16)",
        "topk(k=4,values=bf16)|raw32",
        "sampled_topk(k=40)",
    ):
        tensor = peer_sums.PeerTensor(acc, peer_sums.Place(32, 16, 4), [0])
        for begun, decodes in ((False, False), (True, False), (False, True)):
            sums = peer_sums.sums_of(peer_sums.peer_form_of(codec), begun=begun, decodes=decodes)
            sums.prepare([tensor], [torch.zeros(64).byte()], 0.5)
            sums.launch(damaged)
        encoder = codecs.encoder(codec, [5000, 16], torch.device("cpu"))
        encoder.peer_results(Table(encoder.bucket), packs=codecs.packs_indices(codec))
    compare_headers_kernel[(1,)](torch.zeros((1, 2), dtype=torch.int64), damaged, **EXACT)
    _launch_factors()
    Poison([5], torch.device("cpu")).launch([torch.zeros(5)])


def _launch_shares() -> None:
    """Messages for the owners of shares, and averages of all shares."""
    shares = Shares(5016, 60, 3)
    for values in ("fp32", "fp16", "bf16"):
        device = DirectDevice(torch.device("cpu"))
        codec = get_codec(f"topk(k=30,values={values})")
        tensors = [EncodeItem(codec, device.zeros(n), residual=device.zeros(n)) for n in (5000, 16)]
        own = device.begin_shares("", tensors, shares, 0)
        sums = device.add_shares(own, [own[: own.splits[0]]] * 3)
        choice = get_codec(f"topk(k={shares.chosen},values={values})")
        gathered = device.begin_messages("all", [[EncodeItem(choice, sums[0], residual=sums[1])]])
        outputs = [device.zeros(n) for n in (5000, 16)]
        device.collect_shares(own, gathered, choice, [gathered] * 3, outputs)


def _launch_adaptive() -> None:
    """What adaptive_kernels.py has, with the fewest and the most states."""
    numbers, elements = torch.zeros(16, dtype=torch.int32), torch.zeros(16)
    for lanes in (1, 32):
        levels_kernel[(1,)](
            *(numbers.to(torch.uint16), *[numbers] * 3, numbers.to(torch.int8), numbers, 1, 16),
            LANES=lanes,
            num_warps=1,
            **EXACT,
        )
    product_kernel[(1, 1)](*[elements] * 3, 2, 4, 4, R=16, C=64, **EXACT)


def main(specs: list[str]) -> int:
    """Record launches of the specs, given as MODE:SPEC, MODE/DTYPE:SPEC or shared, and compile them."""
    JITFunction.run = _record
    for spec in specs:
        mode, _, text = spec.partition(":")
        if mode == "shared":
            _launch_shared()
            _launch_shares()
            _launch_adaptive()
        else:
            _launch(text, mode)
    faults = 0
    compiled = 0
    once: set[str] = set()
    for key, launch in launches.items():
        name = launch[0].fn.__name__
        targets = [ALL]
        if name not in once:
            targets += OTHERS if FULL else [OTHERS[len(once) % len(OTHERS)]]
        once.add(name)
        for target in targets:
            found, binary = _compile(launch, target)
            compiled += 1
            ptx = binary.asm.get("ptx", "")
            wide = launch[2].get("ALIGNED") and name in ("collect_kernel", "floats_kernel")
            if wide and ptx and not re.search(r"ld\.global\S*\.v4\.b32", ptx):
                found.append("no loads of 16 bytes")
            if wide and ptx and launch[2]["GRAD_TYPE"] and not HALVES.search(ptx):
                found.append("no loads of 4 elements of 16 bits")
            if found:
                faults += 1
                print(f"{target.arch} {key}: {', '.join(found)}")
    print(f"{len(once)} kernels, {compiled} compilations, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
