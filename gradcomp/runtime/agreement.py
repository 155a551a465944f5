"""The comparison of all ranks' configurations and models before the first gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError, ProtocolError

__all__ = ["agreement_line", "check_agreement"]


def agreement_line(
    config: Config, shapes: Mapping[str, tuple[int, ...]], problem: str | None
) -> str:
    """One rank's line for the comparison, without a line break.

    Args:
        shapes: of all parameters, by name, in the order of the model.
        problem: why this rank cannot take part in the exchange ``two_level``; None if it can.
    """
    digest = blake2b(repr(list(shapes.items())).encode(), digest_size=8).hexdigest()
    # Outside the digest, because checkpoints do not depend on it.
    compared = " with stats.error" if config.stats.error else ""
    return f"{config.digest_text()}{compared}\t{digest}\t{problem or ''}"


def check_agreement(lines: Sequence[str]) -> None:
    """Check that all ranks have the same configuration and the same model.

    Args:
        lines: the `agreement_line` of each rank, in rank order.

    Raises:
        ProtocolError: the configurations or the models differ.
        ConfigError: a rank cannot take part in the exchange ``two_level``.
    """
    texts, models, problems = zip(*(one.split("\t") for one in lines), strict=True)
    if len(set(texts)) > 1:
        listed = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(texts))
        raise ProtocolError(f"the ranks run different compression:\n{listed}")
    if len(set(models)) > 1:
        raise ProtocolError(
            "the ranks' parameters differ in names, shapes or order, so their gradients cannot "
            "be averaged: build the same model on every rank, and name its parameters in the "
            "same order"
        )
    if any(problems):
        listed = "\n".join(f"  rank {n}: {text}" for n, text in enumerate(problems) if text)
        raise ConfigError(f"the exchange two_level is impossible:\n{listed}")
