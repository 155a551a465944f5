"""The rules of dependency that import-linter cannot see."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".cpp", ".hpp", ".h"})
CORE = [p for p in SOURCES if "bindings" not in p.relative_to(ROOT / "csrc").parts]
ADAPTERS = sorted(
    path
    for adapter in ("byteps_compressors", "horovod_compressors", "torch_compressors")
    for path in (ROOT / adapter).rglob("*.py")
)


def _includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def test_there_are_sources_to_check() -> None:
    assert len(CORE) > 20
    assert ADAPTERS


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_knows_no_python(path: Path) -> None:
    assert [name for name in _includes(path) if re.match(r"(Python\.h|pybind11/)", name)] == []


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_never_prints_nor_aborts(path: Path) -> None:
    # snprintf into a buffer is fine.
    assert re.findall(r"\b(printf|fprintf|puts|abort|exit|cout|cerr)\b", path.read_text()) == []


def test_only_the_bindings_include_pybind11() -> None:
    users = {p.name for p in SOURCES if any(i.startswith("pybind11") for i in _includes(p))}
    assert users == {
        *("module.cpp", "dlpack.hpp"),
        *(
            "linalg.cpp",
            "linalg.hpp",
            "polar.cpp",
            "polar.hpp",
            "buffer_pool.cpp",
            "buffer_pool.hpp",
            "plugins.cpp",
            "plugins.hpp",
        ),
    }


def test_the_c_header_stands_alone() -> None:
    header = ROOT / "csrc" / "include" / "gradcomp" / "gradcomp.h"
    assert _includes(header) == ["stddef.h", "stdint.h"]


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_adapters_use_public_names_only(path: Path) -> None:
    assert re.findall(r"gradcomp\._\w+|from gradcomp import _\w+", path.read_text()) == []


@pytest.mark.parametrize("path", ["tests/golden/decoder.py", "scripts/golden/lloyd_max.py"])
def test_the_second_decoder_stands_alone(path: str) -> None:
    imports = re.findall(r"^(?:from|import) (\w+)", (ROOT / path).read_text(), re.MULTILINE)
    assert set(imports) - sys.stdlib_module_names == (
        {"numpy", "golden"} if path.endswith("decoder.py") else {"numpy"}
    )
