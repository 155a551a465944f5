#!/usr/bin/env python3
"""Write golden vectors: frames that every later encoder must reproduce byte for byte.

    python scripts/golden/make_golden.py topk          write tests/golden/vectors/topk.json
    python scripts/golden/make_golden.py --all         the same for every registered codec
    python scripts/golden/make_golden.py --examples    print the worked examples of docs/wire-format.md

A golden vector that exists is a promise to users with frames stored or in flight: it is
overwritten only with --force, and then docs/wire-format.md needs a new version of the format.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gradcomp
from gradcomp import DecodeItem, EncodeItem, decode_batch_add, encode_batch
from gradcomp.codec.spec import stages

# Run as a file, Python finds modules next to it only: the packages of scripts/ are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden.worked_examples import EXAMPLE_CALL, examples

VECTORS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "vectors"

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

# Specs of the vectors, where the registry's example does not reach every branch of the format.
SPECS = {
    "fp16": ("fp16", "fp16(overflow=saturate)"),
    "topk": (
        "topk(ratio=0.1)",
        "topk(k=5)|raw32",
        "topk(ratio=0.4,values=int8)|bitmask",
        "topk(ratio=0.05,values=fp16)|elias_fano",
        "topk(ratio=0.6,values=bf16)|rice",
        "topk(ratio=0.1,values=sign)",
    ),
    "randomk": (
        "randomk(ratio=0.1)",
        "randomk(ratio=0.7,values=fp16)",
        "randomk(k=5,unbiased=true,values=int8)",
        "randomk(ratio=0.3,values=sign)",
        "randomk(k=7,values=bf16)",
    ),
    "terngrad": ("terngrad", "terngrad(clip=0)"),
    "int8": ("int8", "int8(bucket=16,rounding=stochastic)"),
    "int4": ("int4", "int4(bucket=33,rounding=stochastic)"),
    "fp8": (
        "fp8",
        "fp8(format=e5m2,bucket=33)",
        "fp8(bucket=16,rounding=stochastic)",
        "fp8(format=e5m2,rounding=stochastic)",
    ),
    "qsgd": (
        "qsgd(levels=127)",
        "qsgd(levels=5,bucket=100,norm=l2)",
        "qsgd(levels=7)|rans",
        "qsgd(levels=4,norm=l2)|elias_delta",
        "qsgd(levels=128)",
        "qsgd(levels=1000,norm=l2,bucket=300)|rans",
        "qsgd(levels=65535)|elias_delta",
    ),
    "dither": (
        "dither(levels=4)",
        "dither(levels=9,partition=natural,bucket=300)",
        "dither(levels=3,normalize=l2)|rans",
        "dither(levels=7,normalize=l2,partition=natural)|elias_delta",
    ),
    "uniform": (
        "uniform(bits=4)",
        "uniform(bits=3,clip=2.5,rounding=stochastic)|rans",
        "rotate|uniform(bits=2)",
        "rotate|uniform(bits=4,rounding=stochastic)|rans",
        "rotate|uniform(bits=8)",
    ),
    "eden": (
        "eden(bits=1)",
        "eden(bits=2,unbiased=false)",
        "eden(bits=4)|rans",
        "eden(bits=8)",
        "eden(bits=0.5)",
        "eden(bits=0.1,unbiased=false)|rans",
        "eden(bits=1.5)",
        "eden(bits=2.75,unbiased=false)|rans",
    ),
    "drive": (
        "drive",
        "drive(unbiased=false)",
        "drive(two_means=true)",
        "drive(two_means=true,unbiased=false)",
    ),
    "sampled_topk": (
        "sampled_topk(ratio=0.1)",
        "sampled_topk(ratio=0.05,sample_ratio=0.3,resample=false,values=int8)|rice",
        "sampled_topk(k=20,lower_bound=0.95,upper_bound=1.05,max_adaptation_iters=3)|elias_fano",
        "sampled_topk(ratio=0.1,strided_sample=false)",
    ),
    "threshold": (
        "threshold(tau=0.01)",
        "threshold(tau=0.02,values=bf16)|rice",
        "threshold(tau=0)",
    ),
    "randomblock": (
        "randomblock(ratio=0.1)",
        "randomblock(ratio=0.6,values=fp16)",
        "randomblock(k=5,unbiased=true,values=bf16)",
    ),
    "chunktopk": (
        "chunktopk(ratio=0.1,chunk=7)",
        "chunktopk(ratio=0.5,chunk=64,values=int8)|bitmask",
        "chunktopk(ratio=0.01)",
    ),
    "blocktopk": (
        "blocktopk(k=300)",
        "blocktopk(k=64,values=2bit)",
        "blocktopk(k=512,values=means)|rice",
        "blocktopk(k=4096,values=sign)",
    ),
    "globaltopk": ("globaltopk(ratio=0.1)", "globaltopk(k=9,values=fp16)|elias_fano"),
    "adaq": ("adaq(ratio=0.1)", "adaq(ratio=0.5)|bitmask", "adaq(ratio=0.02)|rice"),
    "inceptionn": (
        "inceptionn",
        "inceptionn(error_bound=0.0000152587890625)",
        "inceptionn(error_bound=0.3)",
    ),
    "sketch": (
        "sketch(ratio=0.1,rows=1)",
        "sketch(ratio=0.1)",
        "sketch(ratio=0.5,rows=5)",
        "sketch(ratio=0.3,rows=1,unbiased=true)",
        "sketch(ratio=0.3,unbiased=true)",
    ),
    "polar_b": (
        "polar_b(rate=0.5)",
        "polar_b(rate=0.03125,n=4096)",
        "rotate|polar_b(rate=0.25)",
        "polar_b(rate=0.4,unbiased=true)",
    ),
    "polar_ec": (
        "polar_ec(rate=1)",
        "polar_ec(rate=0.5,n=4096)",
        "polar_ec(rate=4)",
        "rotate|polar_ec(rate=2)",
        "polar_ec(rate=1,unbiased=true)",
    ),
    "polar": ("polar(rate=0.25)", "polar(rate=1)", "polar(rate=0.1,unbiased=true)"),
    "adaptive": (
        "adaptive(rate=0.25)",
        "adaptive(rate=2)",
        "adaptive(rate=1,rank=2)",
        "adaptive(error=0.1)",
        "adaptive(error=0.3,max_rate=0.5,min_rate=0.1,rank=1)",
        "adaptive(rate=2,coder=polar)",
        "adaptive(rate=4,rank=2,coder=polar)",
        "adaptive(rate=1,preset=basis)",
        "adaptive(rate=2,rank=2,preset=basis,coder=polar)",
    ),
}


def from_bits(*bits: int) -> FloatArray:
    """Float32 numbers from their bit patterns."""
    return np.array(bits, np.uint32).view(np.float32)


def special_values() -> FloatArray:
    """64 values at the edges: NaN, Inf, zeros, denormals, rounding ties, overflows."""
    values = [
        # NaN: quiet, negative, signalling, with payload in the upper and in the lower bits.
        from_bits(0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF, 0x7FD5A000, 0x7F802000),
        # Infinities and zeros; the smallest and the largest denormal; the smallest normal number.
        from_bits(0x7F800000, 0xFF800000, 0x00000000, 0x80000000),
        from_bits(0x00000001, 0x807FFFFF, 0x007F8000, 0x00800000),
        # Around the largest binary16 and where rounding to it overflows.
        np.array([65504, -65504, 65519, 65519.996, 65520, -65520, 65536, 1e9], np.float32),
        # Around where rounding to bfloat16 overflows, and the largest float32.
        from_bits(0x7F7F0000, 0x7F7F7FFF, 0x7F7F8000, 0xFF7F8000, 0x7F7FFFFF),
        # Denormal binary16: the smallest, its half (a tie), just above the half, odd and even ties.
        np.array([2**-24, 2**-25, -(2**-25), 1.5 * 2**-24, 2.5 * 2**-24, 2**-14], np.float32),
        from_bits(0x33000001, 0x32FFFFFF, 0x387FE000, 0x387FEFFF, 0x387FF000),
        # Ties between normal binary16, to even downwards and upwards, and just next to them.
        from_bits(0x3F801000, 0x3F803000, 0x3F801001, 0x3F800FFF, 0xBF801000),
        # Ties between bfloat16, to even downwards and upwards, and just next to them.
        from_bits(0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F008000),
    ]
    edges = np.concatenate(values)
    return np.concatenate([edges, np.linspace(-2, 2, 64 - edges.size, dtype=np.float32)])


def inputs() -> dict[str, FloatArray]:
    """The inputs of the vectors, by name."""
    rng = np.random.default_rng(20261121)
    signs = np.where(rng.integers(2, size=64) == 0, -1, 1)
    return {
        "empty": np.empty(0, np.float32),
        "one": np.array([1.5], np.float32),
        "seven": np.array([0.5, -3.0, 0.25, 2.0, -0.125, 0.0, 7.0], np.float32),
        "ties": (signs * rng.choice([0.25, 1.0, 1.0, 4.0], size=64)).astype(np.float32),
        "specials": special_values(),
        "laplace": rng.laplace(scale=0.01, size=1000).astype(np.float32),
    }


def matrices() -> dict[str, FloatArray]:
    """Inputs for the codecs that see rows and columns."""
    rng = np.random.default_rng(20261122)
    scales = np.exp(rng.normal(size=(20, 1)) + rng.normal(size=45))
    pairs = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 45))
    return {
        "matrix": (scales * rng.laplace(size=(20, 45))).astype(np.float32),
        "low rank": (8 * pairs + rng.normal(size=(20, 45))).astype(np.float32),
    }


def sparse() -> dict[str, FloatArray]:
    """An input for the codec that leaves out zeros where they are frequent."""
    rng = np.random.default_rng(20261125)
    x = rng.laplace(scale=0.01, size=1000) * (rng.random(1000) < 0.3) + 0.0  # no -0
    return {"sparse": x.astype(np.float32)}


def tiled() -> dict[str, FloatArray]:
    """A matrix with tiles of four sizes."""
    rng = np.random.default_rng(20261124)
    return {"tiles": rng.laplace(size=(66, 67)).astype(np.float32)}


# Inputs of one codec, in addition to those of all.
OWN_INPUTS = {"adaptive": matrices, "blocktopk": tiled, "lossless": sparse}

CALLS = {
    "empty": {"seed": 0, "step": 0, "tensor_id": 0},
    "specials": {"seed": 2**64 - 1, "step": 2**40 + 7, "tensor_id": 0x0123456789ABCDEF},
}


def encode(codec: gradcomp.Codec, x: FloatArray, call: dict[str, int]) -> ByteArray:
    """The frame of one call."""
    return codec.encode(x, seed=call["seed"], step=call["step"], tensor_id=call["tensor_id"])


def encode_with(
    codec: gradcomp.Codec, x: FloatArray, call: dict[str, int], basis: FloatArray
) -> tuple[ByteArray, FloatArray]:
    """The frame of one call with a basis, and its decoded elements."""
    item = EncodeItem(codec, x, call["seed"], call["step"], call["tensor_id"], basis=basis)
    frame, _ = encode_batch([item])
    decoded = np.zeros(x.size, np.float32)
    decode_batch_add([DecodeItem("golden", codec, [frame], decoded, basis)])
    return frame, decoded


def basis_of(codec: gradcomp.Codec, x: FloatArray) -> FloatArray | None:
    """The basis learned from two averages similar to x; None where the codec learns none."""
    basis = np.zeros(codec.basis_size(x.shape), np.float32)
    if basis.size == 0:
        return None
    rng = np.random.default_rng(20261123)
    for _ in range(2):
        average = x.reshape(len(x), -1)[rng.permutation(len(x))] + rng.normal(size=x.shape)
        codec.learn(average.astype(np.float32), x.shape, basis)
    return basis


def vectors(codec_name: str) -> dict[str, Any]:
    """The golden vectors of a codec, from the present encoder."""
    (stage,) = (row for row in stages() if row.kind == "codec" and row.name == codec_name)
    cases = []
    for spec in SPECS.get(codec_name, (stage.example,)):
        codec = gradcomp.get_codec(spec)
        for name, x in (inputs() | OWN_INPUTS.get(codec_name, dict)()).items():
            call = CALLS.get(name, EXAMPLE_CALL)
            basis = basis_of(codec, x) if x.ndim > 1 else None
            if basis is None:
                frame = encode(codec, x, call)
                decoded = codec.decode(frame)
            else:
                frame, decoded = encode_with(codec, x, call, basis)
            kept: dict[str, Any] = {} if basis is None else {"basis": basis.tobytes().hex()}
            cases.append(
                {
                    "name": name,
                    "spec": codec.spec,
                    **call,
                    **({"shape": list(x.shape)} if x.ndim > 1 else {}),
                    "input": x.tobytes().hex(),
                    **kept,
                    "frame": frame.tobytes().hex(),
                    "decoded": decoded.tobytes().hex(),
                }
            )
    return {"codec": codec_name, "cases": cases}


def write(codec_names: Sequence[str], force: bool) -> None:
    """Write the vectors of several codecs; without ``force``, none if any exists."""
    paths = {name: VECTORS / f"{name}.json" for name in codec_names}
    existing = [path.name for path in paths.values() if path.exists()]
    if existing and not force:
        raise SystemExit(
            f"make_golden.py: exists already: {', '.join(existing)}. New bytes make old frames "
            "unreadable; if that is intended, give --force, and see docs/wire-format.md"
        )
    VECTORS.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        path.write_text(json.dumps(vectors(name), indent=1) + "\n")
        print(path)


def main() -> None:
    """Parse the command line and run it."""
    known = gradcomp.list_codecs()
    parser = argparse.ArgumentParser(description="Write golden vectors of codecs.")
    parser.add_argument("codec", nargs="*", help=f"names of codecs: {', '.join(known)}")
    parser.add_argument("--all", action="store_true", help="every registered codec")
    parser.add_argument("--force", action="store_true", help="overwrite vectors that exist")
    parser.add_argument(
        "--examples",
        action="store_true",
        help="write nothing; print the worked examples of docs/wire-format.md",
    )
    arguments = parser.parse_args()
    names = known if arguments.all else arguments.codec
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"no codec is called {', '.join(unknown)}; known: {', '.join(known)}")
    if arguments.examples:
        print(examples(names or known))
    elif not names:
        parser.error("give names of codecs, or --all")
    else:
        write(names, arguments.force)


if __name__ == "__main__":
    main()
