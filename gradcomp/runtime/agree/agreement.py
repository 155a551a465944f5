"""The comparison of all ranks' versions, configurations and models before the first gradient."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from gradcomp import _core
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError, ProtocolError
from gradcomp.runtime.agree.comparison import by_value, read_object
from gradcomp.version import installed_version

__all__ = ["agreement_line", "build_text", "check_agreement", "model_text"]

_KEYS = ("version", "config", "model", "problem")


def build_text() -> str:
    """The versions of gradcomp and of its wire format."""
    return f"gradcomp {installed_version()}, wire format {_core.WIRE_VERSION}"


def model_text(shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str]) -> str:
    """The parameters of a model: their number and kinds, with a digest of names, shapes, kinds and order.

    Args:
        shapes: by name, in the order of the model.
        kinds: dtype, and layout if it is no dense one, by the same names, such as "float32".
    """
    rows = [(name, shape, kinds.get(name)) for name, shape in shapes.items()]
    digest = blake2b(repr(rows).encode(), digest_size=8).hexdigest()
    of_kinds = ", ".join(sorted(set(kinds.values())))
    return f"{len(rows)} of {of_kinds or 'no kind'}, digest {digest}"


def agreement_line(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    problem: str | None,
    options: str = "",
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """One rank's line for the comparison: JSON without a line break.

    Args:
        shapes: of all parameters, by name, in the order of the model.
        problem: why this rank cannot take part in the exchange ``two_level``; None if it can.
        options: the adapter's own, which must be equal on all ranks, such as "uneven=True".
        kinds: of all parameters, see `model_text`.
    """
    # Outside the configuration's digest, because checkpoints do not depend on them.
    compared = f" with {options}" if options else ""
    if config.stats.error:
        compared += " with stats.error"
    if config.compress.prior is not None:
        compared += f" with compress.prior {config.compress.prior.digest}"
    if config.check_replicas_every:
        compared += f" with check_replicas_every {config.check_replicas_every}"
    values = (
        build_text(),
        f"{config.digest_text()}{compared}",
        model_text(shapes, kinds),
        problem or "",
    )
    return json.dumps(dict(zip(_KEYS, values, strict=True)))


def check_agreement(lines: Sequence[str]) -> None:
    """Check that all ranks have the same version, the same configuration and the same model.

    Args:
        lines: the `agreement_line` of each rank, in rank order.

    Raises:
        ProtocolError: the versions, configurations or models differ.
        ConfigError: a rank cannot take part in the exchange ``two_level``.
    """
    versions, texts, models, problems = zip(
        *(_read(line, rank) for rank, line in enumerate(lines)), strict=True
    )
    if len(set(versions)) > 1:
        raise ProtocolError(
            f"the ranks run different versions: {by_value(versions)}; install one version of "
            "gradcomp on all hosts"
        )
    if len(set(texts)) > 1:
        listed = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(texts))
        raise ProtocolError(f"the ranks run different compression:\n{listed}")
    if len(set(models)) > 1:
        raise ProtocolError(
            f"the ranks' parameters differ in names, shapes, dtypes, layouts or order ({by_value(models)}), "
            "so their gradients cannot be averaged: build the same model on every rank, convert it to the "
            "same dtype, and name its parameters in the same order"
        )
    if any(problems):
        listed = "\n".join(f"  rank {n}: {text}" for n, text in enumerate(problems) if text)
        raise ConfigError(f"the exchange two_level is impossible:\n{listed}")


def _read(line: str, rank: int) -> list[str]:
    fields = read_object(line, rank)
    if not all(key in fields for key in _KEYS):
        raise ProtocolError(
            f"rank {rank} does not tell its configuration ('{line[:80]}'): see whether all ranks "
            "run the same version of gradcomp"
        )
    return [str(fields[key]) for key in _KEYS]
