"""One rank's part in the comparison of all ranks in each step; see `step_check` for the texts."""

from __future__ import annotations

from typing import Any

from gradcomp.codec.arrays import ByteArray
from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import Spec
from gradcomp.config.schema import Config
from gradcomp.exchange.select import exchange_pattern
from gradcomp.runtime.agree.step_check import ParametersAt, check_step, step_text
from gradcomp.runtime.resolve import Resolver
from gradcomp.runtime.state.rank_state import RankState

__all__ = ["StepComparison"]


class StepComparison:
    """Compares a rank's progress in each step, and its state when that is new or was loaded.

    Args:
        config: of this rank.
        state: of this rank.
        resolver: of this rank.

    Attributes:
        needed: whether the ranks compare themselves in each step: there are several, and some
            average depends on earlier ones.
        fresh: whether the state is new or was loaded, and was not compared since.
    """

    def __init__(self, config: Config, state: RankState, resolver: Resolver) -> None:
        self._state = state
        self._resolver = resolver
        self.needed = state.world_size > 1 and (
            bool(config.check_replicas_every)
            or any(
                _depends_on_steps(spec, exchange) for _, spec, exchange in config.compress.choices
            )
        )
        self.fresh = True

    def set_step(self, step: int) -> None:
        """Tell the script's own step, counted from 0; before each step, on every rank.

        The ranks compare it in every step, so a rank that has skipped one is found at once.

        Raises:
            ValueError: ``step`` is negative.
        """
        if step < 0:
            raise ValueError(f"step is {step}; it must be at least 0")
        self._state.script_step = step

    @property
    def next_step(self) -> int:
        """Number of steps so far, those before the last checkpoint included."""
        return self._state.steps

    def text(
        self, parameters: ParametersAt | None = None, gradients: str | None = None
    ) -> ByteArray:
        """This rank's text for `check` before a step.

        Args:
            parameters: digests of the model's parameters; None in most steps.
            gradients: see `step_text`.

        Returns:
            JSON in bytes, of a multiple of 64 bytes.
        """
        progress: dict[str, Any] = {"step": self.next_step, "epoch": self._resolver.epoch}
        if self._state.script_step is not None:
            progress["the script's step"] = self._state.script_step
        if self._state.loss_scale.active:
            progress["loss scale"] = self._state.loss_scale.scale
        state = {**self._state.compared(), **self._resolver.compared()} if self.fresh else None
        return step_text(progress, state, parameters, gradients)

    def check(self, texts: ByteArray | None) -> None:
        """Compare all ranks' `text`, one after the other in rank order; None if all are equal.

        Raises:
            ProtocolError: the ranks differ.
        """
        if texts is not None:
            check_step(texts, self._state.world_size)
        self.go_on()

    def go_on(self) -> None:
        """Begin the step: its texts are compared, and the state is no longer `fresh`."""
        self.fresh = False


def _depends_on_steps(spec: Spec, exchange: str) -> bool:
    """Whether averages depend on anything but the gradients of their step.

    Payloads that are added depend on the step's number if their codec is seeded.
    """
    pattern = exchange_pattern(spec, exchange)
    if pattern == "dense":
        return False
    return pattern != "reduce" or spec.stateful or "seeded" in get_codec(spec.first_codec).caps
