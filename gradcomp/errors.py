"""Errors of gradcomp. Every message names the value, the allowed range and the remedy."""

from __future__ import annotations

__all__ = [
    "CORE_REMEDY",
    "CapacityError",
    "ConfigError",
    "CoreError",
    "GradcompError",
    "MissingPackageError",
    "NotBuiltError",
    "PeerError",
    "ProbeError",
    "ProtocolError",
    "SpecError",
    "StateError",
    "TopologyError",
    "WireError",
    "discards_not_allowed",
    "missing_package",
    "nothing_to_discard",
    "remedy_for",
]


class GradcompError(Exception):
    """Base class of all errors of gradcomp."""


class SpecError(GradcompError, ValueError):
    """A spec string is wrong; the message points at the character."""


class WireError(GradcompError, ValueError):
    """Received bytes are not a valid frame or payload of the codec that reads them."""


class CapacityError(GradcompError, ValueError):
    """A buffer is too small, a tensor is too large, or memory ran out."""


class ConfigError(GradcompError, ValueError):
    """A configuration file or override is wrong."""


class StateError(GradcompError, ValueError):
    """A checkpointed state does not fit the model or the configuration that loads it."""


class ProtocolError(GradcompError, RuntimeError):
    """Ranks do not agree on what to communicate."""


class TopologyError(GradcompError, ValueError):
    """A graph of peers cannot be built as asked, or an algorithm does not accept it."""


class PeerError(GradcompError, RuntimeError):
    """A peer has died or does not answer; the message names it."""


class ProbeError(GradcompError, RuntimeError):
    """A part of an installation does not work.

    Attributes:
        fix: the command that fixes it, if it is not the one that installs the part.
    """

    def __init__(self, problem: str, fix: str | None = None) -> None:
        super().__init__(problem)
        self.fix = fix


class NotBuiltError(ProbeError):
    """An installed package was built without this part."""


class MissingPackageError(GradcompError, ModuleNotFoundError):
    """An adapter's engine is not installed; the message has the command that installs it."""


class CoreError(GradcompError, ImportError):
    """The compiled core does not load; the message has the command that builds it."""


CORE_REMEDY = "pip install --force-reinstall --no-deps . in the repository of gradcomp"

_ENGINES = {
    "torch": "PyTorch",
    "horovod": "Horovod",
    "tensorflow": "TensorFlow",
    "byteps": "BytePS",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "transformers": "Transformers",
    "torchft": "torchft",
}

_EXTRAS = {
    "torch": "torch",
    "accelerate": "trainers",
    "lightning": "trainers",
    "transformers": "trainers",
    "torchft": "trainers",
}
"""Packages that pip installs as they are, and the extras with the ranges of their versions."""


def missing_package(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error to raise instead of that of an adapter's failed import of its engine.

    Returns:
        A `MissingPackageError`; ``error`` itself if another module is missing.
    """
    package = (error.name or "").partition(".")[0]
    if package not in _ENGINES or error.name != package:
        return error
    return MissingPackageError(
        f"{_ENGINES[package]} is not installed (no module named '{package}'): run "
        f"{remedy_for(package)}",
        name=package,
    )


def discards_not_allowed() -> ConfigError:
    """The error of ``discard_step`` without a call of ``allow_discard``."""
    return ConfigError(
        "discard_step() needs the state from before the step: call allow_discard() once, on every rank, before "
        "the first step"
    )


def nothing_to_discard() -> StateError:
    """The error of ``discard_step`` if no step was made, or if it was discarded already."""
    return StateError(
        "there is no step to discard: no gradient was averaged since allow_discard(), load_state_dict() or the "
        "last discard_step()"
    )


def remedy_for(package: str) -> str:
    """The command that installs a package of an engine or a framework."""
    if package in _EXTRAS:
        return (
            f"pip install {package}, or pip install '.[{_EXTRAS[package]}]' in the repository of "
            "gradcomp for a version that it works with"
        )
    return f"./scripts/setup --engines {package} in the repository of gradcomp"
