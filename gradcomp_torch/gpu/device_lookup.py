"""The device of a tensor, if kernels can work there; imports Triton only then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch

from gradcomp.adapter_api import Pipeline
from gradcomp.errors import GradcompError
from gradcomp_torch.compat import kernels_refusal
from gradcomp_torch.devices import TensorArray, TensorDevice
from gradcomp_torch.staging import refuse_recording

__all__ = ["Devices", "device_array", "device_for", "direct_device"]

_log = logging.getLogger(__name__)


@cache
def device_for(device: torch.device) -> TensorDevice | None:
    """The device of tensors on a GPU; None for the host, and where kernels cannot be compiled.

    Triton comes with PyTorch's builds for GPUs on Linux, but not with all others. A warning names a version that is
    too old.
    """
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    refusal = kernels_refusal(import_module("triton").__version__)
    if refusal:
        _log.warning(
            "gradcomp: %s: gradients on '%s' are compressed on the CPU, as with compress.device: host; install a "
            "newer PyTorch, which brings its Triton",
            refusal,
            device,
        )
        return None
    # Not at the top: Triton takes a second, and is not everywhere.
    from gradcomp_torch.gpu.device import TorchDevice

    return TorchDevice(device)


def direct_device(device: torch.device) -> TensorDevice:
    """A device for messages to those of other ranks, for one job; where `device_for` gives one."""
    from gradcomp_torch.gpu.peer_device import DirectDevice  # as in `device_for`

    return DirectDevice(device)


class Devices:
    """The devices of a rank's gradients, as ``compress.device`` lets an adapter use them.

    Attributes:
        direct: the device from which messages travel to those of the other ranks; None: through the hosts.
    """

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._full: set[torch.device] = set()  # without memory for residuals
        self.direct: TensorDevice | None = None

    def of(self, place: torch.device) -> TensorDevice | None:
        """The device that compresses gradients there; None for the host."""
        if self._setting == "host" or place in self._full:
            return None
        return self.direct or device_for(place)

    def connect(
        self,
        pipeline: Pipeline,
        places: Mapping[torch.device, int],
        engine: str,
        gather: Callable[[str], Sequence[str]],
    ) -> None:
        """Set ``direct`` if all ranks can send messages from their device; all ranks call it.

        Otherwise the first rank that wanted it warns. A device with too little memory for residuals leaves its
        gradients to the host. The first rank also warns if gradients go through the host that need not.

        Args:
            pipeline: of this rank.
            places: of its gradients, and their numbers of elements there.
            engine: why its engine cannot read memory of a GPU; nothing if it can.
            gather: gives the texts of all ranks, in rank order.
        """
        if self._setting == "host":
            if pipeline.rank == 0:
                _tell_of_loss(places, engine)
        elif pipeline.config.stateful:
            self._find_full(places)
        obstacles = dict(enumerate(gather(self._obstacle(places, engine))))
        if not any(obstacles.values()):
            self.direct = direct_device(*places)
            pipeline.begin_peer_messages(self.direct)
            return
        willing = [rank for rank, text in obstacles.items() if text != _UNWILLING]
        if pipeline.rank in willing[:1]:
            _log.warning(
                "compress.device: direct is not possible, so messages travel through the hosts: %s",
                "; ".join(f"rank {rank}: {text}" for rank, text in obstacles.items() if text),
            )

    def _find_full(self, places: Mapping[torch.device, int]) -> None:
        """Find the devices with less free memory than twice that of the residuals; a line for each."""
        for place, elements in places.items():
            free, needed = _free_bytes(place), _RESIDUAL * elements
            if free is not None and free < 2 * needed:
                self._full.add(place)
                _log.warning(
                    "gradcomp: '%s' has %.1f GB of free memory, and residuals would take %.1f GB of it: its gradients "
                    "are compressed on the CPU, as with compress.device: host",
                    place,
                    free / 1e9,
                    needed / 1e9,
                )

    def _obstacle(self, places: Collection[torch.device], engine: str) -> str:
        """Why this rank cannot send messages from its device to others; nothing if it can."""
        if self._setting != "direct":
            return _UNWILLING
        if self._full:
            return "its GPU has too little free memory for residuals"
        if len(places) != 1:
            return f"its parameters are on {len(places)} devices"
        (place,) = places
        if device_for(place) is None:
            return f"there are no kernels for gradients on '{place}'"
        return engine if place.type == "cuda" else ""


_UNWILLING = "compress.device is not direct there"

_RESIDUAL = 4
"""Bytes of an element's residual."""

_HOST_SECONDS = 1.1e-9
"""What an element costs more on the host: of 25M elements with ``topk(ratio=0.01)``, frames were ready after 30.5 ms,
and by kernels after 2.1 ms, on a machine with an H100 (docs/gpu.md)."""

_told: set[str] = set()
"""Warnings of this process."""


def _free_bytes(place: torch.device) -> int | None:
    """Free memory of a GPU; None for the host."""
    return torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else None


def _tell_of_loss(places: Mapping[torch.device, int], engine: str) -> None:
    """Warn, once in a process, that gradients go through the host, if kernels and an engine need no host."""
    able = [place for place in places if device_for(place) is not None]
    if not able or (engine and able[0].type == "cuda") or "host" in _told:
        return
    _told.add("host")
    elements = sum(places[place] for place in able)
    _log.warning(
        "gradcomp: compress.device is host, so the CPU compresses %s elements of gradients on '%s', although ranks "
        "have an engine between their GPUs: about %.1f ms more in each step than with compress.device: direct, by "
        "the times of docs/gpu.md",
        f"{elements:,}",
        able[0],
        1e3 * _HOST_SECONDS * elements,
    )


def device_array(tensor: torch.Tensor) -> TensorArray:
    """A tensor on a GPU as an array for ``gradcomp.get_codec(spec)``, without a copy.

    ``encode`` makes the bytes of the host. ``decode_add`` adds to the tensor itself, on the current stream.

    Raises:
        TypeError: the tensor is not contiguous float32.
        GradcompError: the tensor is on the host, which needs no such array, there is no Triton, or a CUDA graph is
            recorded.
    """
    device = device_for(tensor.device)
    if device is None:
        raise GradcompError(
            f"there are no kernels for tensors on '{tensor.device}': give codecs a tensor on a GPU of a "
            "PyTorch that has Triton, or one on the host without device_array, for example tensor.cpu()"
        )
    refuse_recording(tensor.device, "device_array")
    return TensorArray(device, tensor.detach())
