"""Whether a thread encodes gradients beside the backward pass."""

from __future__ import annotations

from gradcomp import Config
from gradcomp.adapter_api import processors

__all__ = ["encodes_beside"]


def encodes_beside(config: Config, local_ranks: int, on_device: bool) -> bool:
    """Whether this rank has such a thread, by ``compress.encoder_thread``.

    Args:
        config: ``auto`` is a processor to spare, or a device that computes.
        local_ranks: number of ranks on this host.
        on_device: gradients come on a device.
    """
    setting = config.compress.encoder_thread
    if setting != "auto":
        return setting == "always"
    return on_device or processors() >= 2 * local_ranks
