"""Buckets: groups of tensors that travel together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

__all__ = ["make_buckets"]


def make_buckets(
    tensors: Iterable[tuple[str, Hashable | None, int]], limit: int
) -> list[tuple[str, ...]]:
    """Group the tensors of each kind, in the order given, into runs of about ``limit`` bytes.

    Args:
        tensors: name, kind and size in bytes of each. A tensor without a kind (None) is alone.
        limit: bytes, at least 0. A bucket ends with the tensor that brings it to this size; with 0
            every tensor has its own bucket.

    Returns:
        The names in each bucket: those of the first kind first, and tensors without a kind last.
    """
    kinds: dict[Hashable, list[tuple[str, int]]] = {}
    others = []
    for name, kind, nbytes in tensors:
        if kind is None:
            others.append((name,))
        else:
            kinds.setdefault(kind, []).append((name, nbytes))
    return [*(bucket for sizes in kinds.values() for bucket in _runs(sizes, limit)), *others]


def _runs(tensors: Iterable[tuple[str, int]], limit: int) -> list[tuple[str, ...]]:
    """Runs of about ``limit`` bytes."""
    buckets: list[tuple[str, ...]] = []
    names: list[str] = []
    total = 0
    for name, nbytes in tensors:
        names.append(name)
        total += nbytes
        if total >= limit:
            buckets.append(tuple(names))
            names, total = [], 0
    if names:
        buckets.append(tuple(names))
    return buckets
