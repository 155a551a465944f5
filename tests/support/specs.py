"""Specs of every registered codec, on which the laws are checked."""

from __future__ import annotations

from gradcomp import SpecError, get_codec
from gradcomp.codec.spec import ParamInfo, StageInfo, parse, stages

CODECS = [stage.name for stage in stages() if stage.kind == "codec"]


def _candidates(param: ParamInfo) -> list[str]:
    """A few values in a parameter's range, the ends among them."""
    if param.type in ("choice", "boolean"):
        return param.range.split("|")
    low, high = param.range.strip("([])").split(", ")
    if param.type == "integer":
        return [low, str(int(low) + 2), str(int(low) + 99)]
    ends = [low if param.range.startswith("[") else "0.03", "0.6"]
    return ends if high == "inf" else [*ends, high]


def specs_of(stage: StageInfo) -> list[str]:
    """The registry's example, and every parameter on its own at a few values."""
    found = [get_codec(stage.example).spec]
    for param in stage.params:
        for value in _candidates(param):
            try:
                found.append(get_codec(f"{stage.name}({param.name}={value})").spec)
            except SpecError:  # it needs another parameter besides
                continue
    return sorted(set(found), key=found.index)


def takes_memory(spec: str) -> bool:
    """Whether error feedback makes sense with a codec."""
    try:
        parse(f"residual|{spec}")
    except SpecError:
        return False
    return True


SPECS = [spec for stage in stages() if stage.kind == "codec" for spec in specs_of(stage)]
MEMORY_SPECS = [spec for spec in SPECS if takes_memory(spec)]
