"""Kernels compiled for real GPUs, without one: nothing in the code changes bits or is slow by its form.

Compiled are sm_80, sm_90, sm_100 and gfx942, with the options that encoders pass. By default each kernel is
compiled for sm_90 and for one of the others.
"""

from __future__ import annotations

import re

import pytest

from gpu.conftest import Mutate
from gpu.processes import run

SPECS = {
    "dense": (
        *(
            "feedback:identity",
            "feedback/float16:fp16",
            "plain:fp16",
            "feedback:fp16(overflow=saturate)",
            "nesterov:bf16",
        ),
        *("feedback:qsgd(levels=127)", "feedback:int8", "feedback:int4(rounding=stochastic)"),
        *("feedback:uniform(bits=4,rounding=stochastic)", "feedback:uniform(bits=8)"),
        *("feedback:sign", "feedback:onebit", "feedback:terngrad"),
        "feedback:rotate|uniform(bits=4)",
        "nesterov:rotate|uniform(bits=8,rounding=stochastic)",
    ),
    "sparse": (
        *(
            "feedback/bfloat16:topk(ratio=0.01)",
            "correction:topk(ratio=0.01)",
            "feedback:topk(ratio=0.3,values=fp16)",
        ),
        *(
            f"feedback:topk(ratio=0.01,values={type_})"
            for type_ in ("int8", "sign", "means", "2bit")
        ),
        *("feedback:randomk(ratio=0.01)", "correction:sampled_topk(ratio=0.01)"),
    ),
    "shared": ("shared",),
}
KERNELS = {"dense": 12, "sparse": 14, "shared": 26}


@pytest.mark.parametrize("kind", SPECS)
def test_no_compiled_kernel_changes_bits(kind: str) -> None:
    done = run("generated.py", *SPECS[kind])
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"^(\d+) kernels, \d+ compilations, 0 faults", done.stdout, re.M)
    assert counted is not None, done.stdout
    assert int(counted[1]) >= KERNELS[kind]


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ('EXACT = {"enable_fp_fusion": False}', 'EXACT = {"enable_fp_fusion": True}', "fma.rn"),
        ("to = tl.multiple_of(to, 16)", "to = to", "no loads of 16 bytes"),
    ],
)
def test_it_would_notice(before: str, after: str, fault: str, mutant: Mutate) -> None:
    done = run("generated.py", "feedback:fp16", first=mutant(before, after))
    assert done.returncode == 1, done.stdout + done.stderr
    assert fault in done.stdout
