"""Messages from device to device: their engine, and the agreement of all ranks on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gradcomp.adapter_api import AllReduce, AllToAll, Engine, Pipeline, Request
from gradcomp_torch.compat import foreach_copy_, gather_into
from gradcomp_torch.device_messages import DeviceMessage, message_of
from gradcomp_torch.gpu.device_lookup import Devices
from gradcomp_torch.staging import copies_of
from torch_compressors.gloo.engine import GlooEngine
from torch_compressors.gloo.gather import gather_texts
from torch_compressors.gloo.keep_alive import keep

__all__ = ["TogetherSum", "connect_devices"]


def connect_devices(
    pipeline: Pipeline,
    gloo: GlooEngine,
    world: dist.ProcessGroup,
    parameters: Iterable[torch.Tensor],
    timeout: timedelta | None,
) -> tuple[Devices, Engine]:
    """The devices of this rank's gradients, and the engine of requests; all ranks call it.

    The engine takes requests from devices, too, if all ranks can send messages from there. They travel in
    ``world``, as those of PyTorch's own hooks do, which saves the memory of another communicator. With a timeout,
    or a thread that sends them while the script may use ``world``, they have a group of their own.

    Args:
        gloo: the engine for memory of the host.
        world: the ranks that average.
        parameters: with gradients.
    """
    devices = Devices(pipeline.config.compress.device)
    places: Counter[torch.device] = Counter()
    for parameter in parameters:
        places[parameter.device] += parameter.numel()
    devices.connect(
        pipeline, places, _obstacle(world, places), lambda text: gather_texts(text, world)
    )
    if devices.direct is None:
        return devices, gloo
    (place,) = places
    group = world
    if timeout is not None or pipeline.config.compress.encoder_thread == "always":
        engine = _engine(world, place)
        on_devices = gloo.lent.on_devices
        if engine not in on_devices:
            ranks = dist.get_process_group_ranks(world)
            on_devices[engine] = dist.new_group(
                ranks, timeout, engine, use_local_synchronization=True
            )
        group = on_devices[engine]
    _warm_up(group, place)
    return devices, _DirectEngine(gloo, group)


def _warm_up(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect the ranks: an engine such as NCCL does so at the first message of each kind, which would be within
    a backward pass."""
    ranks = group.size()
    sent, received = torch.zeros((2, ranks), dtype=torch.uint8, device=device)
    for work in (
        group.allreduce([sent]),
        gather_into(group, received, sent[:1]),
        group.alltoall_base(received, sent, [1] * ranks, [1] * ranks),
    ):
        work.wait()


class TogetherSum:
    """Averages of tensors on their device by one request, in their dtype; for `Devices.direct`.

    Args:
        tensors: of one dtype and device; the same memory in each step, which averages overwrite.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self._in_place = [None] * len(tensors)
        self._staging = copies_of(tensors[0].device)
        if len(tensors) == 1 and tensors[0].is_contiguous():
            self._message: Any = DeviceMessage(tensors[0].view(-1), self._staging)
            self._parts = tensors
            return
        sizes = [tensor.numel() for tensor in tensors]
        flat = tensors[0].new_empty(sum(sizes))
        self._staging.share(flat)
        self._message = DeviceMessage(flat, self._staging)
        parts = torch.split(flat, sizes)
        self._parts = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def round(self, label: str) -> Generator[AllReduce, Any, Sequence[None]]:
        """A round of the tensors, whose elements are taken now.

        Returns:
            A generator that returns None for each tensor.
        """
        with self._staging.beside(self.tensors):
            if self._parts is not self.tensors:
                foreach_copy_(self._parts, self.tensors)
        return self._sum(label)

    def _sum(self, label: str) -> Generator[AllReduce, Any, Sequence[None]]:
        yield AllReduce(label, self._message)
        if self._parts is not self.tensors:
            foreach_copy_(self.tensors, self._parts)
        return self._in_place


class _Running(NamedTuple):
    """A request that is under way.

    Attributes:
        reply: the sum; or the messages of all ranks, one after the other.
        parts: the messages in it.
    """

    request: Request
    reply: torch.Tensor
    parts: list[DeviceMessage]
    work: Any


class _DirectEngine:
    """Exchanges messages of devices over a group on the devices' engine, and does all else over Gloo.

    As with Gloo, all ranks start the same requests in the same order. The host does not wait for messages: streams
    of the device do.

    Args:
        host: for requests from memory of the host.
        group: of the same ranks, with an engine for memory of the device, such as NCCL. All ranks start other
            requests there in one order with those of this engine.
    """

    def __init__(self, host: GlooEngine, group: dist.ProcessGroup) -> None:
        self._host = host
        self._group = group
        self._ranks = group.size()
        self._replies: dict[tuple[str, str], tuple[torch.Tensor, list[DeviceMessage]]] = {}

    def start(self, request: Request) -> Any:
        """Start a request without waiting; see `GlooEngine.start`."""
        message = message_of(request)
        if message is None:
            return self._host.start(request)
        self._host.check_open()
        self._host.lent.begin()
        ranks = self._ranks
        parts = [message]
        with message.behind():
            if isinstance(request, AllReduce):
                reply = message.data
                factor = AllReduce.headroom(reply.dtype, ranks)
                if factor != 1:
                    reply *= torch.tensor(factor, dtype=reply.dtype, device="cpu")
                work = self._group.allreduce([reply])
            elif isinstance(request, AllToAll):
                splits = list(request.splits)
                size = splits[self._group.rank()]
                reply, parts = self._room(request, message, size * ranks)
                work = self._group.alltoall_base(reply, message.data, [size] * ranks, splits)
            else:
                reply, parts = self._room(request, message, message.data.numel() * ranks)
                work = gather_into(self._group, reply, message.data)
        return _Running(request, reply, parts, keep(work))

    def _room(
        self, request: Request, message: DeviceMessage, numel: int
    ) -> tuple[torch.Tensor, list[DeviceMessage]]:
        """Memory for a reply and its parts, the same in each step, so that what reads it can be replayed."""
        key = (request.kind, request.name)
        known = self._replies.get(key)
        if known is None or known[0].numel() != numel:
            reply = message.data.new_empty(numel)
            known = self._replies[key] = reply, message.replies(reply, self._ranks)
        return known

    def finish(self, handle: Any) -> Any:
        """Wait for a started request; for messages of devices, let the current stream wait.

        A reply holds until the next request of its name.
        """
        if not isinstance(handle, _Running):
            return self._host.finish(handle)
        request, reply = handle.request, handle.reply
        handle.work.wait()
        self._host.lent.end()
        if reply.device.type != "cpu":
            # It is memory of the side stream, and this stream reads it.
            reply.record_stream(torch.accelerator.current_stream(reply.device))
        if not isinstance(request, AllReduce):
            return handle.parts
        ranks = self._ranks
        factor = 1.0 / (ranks * AllReduce.headroom(reply.dtype, ranks))
        # In float16 as the loopback does; a factor of bfloat16 would be wrong by up to 0.4 %.
        half = reply.dtype == torch.float16
        reply *= torch.tensor(factor, dtype=reply.dtype, device="cpu") if half else factor
        return handle.parts[0]


def _obstacle(world: dist.ProcessGroup, places: Collection[torch.device]) -> str:
    """Why a process group cannot read memory of GPUs; nothing if it can."""
    engine = _engine(world, next(iter(places))) if places else ""
    if engine in ("", "gloo"):
        return (
            f"its process group has {engine or 'no engine'} for GPUs: begin with "
            "init_process_group('nccl') or 'cpu:gloo,cuda:nccl'"
        )
    return ""


def _engine(world: dist.ProcessGroup, device: torch.device) -> str:
    """The engine of a process group for memory of a device."""
    engines = dict(entry.split(":") for entry in dist.get_backend_config(world).split(","))
    return engines.get(device.type, "")
