"""The preset ``auto``: what a job gets that names no compressor."""

from __future__ import annotations

from typing import Any

__all__ = ["AUTO", "AUTO_SPEC", "with_preset"]

AUTO = "auto"
"""Name of the preset, wherever a spec for all tensors is expected."""

AUTO_SPEC = "residual|adaptive(rate=ramp(from=1.5,to=1,steps=500),step=energy)"
"""Its spec; benchmarks/README.md, "Bits by step, and vectors", has the trainings it was chosen by."""


def with_preset(compress: Any) -> Any:
    """A ``compress`` section in which the preset is written out, if it has no ``default`` or ``auto``.

    The ranks then measure whether compression pays, unless ``policy`` says otherwise.
    """
    if compress is None:
        compress = {}
    if not isinstance(compress, dict) or compress.get("default", AUTO) != AUTO:
        return compress
    return {"policy": "auto", **compress, "default": AUTO_SPEC}
