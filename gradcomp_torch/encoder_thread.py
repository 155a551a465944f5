"""Whether a thread encodes gradients during the backward pass."""

from __future__ import annotations

from gradcomp import Config
from gradcomp.adapter_api import threads

__all__ = ["encodes_beside"]


def encodes_beside(config: Config, on_device: bool) -> bool:
    """Whether this rank has such a thread, by ``compress.encoder_thread``; after `use_processors`.

    Args:
        config: ``auto`` is a processor to spare, or a device that computes.
        on_device: gradients come on a device.
    """
    setting = config.compress.encoder_thread
    return setting == "always" or (setting == "auto" and (on_device or threads() > 1))
