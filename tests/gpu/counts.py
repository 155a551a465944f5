"""What each kernel of an encoder costs, as a table: python counts.py [MODE:SPEC...]

Launches and bytes per element are counted in the interpreter (traffic.py), for one tensor of 32,768 elements with
error feedback. The rest is that of the code for sm_90 (generated.py): registers of a thread, and instructions that wait
for all threads of a program, order memory for other programs, or are atomic in global memory. No GPU is needed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from tempfile import NamedTemporaryFile
from typing import Any

from triton.runtime.jit import JITFunction

from gpu import generated
from gpu.processes import run

NUMEL = 16 * 2048
SPECS = (
    *("fp16", "int8", "qsgd(levels=127)", "sign", "rotate|uniform(bits=4)"),
    *("topk(ratio=0.01)", "bf16:topk(ratio=0.01)", "topk(ratio=0.01,values=int8)"),
    *("sampled_topk(ratio=0.01)", "randomk(ratio=0.01)"),
)
COLUMNS = ("registers", "barriers", "fences", "atomics")
INSTRUCTIONS = {"barriers": r"BAR\.", "fences": r"MEMBAR\.", "atomics": r"(?:ATOMG|REDG?)\."}


def main(specs: list[str]) -> None:
    """Print the table; of bf16:SPEC with a gradient of bfloat16."""
    done = run("traffic.py", str(NUMEL), *specs)
    assert done.returncode == 0, done.stderr
    JITFunction.run = generated._record
    print(f"| spec | kernel | launches | bytes | {' | '.join(COLUMNS)} |")
    print("|---|---|---:|---:|" + "---:|" * len(COLUMNS))
    for text, line in zip(specs, done.stdout.splitlines(), strict=True):
        type_, _, spec = text.rpartition(":")
        compiled = _compiled(spec, "feedback/bfloat16" if type_ else "feedback")
        for kernel, traffic in json.loads(line).items():
            numbers = [str(max(each)) for each in zip(*compiled[kernel], strict=True)]
            bytes_ = f"{traffic['bytes']:.2f}"
            cells = [text.replace("|", "\\|"), kernel, str(traffic["launches"]), bytes_, *numbers]
            print(f"| {' | '.join(cells)} |", flush=True)


def _compiled(spec: str, mode: str) -> dict[str, list[list[int]]]:
    """The numbers of `COLUMNS` of each variant of a spec's kernels, by the kernel's name."""
    generated.launches.clear()
    generated._launch(spec, mode)
    found: dict[str, list[list[int]]] = {}
    for launch in generated.launches.values():
        _, binary = generated._compile(launch, generated.ALL)
        found.setdefault(launch[0].fn.__name__, []).append(_count(binary.asm["cubin"]))
    return found


def _count(binary: Any) -> list[int]:
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        tools = generated.TOOLS
        used, code = (
            subprocess.run(command, capture_output=True, text=True, check=True)
            for command in (
                [str(tools / "cuobjdump"), "-res-usage", file.name],
                [str(tools / "nvdisasm"), "-c", file.name],
            )
        )
    registers = re.search(r"REG:(\d+)", used.stdout + used.stderr)
    assert registers is not None
    operations = re.findall(
        r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ +)?([A-Z][\w.]*)", code.stdout, re.M
    )
    assert operations, code.stdout
    return [
        int(registers[1]),
        *(
            sum(re.match(pattern, operation) is not None for operation in operations)
            for pattern in INSTRUCTIONS.values()
        ),
    ]


if __name__ == "__main__":
    main(sys.argv[1:] or list(SPECS))
