"""No circles of files, few parts of a package, and one resolution of a gradient in a step."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gradcomp.runtime.pipeline import Pipeline
from rules.structure import (
    CONFIGS,
    LIMITS,
    circles,
    cpp_includes,
    guide_files,
    parts,
    python_imports,
    resolutions,
)


def test_python_files_import_in_no_circle() -> None:
    edges = python_imports()
    assert len(edges) > 100
    assert circles(edges) == []


def test_cpp_files_include_in_no_circle() -> None:
    edges = cpp_includes()
    assert len(edges) > 100
    assert circles(edges) == []


def test_headers_with_their_sources_include_in_no_circle() -> None:
    """A stricter rule: a header and its source count as one."""
    edges: dict[str, set[str]] = {}
    for name, included in cpp_includes().items():
        module = name.rpartition(".")[0]
        others = {other.rpartition(".")[0] for other in included}
        edges[module] = edges.get(module, set()) | (others - {module})
    assert circles(edges) == []


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(edges) == [["a", "b", "c"]]


@pytest.mark.parametrize("package", LIMITS)
def test_packages_have_few_parts_and_imports_between_them(package: str) -> None:
    names, pairs = parts(package, python_imports())
    most_parts, most_imports = LIMITS[package]
    assert 5 < len(names) <= most_parts
    assert 5 < len(pairs) <= most_imports


def test_parts_are_those_of_the_first_level() -> None:
    edges = {"p": {"p.a"}, "p.a": {"p.b.c", "q"}, "p.b.c": {"p.b.d", "p.a"}, "p.b.d": {"p.a"}}
    assert parts("p", edges) == (
        {"__init__", "a", "b"},
        {("__init__", "a"), ("a", "b"), ("b", "a")},
    )


def test_pipeline_is_a_facade() -> None:
    public = [name for name in vars(Pipeline) if not name.startswith("_")]
    assert len(public) <= 20
    assert len(inspect.getsourcelines(Pipeline)[0]) <= 350


@pytest.mark.parametrize("use", CONFIGS, ids=str)
def test_a_gradient_is_resolved_once_in_a_step(use: Any) -> None:
    """If its decision may change; else before the first one."""
    may_change = not isinstance(use, str) or "ramp" in use
    assert resolutions(use) == may_change


def test_a_codec_touches_at_most_10_files() -> None:
    files = guide_files()
    assert {"csrc/stages/registry.cpp", "docs/stages.md"} <= files
    assert len(files) <= 10
