"""Settings of training with outer steps."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import Spec
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from gradcomp.exchange.memory import ESTIMATE
from gradcomp.exchange.state_kinds import state_of
from gradcomp.runtime.agree.comparison import check_equal, read_object
from gradcomp.runtime.outer.fragments import PATTERNS

__all__ = ["OuterOptions"]

_RANGES: dict[str, tuple[str, Callable[[OuterOptions], bool]]] = {
    "every": ("at least 1 inner step", lambda options: options.every >= 1),
    "lr": ("in (0, 10]", lambda options: 0 < options.lr <= 10),
    "momentum": ("in [0, 1)", lambda options: 0 <= options.momentum < 1),
    "fragments": (
        "at least 1 and a divisor of every",
        lambda options: options.fragments >= 1 and options.every % options.fragments == 0,
    ),
    "overlap": (
        "at least 0 and below every / fragments",
        lambda options: 0 <= options.overlap < options.every // options.fragments,
    ),
    "pattern": ("strided or sequential", lambda options: options.pattern in PATTERNS),
    "mixing": ("in [0, 1]", lambda options: 0 <= options.mixing <= 1),
}


@dataclass(frozen=True)
class OuterOptions:
    """Settings of training with outer steps, equal on all ranks; arguments of every ``OuterStep``.

    Attributes:
        every: inner steps between two averages of a parameter, H, at least 1.
        lr: outer learning rate, in (0, 10]; by default 0.7, or 1 with error feedback: see `of`.
        momentum: outer momentum, in [0, 1); by default 0.9, or 0 with error feedback.
        nesterov: Nesterov's momentum.
        fragments: parts of the model that are averaged in turn, P; a divisor of ``every``.
        pattern: layers of a fragment: "strided", each P-th layer, or "sequential", neighbours.
        overlap: inner steps that a fragment's average may take, tau, below ``every / fragments``. The
            exchange runs in a thread; with 0 the step waits for it.
        mixing: weight in [0, 1] of a rank's own values, alpha; the new common ones have 1 - alpha. With
            1 ranks never take common values; these are in `OuterSteps.common` only.
        weighted: ranks count by the samples that `OuterSteps.step` gets.
    """

    every: int
    lr: float
    momentum: float
    nesterov: bool = True
    fragments: int = 1
    pattern: str = "strided"
    overlap: int = 0
    mixing: float = 0.0
    weighted: bool = False

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a setting is not in its range.
        """
        for name, (allowed, holds) in _RANGES.items():
            if not holds(self):
                raise ConfigError(
                    f"{_NAMES.get(name, name)} is {getattr(self, name)}; it must be {allowed}"
                )

    @classmethod
    def of(
        cls,
        config: Config,
        every: int,
        lr: float | None = None,
        momentum: float | None = None,
        **others: Any,
    ) -> OuterOptions:
        """Settings with the defaults of a configuration.

        Without error feedback they are DiLoCo's, ``lr=0.7, momentum=0.9``. With it they are ``lr=1,
        momentum=0``: a residual arrives late, and momentum amplifies it; docs/outer.md.

        Raises:
            ConfigError: a setting is unknown or not in its range; or the configuration has its own
                momentum, ``dion``, a learning rate (``lr=scale``) or ``policy: auto``; or
                ``average: senders`` with ``weighted``.
        """
        known = [option.name for option in fields(cls)]
        unknown = sorted(set(others) - set(known))
        if unknown:
            raise ConfigError(
                f"outer steps have no setting {', '.join(unknown)}; they have {', '.join(known)}"
            )
        _check(config)
        if others.get("weighted") and config.compress.average == "senders":
            raise ConfigError(
                "compress.average: senders divides each element by the number of ranks that sent it, "
                "and samples weigh ranks: choose one of the two"
            )
        feeds_back = any(_feeds_back(spec) for spec in config.specs)
        lr = (1.0 if feeds_back else 0.7) if lr is None else lr
        momentum = (0.0 if feeds_back else 0.9) if momentum is None else momentum
        waits = next((spec for spec in config.specs if _waits(spec)), None)
        if momentum and waits is not None:
            warnings.warn(
                f"outer momentum {momentum} with error feedback of a sparse codec ('{waits}') often "
                "diverges: use momentum=0, or a spec without a residual",
                stacklevel=3,
            )
        return cls(every, lr, momentum, **others)

    @property
    def period(self) -> int:
        """Inner steps between the averages of two fragments."""
        return self.every // self.fragments

    def text(self) -> str:
        """A line that is equal on ranks with equal settings; see `check_same`."""
        return json.dumps(asdict(self))

    @staticmethod
    def check_same(texts: Sequence[str | bytes]) -> None:
        """Compare the `text` of all ranks, in rank order.

        Raises:
            ProtocolError: they differ.
        """
        check_equal(
            [read_object(text, rank) for rank, text in enumerate(texts)],
            "the ranks' arguments of OuterStep differ",
            "Give all ranks the same arguments",
        )


_NAMES = {"lr": "the outer learning rate", "momentum": "the outer momentum"}


def _check(config: Config) -> None:
    default = config.compress.default
    if config.own_momentum is not None:
        raise ConfigError(
            f"'{default}' has its own momentum: leave it to the outer momentum, and use a codec, "
            "such as residual|topk(ratio=0.01)"
        )
    if config.scales_lr:
        raise ConfigError(
            "lr=scale follows the rate of an optimizer that applies averages, and the outer learning "
            "rate is constant: leave out lr=scale"
        )
    if config.compress.policy == "auto":
        raise ConfigError(
            "compress.policy: auto measures gradients of every step, and outer steps send few: "
            "set compress.policy to always"
        )


def _waits(spec: Spec) -> bool:
    """Whether most elements wait in a residual for many rounds."""
    sparse = spec.algorithm is None and "sparse" in get_codec(spec.first_codec).caps
    return sparse and _feeds_back(spec)


def _feeds_back(spec: Spec) -> bool:
    """Whether what a round does not send is sent later."""
    return not {"residual", ESTIMATE}.isdisjoint(state_of(spec))
