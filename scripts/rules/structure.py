#!/usr/bin/env python3
"""Print figures of the structure: circles, parts of packages, long files, resolutions of a gradient.

    python scripts/rules/structure.py

tests/rules/test_structure.py asserts 0 circles in Python and C++, at most `LIMITS` parts and imports, 1
resolution, and at most 10 files that the guide to a new codec touches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grimp
import networkx
import numpy as np

from gradcomp.adapter_api import (
    AllGather,
    AllReduce,
    Collector,
    Driver,
    Pipeline,
    Request,
    Route,
)
from gradcomp.config.schema import Config
from gradcomp.runtime.resolve import Resolver

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "gradcomp",
    "gradcomp_torch",
    "byteps_compressors",
    "horovod_compressors",
    "torch_compressors",
)

LIMITS = {"torch_compressors": (15, 25), "gradcomp.runtime": (15, 34)}
"""Most parts of a package, and most imports between them; see `parts`."""

LONG = 450
"""Lines of a Python file that is worth dividing."""


def python_imports() -> dict[str, set[str]]:
    """The modules that each module of the packages imports."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    # The extension gradcomp._core looks like the package gradcomp to grimp.
    return {
        module: graph.find_modules_directly_imported_by(module) - {"gradcomp"}
        for module in graph.modules
    }


def cpp_includes() -> dict[str, set[str]]:
    """The files of csrc that each file of csrc includes; a source includes its header."""
    folder = ROOT / "csrc"
    files = {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.suffix in {".cpp", ".hpp", ".h"}
    }
    pattern = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
    return {
        name: {f for f in pattern.findall(text) if f in files and f != name}
        for name, text in files.items()
    }


def parts(package: str, edges: Mapping[str, set[str]]) -> tuple[set[str], set[tuple[str, str]]]:
    """The parts of a package, which are its files and packages, and the imports between them.

    The package's own ``__init__`` is a part.

    Args:
        edges: the modules that each module imports.
    """

    def part(module: str) -> str | None:
        if module == package:
            return "__init__"
        inner = module.removeprefix(f"{package}.")
        return None if inner == module else inner.partition(".")[0]

    names = {name for module in edges if (name := part(module)) is not None}
    pairs = {(part(module), part(other)) for module, others in edges.items() for other in others}
    return names, {(a, b) for a, b in pairs if a is not None and b is not None and a != b}


def long_files() -> dict[str, int]:
    """Lines of the product's Python files with more than `LONG`, the longest first."""
    patterns = ("gradcomp*", "*_compressors", "scripts", "benchmarks")
    files = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for pattern in patterns
        for folder in ROOT.glob(pattern)
        for path in folder.rglob("*.py")
    }
    found = {name: lines for name, lines in files.items() if lines > LONG}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of two or more files that all reach each other."""
    graph = networkx.DiGraph(edges)
    groups = networkx.strongly_connected_components(graph)
    return sorted(sorted(group) for group in groups if len(group) > 1)


class _Alone:
    """The collectives of one rank by itself."""

    def start(self, request: Request) -> Request:
        return request

    def finish(self, request: Request) -> Any:
        if isinstance(request, AllReduce):
            return request.array
        assert isinstance(request, AllGather)
        return [request.frame]


SHAPES = {"w1": (64, 80), "b1": (80,), "w2": (80, 96), "b2": (96,)}

CONFIGS: Sequence[Any] = (
    "residual|topk(ratio=0.01)",
    "fp16",
    "powersgd(rank=2,start_step=0)",
    "topk(ratio=ramp(from=0.25,to=0.01,steps=4))",
    ["fp16", {"from_step": 2, "use": "residual|sign"}],
)


def resolutions(use: Any) -> int:
    """The most resolutions of one gradient in one of four steps, by the way that adapters take."""
    compress = {"default": use}
    config = Config.from_mapping({"version": 1, "compress": compress})
    pipeline = Pipeline(config)
    collector = Collector(Driver(_Alone()), pipeline, SHAPES)
    counts: Counter[str] = Counter()
    original = Resolver.resolve

    def counting(self: Resolver, name: str, *others: Any) -> Any:
        counts[name] += 1
        return original(self, name, *others)

    most = 0
    Resolver.resolve = counting  # type: ignore[method-assign, assignment]
    try:
        for _ in range(4):
            counts.clear()
            collector.begin_step()
            collected = []
            for name, shape in SHAPES.items():
                resolved = collector.resolve(name, shape)
                grad = np.ones(shape, np.float32)
                if collector.route(resolved, sums_dtype=True) is Route.DENSE:
                    pipeline.count_dense({name: grad.nbytes})
                else:
                    collector.add(resolved, grad, grad.nbytes)
                    collected.append(name)
            for name in collected:
                collector.finish(name)
            collector.end_step()
            most = max([most, *counts.values()])
    finally:
        Resolver.resolve = original  # type: ignore[method-assign]
    return most


def guide_files() -> set[str]:
    """The files that docs/adding-a-compressor.md makes one write or edit for its example.

    The golden vectors and the figure, which its commands write, are two more.
    """
    text = (ROOT / "docs" / "adding-a-compressor.md").read_text()
    blocks = re.findall(r"^(?:New file|In) `([^`]+)`[:,]", text, re.MULTILINE)
    last = re.findall(r"^Last, .*\[(docs/[^\]]+)\]", text, re.MULTILINE)
    return {*blocks, *last}


def main() -> None:
    """Print the figures."""
    edges = python_imports()
    print(f"circles of files in Python: {len(circles(edges))}")
    print(f"circles of files in C++: {len(circles(cpp_includes()))}")
    for package in LIMITS:
        names, pairs = parts(package, edges)
        print(f"parts of {package}: {len(names)}, imports between them: {len(pairs)}")
    files = long_files()
    listed = ", ".join(f"{name} ({lines})" for name, lines in files.items())
    print(f"Python files over {LONG} lines: {len(files)}: {listed}")
    for use in CONFIGS:
        print(f"resolutions of a gradient in a step: {resolutions(use)} ({use})")
    print(f"files touched by the guide's codec: {len(guide_files())}")


if __name__ == "__main__":
    main()
