"""Comparison of values of all ranks, each rank's as a text: the parts that all engines share.

All functions are pure. Every rank gets the same texts, so all raise the same error or none does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from gradcomp.errors import ProtocolError

__all__ = [
    "Digests",
    "by_value",
    "check_digests",
    "check_equal",
    "check_parameters",
    "differences",
    "digest_parameters",
    "ranks_text",
    "read_digests",
    "read_object",
]

Digests = list[tuple[str, str]]
"""Name and digest of each parameter, in the order of the model."""


def by_value(values: Sequence[Any], noun: str = "rank", first: int = 0) -> str:
    """Text such as ``9 on ranks 0, 2; 6 on rank 1``.

    Args:
        noun: "rank", or the engine's own word for it.
        first: the number of the first rank.
    """
    of_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values, first):
        of_value.setdefault(str(value), []).append(rank)
    return "; ".join(f"{value} on {listed(ranks, noun)}" for value, ranks in of_value.items())


def listed(ranks: Sequence[int], noun: str = "rank") -> str:
    """Text such as ``rank 1`` or ``ranks 0, 2``; the first eight of many."""
    if len(ranks) == 1:
        return f"{noun} {ranks[0]}"
    return f"{noun}s {', '.join(map(str, ranks[:8]))}" + (", ..." if len(ranks) > 8 else "")


def differences(of_ranks: Sequence[Mapping[str, Any]], noun: str = "rank") -> str:
    """A line for each name with values that differ between ranks; empty if none do."""
    lines = []
    for name in dict.fromkeys(name for values in of_ranks for name in values):
        values = [values.get(name, "none") for values in of_ranks]
        if any(value != values[0] for value in values):
            lines.append(f"  {name}: {by_value(values, noun)}")
    return "\n".join(lines)


def check_equal(
    of_ranks: Sequence[Mapping[str, Any]], what: str, remedy: str, noun: str = "rank"
) -> None:
    """Compare the values of all ranks.

    Args:
        of_ranks: each rank's values by name, in rank order.
        what, remedy: beginning and end of the message.
        noun: as for `by_value`.

    Raises:
        ProtocolError: values differ; the message lists each one by its ranks.
    """
    lines = differences(of_ranks, noun)
    if lines:
        raise ProtocolError(f"{what}:\n{lines}\n{remedy}")


def read_object(text: bytes | str, rank: int, noun: str = "rank") -> dict[str, Any]:
    """The JSON object that a rank has sent.

    Raises:
        ProtocolError: the text is none.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise TypeError("no mapping")
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(
            f"{noun} {rank} sends no text of gradcomp to compare ({error}): see whether all "
            f"{noun}s run the same version"
        ) from error
    return content


def digest_parameters(parameters: Iterable[tuple[str, Any]]) -> Digests:
    """Digests of C-contiguous buffers by name: BLAKE2b, 8 bytes in hexadecimal."""
    return [
        (name, blake2b(memoryview(data).cast("B"), digest_size=8).hexdigest())
        for name, data in parameters
    ]


def read_digests(value: Any, rank: int, noun: str = "rank") -> Digests:
    """The digests in the JSON of a rank.

    Raises:
        ProtocolError: the value is not a list of pairs.
    """
    try:
        return [(str(name), str(digest)) for name, digest in value]
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            f"{noun} {rank} sends no digests of parameters ({error}): see whether all {noun}s run "
            "the same version"
        ) from error


def check_parameters(
    of_ranks: Sequence[Digests], when: str, noun: str = "rank", first: int = 0
) -> None:
    """Compare the parameters of all ranks.

    Args:
        of_ranks: each rank's digests, in rank order; a rank without a parameter differs, too.
        when: the time of the digests, such as "before step 6".
        noun, first: as for `by_value`.

    Raises:
        ProtocolError: a parameter differs; the message names the first one and the ranks.
    """
    rows = [dict(digests) for digests in of_ranks]
    names = list(dict.fromkeys(name for row in rows for name in row))
    apart = [name for name in names if len({row.get(name) for row in rows}) > 1]
    if apart:
        values = by_value([row.get(apart[0], "none") for row in rows], noun, first)
        raise ProtocolError(
            f"the {noun}s' models have drifted apart: {len(apart)} of {len(names)} parameters "
            f"differ {when}, first '{apart[0]}' (digests: {values}); see whether all {noun}s began "
            f"with the same weights, and whether a {noun} changes its own"
        )


def check_digests(
    of_ranks: Sequence[Mapping[str, Any]], when: str, noun: str = "rank", first: int = 0
) -> None:
    """As `check_parameters`, of the ``digests`` in each rank's values.

    Raises:
        ProtocolError: a parameter differs, or a rank has no digests.
    """
    digests = [read_digests(row.get("digests"), n, noun) for n, row in enumerate(of_ranks, first)]
    check_parameters(digests, when, noun, first)


def ranks_text(ranks: Collection[int]) -> str:
    """Subject and verb of a sentence: "rank 2 does", "ranks 1, 2 do"."""
    listed = ", ".join(map(str, ranks))
    return f"rank {listed} does" if len(ranks) == 1 else f"ranks {listed} do"
