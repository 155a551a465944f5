"""Rules of files: one test checks a rule on all of them, and lists every problem it finds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rule_of(
    paths: Iterable[Path],
) -> Callable[[Callable[[Path], Collection[str]]], Callable[[], None]]:
    """Make a test of a function that returns the problems of a file."""
    paths = list(paths)

    def decorator(problems_of: Callable[[Path], Collection[str]]) -> Callable[[], None]:
        def test() -> None:
            assert paths
            found = {path.relative_to(ROOT): problems_of(path) for path in paths}
            lines = [f"{path}: {one}" for path, problems in found.items() for one in problems]
            assert not lines, "\n".join(["problems:", *lines])

        test.__name__ = test.__qualname__ = problems_of.__name__
        test.__doc__ = problems_of.__doc__
        test.__module__ = problems_of.__module__
        return test

    return decorator
