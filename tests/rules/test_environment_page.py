"""docs/environment.md names the environment variables that the code reads, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pages.site_pages import tracked
from support.files import ROOT

PAGE = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", PAGE))
FAMILIES = r"(?:GRADCOMP|HOROVOD|BYTEPS|DMLC|GLOO|LOCAL|MASTER|OMP|OMPI|TORCHELASTIC)_[A-Z0-9_]+"
NOT_READ = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "PORT"}
"""Passed on or removed as they are, without a meaning of their own in gradcomp."""

OF_BUILDS = r"(?:HOROVOD|BYTEPS)_(?:WITH|WITHOUT|BUILD|COMPILE)\w*"
"""Options of the engines' own builds, which scripts/wheels sets."""


def files(*patterns: str) -> list[Path]:
    return [ROOT / name for name in tracked(*patterns)]


def in_python(source: str) -> Iterator[str]:
    """Whole strings with a name of one of the engines, and whatever ``os.environ`` is asked for."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(str(text)) if re.fullmatch(FAMILIES, text):
                yield text
            case (
                ast.Call(
                    ast.Attribute(ast.Attribute(attr="environ"), "get" | "setdefault" | "pop"),
                    [ast.Constant(str(text)), *_],
                )
                | ast.Subscript(ast.Attribute(attr="environ"), ast.Constant(str(text)))
                | ast.Compare(ast.Constant(str(text)), [_], [ast.Attribute(attr="environ")])
            ):
                yield text


def in_shell(source: str) -> Iterator[str]:
    yield from re.findall(r"\$\{?(GRADCOMP_[A-Z0-9_]+|PYTHON(?=:-))", source)


def in_cpp(source: str) -> Iterator[str]:
    yield from re.findall(r'\b(?:getenv|variable)\("(\w+)"\)', source)


READERS = [
    (in_python, ("*_compressors/*.py", "gradcomp/*.py", "gradcomp_torch/*.py", "setup.py")),
    (in_python, ("scripts/*.py", "benchmarks/chaos/*.py", "tests/support/scope.py")),
    (in_cpp, ("csrc", "byteps_compressors/native")),
    (in_shell, ("docker/*", "scripts/*")),
]


def read_by_the_code() -> dict[str, str]:
    """Each variable, with a file that reads or sets it."""
    found: dict[str, str] = {}
    for names_in, patterns in READERS:
        for path in files(*patterns):
            if names_in is in_shell and path.suffix not in ("", ".sh"):
                continue
            for name in names_in(path.read_text(encoding="utf-8")):
                found.setdefault(name, str(path.relative_to(ROOT)))
    return {
        name: path
        for name, path in found.items()
        if name not in NOT_READ and not re.fullmatch(OF_BUILDS, name)
    }


def test_the_page_names_every_variable_that_is_read() -> None:
    found = read_by_the_code()
    assert {"GRADCOMP_LOG", "GRADCOMP_SIMD", "DMLC_WORKER_ID", "RANK"} <= set(found)
    assert {name: path for name, path in found.items() if name not in NAMED} == {}


def test_the_page_names_no_other_variable() -> None:
    assert NAMED - set(read_by_the_code()) == set()
