"""The comparison of all workers' values, each worker's as a text that all workers have gathered.

The functions are pure: every worker gets the same texts, so all raise the same error or none does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from gradcomp.adapter_api import build_text
from gradcomp.errors import ProtocolError

__all__ = ["DIGEST_BYTES", "check_equal", "check_parameters", "digest", "to_text", "versions"]

DIGEST_BYTES = 8
"""Length of one parameter's digest in the texts of `check_parameters`."""


def versions(plugin: str) -> dict[str, str]:
    """Values that identify the code of a worker.

    Args:
        plugin: digest of the plug-in library's sources.
    """
    return {"version": build_text(), "plug-in library": plugin}


def to_text(values: Mapping[str, Any]) -> bytes:
    """Encode one worker's values, by their names, for `check_equal`."""
    return json.dumps(values).encode()


def check_equal(texts: Sequence[bytes], what: str, remedy: str) -> None:
    """Raise if the workers' values differ.

    Args:
        texts: the `to_text` of each worker, in the order of ranks.
        what: subject of the error.
        remedy: end of the error.

    Raises:
        ProtocolError: values differ; the message lists each one by its ranks.
    """
    rows = [_read(text, rank) for rank, text in enumerate(texts)]
    lines = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name, "none") for row in rows]
        if any(value != values[0] for value in values):
            lines.append(f"  {name}: {_by_value(values)}")
    if lines:
        raise ProtocolError("\n".join([f"{what}:", *lines, remedy]))


def check_parameters(texts: Sequence[bytes], names: Sequence[str], step: int) -> None:
    """Raise if parameters differ between workers.

    Args:
        texts: of each worker, the parameters' digests, `DIGEST_BYTES` each, in the order of names.
        names: of the parameters.
        step: number of steps so far.

    Raises:
        ProtocolError: a parameter differs; the message names the first one and the ranks.
    """
    wanted = DIGEST_BYTES * len(names)
    for rank, text in enumerate(texts):
        if len(text) != wanted:
            raise ProtocolError(
                f"worker {rank} sends {len(text)} bytes of digests after step {step}; it must send "
                f"{wanted}: see whether all workers run the same script"
            )
    apart = []
    for i, name in enumerate(names):
        values = [text[DIGEST_BYTES * i :][:DIGEST_BYTES].hex() for text in texts]
        if len(set(values)) > 1:
            apart.append((name, values))
    if apart:
        name, values = apart[0]
        raise ProtocolError(
            f"the workers' models have drifted apart: {len(apart)} of {len(names)} parameters "
            f"differ after step {step}, first '{name}' (digests: {_by_value(values)}); see whether "
            "all workers began with the same weights, and whether a worker changes its own"
        )


def digest(data: Any) -> bytes:
    """Digest of a C-contiguous buffer, `DIGEST_BYTES` long."""
    return blake2b(memoryview(data).cast("B"), digest_size=DIGEST_BYTES).digest()


def _by_value(values: Sequence[Any]) -> str:
    """Text such as ``9 on workers 0, 2; 6 on worker 1``."""
    of_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        of_value.setdefault(str(value), []).append(rank)
    return "; ".join(
        f"{value} on worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        for value, ranks in of_value.items()
    )


def _read(text: bytes, rank: int) -> Mapping[str, Any]:
    try:
        row = json.loads(text)
        if not isinstance(row, dict):
            raise TypeError("no mapping")
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(
            f"worker {rank} sends no text of gradcomp to compare ({error}): see whether all workers "
            "run the same version"
        ) from error
    return row
