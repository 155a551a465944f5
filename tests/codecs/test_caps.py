"""One list of capabilities, in gradcomp.h, for C, C++ and Python."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from gradcomp import get_codec
from gradcomp.capi import core_library, include_folder
from gradcomp.codec.spec import stages

ROOT = Path(__file__).parents[2]
HEADER = (include_folder() / "gradcomp" / "gradcomp.h").read_text()
BITS = {
    name: int(bit) for name, bit in re.findall(r"^ *X\((\w+), \w+, (\d+)\)", HEADER, re.MULTILINE)
}
SPECS = [stage.example for stage in stages() if stage.kind == "codec"]
SPECS.append("adaptive(preset=basis)")


def caps_in_c(spec: str) -> int:
    """The bits that the C interface gives."""
    library = ctypes.CDLL(str(core_library()))
    library.gradcomp_codec_caps.argtypes = [ctypes.c_void_p]
    library.gradcomp_codec_caps.restype = ctypes.c_uint32
    library.gradcomp_codec_destroy.argtypes = [ctypes.c_void_p]
    codec = ctypes.c_void_p()
    assert library.gradcomp_codec_create(spec.encode(), ctypes.byref(codec)) == 0
    caps: int = library.gradcomp_codec_caps(codec)
    library.gradcomp_codec_destroy(codec)
    return caps


def test_each_capability_has_a_bit_of_its_own() -> None:
    assert sorted(BITS.values()) == [1 << i for i in range(len(BITS))]


@pytest.mark.parametrize("spec", SPECS)
def test_c_and_python_name_the_same_capabilities(spec: str) -> None:
    assert caps_in_c(spec) == sum(BITS[name] for name in get_codec(spec).caps)


def test_some_codec_has_each_capability() -> None:
    assert frozenset().union(*(get_codec(spec).caps for spec in SPECS)) == BITS.keys()


@pytest.mark.parametrize("name", BITS)
def test_each_capability_is_documented(name: str) -> None:
    assert f"``{name}``:" in (ROOT / "gradcomp" / "codec" / "codec.py").read_text()
