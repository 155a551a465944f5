"""The stages that a wrong name may mean, for errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

__all__ = ["explained", "stage_hint"]

_OTHER_NAMES = {
    "fp16": "float16 half f16 halfprecision",
    "bf16": "bfloat16 brainfloat16 brainfloat",
    "fp8": "float8 e4m3 e5m2 fp8e4m3 fp8e5m2",
    "identity": "float32 fp32 f32 none null no off dense full uncompressed nocompression",
    "residual": "ef errorfeedback feedback memory",
    "ef21(momentum=0.9)": "ef21sgdm ef21m",
    "sign": "signsgd",
    "sign(scale=one)": "signsgd",
    "signsgd_mv": "signsgd majorityvote signmv",
    "residual|sign": "efsignsgd efsign",
    "onebit": "1bit 1bitsgd onebitsgd bit1",
    "residual|onebit": "1bitadam onebitadam",
    "int8": "8bit uint8 quant8",
    "int4": "4bit uint4 quant4",
    "randomk": "randk",
    "powersgd": "lowrank rankk",
    "rotate": "hadamard rotation randomhadamard",
    "lossless": "gzip zip zlib zstd lz4 deflate",
    "momentum_correction": "momentum",
    "dgc": "deepgradientcompression",
    "qsgd": "quantize quantization",
}
"""Words of other libraries and of papers, in lower case without punctuation, for stages."""


def stage_hint(word: str, names: Collection[str]) -> str:
    """The stages that a wrong name may mean, at most three, and the command that lists all.

    Args:
        word: not among the names.
        names: of all stages.
    """
    near = " or ".join(f"'{name}'" for name in _near(word, names))
    guess = f"did you mean {near}? " if near else ""
    return f"{guess}`gradcomp list` shows all {len(names)} stages"


def _near(word: str, names: Collection[str]) -> Sequence[str]:
    plain = _plain(word)
    same = [name for name in names if _plain(name) == plain]
    meant = same or [name for name, words in _OTHER_NAMES.items() if plain in words.split()]
    return meant or difflib.get_close_matches(word.lower(), names, n=3)


def _plain(word: str) -> str:
    return re.sub("[^a-z0-9]", "", word.lower())


def explained(message: str, names: Collection[str], faults: Iterable[str]) -> str:
    """An error of the core's parser, with a `stage_hint` if it is about the name of a stage.

    Args:
        message: three lines: the problem, the spec, and a caret below the place.
        names: of all stages.
        faults: of plug-ins that cannot be loaded, which may have the stage.
    """
    problem, *shown = message.split("\n")
    found = re.match("unknown stage '[^']*'|expected the name of a stage \\(lower case\\)", problem)
    if found is None or len(shown) != 2:
        return message
    word = re.match("[A-Za-z0-9_.+-]*", shown[0][shown[1].index("^") :])
    if word is None or not word[0]:
        return message
    hint = "; ".join([stage_hint(word[0], names), *faults])
    return "\n".join([f"{found[0]}: {hint}", *shown])
