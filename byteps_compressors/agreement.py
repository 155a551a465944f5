"""The comparison of all workers' values, each worker's as a text that all workers have gathered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradcomp.adapter_api import compare_digests, differences
from gradcomp.errors import ProtocolError

__all__ = ["WORKER", "check_equal", "check_replicas", "to_text"]

WORKER = "worker"
"""BytePS' word for a rank, in messages."""


def to_text(values: Mapping[str, Any]) -> bytes:
    """Encode one worker's values, by their names."""
    return json.dumps(values).encode()


def check_equal(rows: Sequence[Mapping[str, Any]], what: str, remedy: str) -> None:
    """Raise if the workers' values differ.

    Args:
        rows: the values of each worker, in the order of ranks.
        what: subject of the error.
        remedy: end of the error.

    Raises:
        ProtocolError: values differ; the message lists each one by its ranks.
    """
    lines = differences(rows, WORKER)
    if lines:
        raise ProtocolError(f"{what}:\n{lines}\n{remedy}")


def check_replicas(texts: Sequence[bytes], step: int) -> None:
    """Raise if parameters differ between workers.

    Args:
        texts: each worker's `digests_text`, in the order of ranks.
        step: number of steps so far.

    Raises:
        ProtocolError: a parameter differs; the message names the first one and the ranks.
    """
    compare_digests(texts, f"after step {step}", WORKER)
