#!/usr/bin/env python3
"""Print figures of the structure: circles of files, resolutions of a gradient, files of a codec.

    python scripts/rules/structure.py

tests/rules/test_structure.py asserts 0 circles in Python and C++, 1 resolution, and at most 10
files.
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
    "gradcomp_baselines",
    "gradcomp_torch",
    "byteps_compressors",
    "horovod_compressors",
    "torch_compressors",
)


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
                    pipeline.count_dense(name, grad.nbytes)
                else:
                    collector.add(resolved, grad, grad.nbytes)
                    collected.append(name)
            for name in collected:
                collector.finish(name)
            collector.end_step()
            most = max(most, *counts.values())
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
    print(f"circles of files in Python: {len(circles(python_imports()))}")
    print(f"circles of files in C++: {len(circles(cpp_includes()))}")
    for use in CONFIGS:
        print(f"resolutions of a gradient in a step: {resolutions(use)} ({use})")
    print(f"files touched by the guide's codec: {len(guide_files())}")


if __name__ == "__main__":
    main()
