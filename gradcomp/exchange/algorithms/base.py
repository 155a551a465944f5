"""Base class of algorithms: aggregators that a stage of kind "algorithm" names in a spec."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from gradcomp.codec.spec import Spec
from gradcomp.exchange.memory import Residual
from gradcomp.exchange.patterns.base import BucketAggregator, Context

__all__ = ["Algorithm"]


class Algorithm(BucketAggregator):
    """A reduction of several phases instead of a codec; docs/adding-an-algorithm.md.

    Args:
        spec: without schedules, with this algorithm.
        context: the parts of a rank that all aggregators share.
    """

    exchange: ClassVar[str]
    """The requests of a step, in words, for `gradcomp explain`."""

    replicated_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of the algorithm's own state that are equal on all ranks."""

    @abstractmethod
    def __init__(self, spec: Spec, context: Context) -> None: ...

    @classmethod
    def state_of(cls, params: Mapping[str, Any]) -> dict[str, Hashable]:
        """The algorithm's own kinds of state; see `gradcomp.exchange.state_kinds.state_of`.

        Args:
            params: parameters of the algorithm's stage.
        """
        return {}

    def error_feedback(self) -> Residual | None:
        """The algorithm's residual, if averages stand for the gradient itself: see `Alone`."""
        return None
