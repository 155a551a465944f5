"""Buckets: groups of tensors that travel together."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["make_buckets"]


def make_buckets(tensors: Iterable[tuple[str, int]], limit: int) -> list[tuple[str, ...]]:
    """Group tensors, in the order given, into runs of about ``limit`` bytes.

    Args:
        tensors: name and size in bytes of each.
        limit: bytes, at least 0. A bucket ends with the tensor that brings it to this size; with 0
            every tensor has a bucket of its own.

    Returns:
        The names in each bucket.
    """
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
