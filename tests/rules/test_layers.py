"""The rules of dependency that import-linter cannot see."""

import re
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from support.files import ROOT, rule_of

SOURCES = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".cpp", ".hpp", ".h"})
CORE = [p for p in SOURCES if "bindings" not in p.relative_to(ROOT / "csrc").parts]
ADAPTERS = sorted(
    path
    for adapter in (
        "byteps_compressors",
        "gradcomp_torch",
        "horovod_compressors",
        "torch_compressors",
    )
    for path in (ROOT / adapter).rglob("*.py")
)


# From the lowest layer up. A layer includes itself and lower ones; parts of one layer are siblings
# and do not include each other.
LAYERS = (
    ("base",),
    ("kernels",),
    ("coding", "linalg", "polar"),
    ("codec",),
    ("codecs",),
    ("stages",),
    ("wire",),
    ("bindings", "capi.cpp"),
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}


def _includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def _own_includes(path: Path) -> list[Path]:
    """The files of csrc that a file includes, relative to csrc."""
    csrc = ROOT / "csrc"
    return [Path(name) for name in _includes(path) if (csrc / name).is_file()]


def test_there_are_sources_to_check() -> None:
    assert len(CORE) > 20
    assert ADAPTERS


def test_every_source_is_in_a_layer() -> None:
    parts = {p.relative_to(ROOT / "csrc").parts[0] for p in SOURCES}
    assert parts - {"include"} == set(RANK)


@rule_of(SOURCES)
def test_includes_point_down(path: Path) -> Collection[str]:
    own = path.relative_to(ROOT / "csrc").parts[0]
    if own == "include":  # the C header, which stands alone
        return []
    parts = {included.parts[0] for included in _own_includes(path)} - {"include"}
    return {part for part in parts if part != own and RANK[part] >= RANK[own]}


@rule_of(p for p in SOURCES if "codecs" in p.relative_to(ROOT).parts)
def test_families_of_codecs_do_not_include_each_other(path: Path) -> Collection[str]:
    own = path.parent.name
    families = {
        included.parts[1]
        for included in _own_includes(path)
        if len(included.parts) == 3 and included.parts[0] == "codecs"
    }
    return families - {own}


@rule_of(CORE)
def test_the_core_knows_no_python(path: Path) -> Collection[str]:
    return [name for name in _includes(path) if re.match(r"(Python\.h|pybind11/)", name)]


@rule_of(CORE)
def test_the_core_never_prints_nor_aborts(path: Path) -> Collection[str]:
    # snprintf into a buffer is fine.
    return re.findall(r"\b(printf|fprintf|puts|abort|exit|cout|cerr)\b", path.read_text())


def test_only_the_bindings_include_pybind11() -> None:
    users = {p.parent for p in SOURCES if any(i.startswith("pybind11") for i in _includes(p))}
    assert users == {ROOT / "csrc" / "bindings"}


def test_the_c_header_stands_alone() -> None:
    header = ROOT / "csrc" / "include" / "gradcomp" / "gradcomp.h"
    assert _includes(header) == ["stddef.h", "stdint.h"]


@rule_of(ADAPTERS)
def test_adapters_use_public_names_only(path: Path) -> Collection[str]:
    return re.findall(r"gradcomp\._\w+|from gradcomp import _\w+", path.read_text())


@pytest.mark.parametrize("path", ["tests/golden/decoder.py", "scripts/golden/lloyd_max.py"])
def test_the_second_decoder_stands_alone(path: str) -> None:
    imports = re.findall(r"^(?:from|import) (\w+)", (ROOT / path).read_text(), re.MULTILINE)
    assert set(imports) - sys.stdlib_module_names == (
        {"numpy", "golden"} if path.endswith("decoder.py") else {"numpy"}
    )
