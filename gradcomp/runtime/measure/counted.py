"""Rounds that are counted in a rank's statistics."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.nodes import Node
from gradcomp.exchange.rounds import Ready, Request
from gradcomp.runtime.measure.stats import Stats

__all__ = ["counted"]

_Result = TypeVar("_Result")


def counted(
    stats: Stats,
    node: Node,
    label: str,
    grads: Mapping[str, FloatArray],
    inner: Generator[Request | Ready, Any, _Result],
) -> Generator[Request | Ready, Any, _Result]:
    """A round with its requests counted, its time measured and its phases profiled.

    Args:
        stats: of this rank.
        node: this rank's place in its node.
        label: of the round.
        grads: its gradients by name.
        inner: the round.
    """
    profile = stats.profile
    resume = inner.send if profile is None else partial(profile.resume, label, inner)

    spent = 0.0

    def send(reply: Any) -> Any:
        nonlocal spent
        begin = perf_counter()
        try:
            return resume(reply)
        except StopIteration:
            raise
        except Exception as error:
            stats.count_fault(error)
            raise
        finally:
            spent += perf_counter() - begin

    exact = None
    if profile is not None and profile.error:
        exact = yield from profile.exact(label, list(grads.values()))
    try:
        request = send(None)
        while True:
            if isinstance(request, Ready):
                request = send((yield request))
                continue
            if request.group != "leaders" or node.leads:
                inside = "node " if request.group == "node" else ""
                ranks = node.count if request.group == "leaders" else None
                stats.count(f"{inside}{request.kind}", request.nbytes, ranks)
                if profile is not None:
                    profile.requested(label, request)
            request = send((yield request))
    except StopIteration as stop:
        result: _Result = stop.value
        if profile is not None and exact is not None:
            averages: Any = result if isinstance(result, list) else [result]
            profile.compare(label, exact, dict(zip(grads, averages, strict=True)))
        return result
    finally:
        stats.spend(compression=spent)
