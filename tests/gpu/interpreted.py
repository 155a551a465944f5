"""Runs comparisons in Triton's interpreter, on CPU tensors: python interpreted.py SHARE NAME...

The interpreter replaces Triton's language in the whole process, hence one of its own. See comparisons.py.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from triton import language
from triton.runtime import interpreter

from gpu.comparisons import CPU, main

_patch = interpreter._patch_lang
_patched: set[int] = set()


def _patch_once(fn: Any) -> Any:
    """Patches Triton's language once for a launch, not at each call of a function: half of the time."""
    if language.core.is_builtin(language.load):  # a new launch
        _patched.clear()
    modules = {id(value) for value in fn.__globals__.values() if value in (language, language.core)}
    if modules <= _patched:
        return interpreter._LangPatchScope()
    _patched.update(modules)
    return _patch(fn)


interpreter._patch_lang = _patch_once

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], float(sys.argv[1]), CPU))
