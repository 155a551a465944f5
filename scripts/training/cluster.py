"""Joint actions of the ranks of a job: fail together, compare parameters."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy.typing as npt

from gradcomp.errors import GradcompError
from gradcomp.processors import processors
from training.engines.current import engine

__all__ = [
    "EXIT_CONFIG",
    "EXIT_FAILED",
    "AbortError",
    "checked_digests",
    "threads_per_rank",
    "together",
]

EXIT_FAILED = 1
EXIT_CONFIG = 2

T = TypeVar("T")


class AbortError(Exception):
    """The job ends, on every rank and for the same reason."""

    def __init__(self, message: str, exit_code: int) -> None:
        """``message`` is for the user, ``exit_code`` for the process."""
        super().__init__(message)
        self.exit_code = exit_code


def together(action: Callable[[], T], *, exit_code: int = EXIT_FAILED) -> T:
    """The result of ``action``, which every rank runs.

    When it fails on any rank (GradcompError or OSError), every rank raises the same
    AbortError, so that no rank waits for one that has given up.
    """
    result: list[T] = []
    failure = None
    try:
        result.append(action())
    except (GradcompError, OSError) as error:
        failure = str(error)
    # Without a name Horovod takes the type's, and a failure has another type than None.
    failures = engine().allgather_object(failure, name="train.together")
    if any(text is not None for text in failures):
        raise AbortError(_merged(failures), exit_code)
    return result[0]


def _merged(failures: list[str | None]) -> str:
    if len(set(failures)) == 1:
        return str(failures[0])
    return "\n".join(f"rank {i}: {text}" for i, text in enumerate(failures) if text is not None)


def threads_per_rank() -> int:
    """OMP_NUM_THREADS where it is set, else this host's usable cores divided by its ranks."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    ranks: int = engine().local_size()
    return max(1, processors() // ranks)


def checked_digests(parameters: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """The SHA-256 of each rank's parameters, which must all be equal.

    Raises AbortError naming the ranks that differ from rank 0.
    """
    digest = hashlib.sha256()
    for name, parameter in parameters.items():
        digest.update(name.encode())
        digest.update(parameter.tobytes())
    digests: list[str] = engine().allgather_object(digest.hexdigest(), name="train.digest")
    differing = [str(rank) for rank, value in enumerate(digests) if value != digests[0]]
    if differing:
        raise AbortError(
            f"the parameters of rank {', '.join(differing)} differ from those of rank 0: the "
            "ranks no longer train one model, so the result cannot be trusted",
            EXIT_FAILED,
        )
    return digests
