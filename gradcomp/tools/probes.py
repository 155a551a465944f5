"""Trials of the parts of an installation: ``python -m gradcomp.tools.probes NAME FILE`` runs one.

Packages declare the trials of their engines under the entry point group ``gradcomp.probes``: functions
that return a line on what works, or raise. Each trial runs in its own process, because a broken
library may end it or hang. It writes one JSON object to FILE: ``detail``, or ``problem`` and perhaps
``fix``, the line that fixes it, and ``built``, which is false if a package lacks the part.
"""

from __future__ import annotations

import importlib
import json
import sys
import zlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from gradcomp.errors import NotBuiltError, ProbeError

__all__ = ["FRAME_CRC", "one_frame"]

FRAME_CRC = 0x31674589
"""CRC-32 of the bytes of `one_frame`."""


def one_frame() -> bytes:
    """A frame of 4096 elements, which has the same bytes on every machine."""
    numpy = importlib.import_module("numpy")
    codecs = importlib.import_module("gradcomp.codec.codec")
    codec = codecs.get_codec("int8")
    grad = ((numpy.arange(4096) * 7919 % 1009 - 504) / 256).astype(numpy.float32)
    frame: bytes = codec.encode(grad).tobytes()
    error = float(abs(codec.decode(frame) - grad).max())
    if not error < 0.01:
        raise ProbeError(f"a decoded frame is off by {error}")
    return frame


def _core() -> str:
    core = importlib.import_module("gradcomp._core")
    level_before = core.simd_level()
    for level in core.simd_levels():
        core.set_simd_level(level)
        if zlib.crc32(one_frame()) != FRAME_CRC:
            raise ProbeError(f"a frame has the wrong bytes with SIMD level {level}")
    levels = ", ".join(core.simd_levels())
    return f"gradcomp {version('gradcomp')}, SIMD level {level_before} of {levels}: same bytes"


def _probe(name: str) -> Callable[[], str]:
    if name == "core":
        return _core
    found = entry_points(group="gradcomp.probes", name=name)
    if not found:
        raise NotBuiltError(f"no installed package declares the probe '{name}'")
    probe: Callable[[], str] = next(iter(found)).load()
    return probe


def _answer(name: str) -> dict[str, Any]:
    try:
        return {"detail": _probe(name)()}
    except ProbeError as error:
        built = not isinstance(error, NotBuiltError)
        return {"problem": str(error), "built": built, "fix": error.fix}
    except PackageNotFoundError as error:
        return {"problem": f"{error.name} has no metadata: it was not installed by pip"}
    except Exception as error:  # whatever a broken package raises
        return {"problem": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    # Libraries write to standard output, too.
    Path(sys.argv[2]).write_text(json.dumps(_answer(sys.argv[1])))
