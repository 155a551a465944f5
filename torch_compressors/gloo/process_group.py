"""Process groups for ranks that torchrun or horovodrun has started."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import time
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    TCPStore,
)

from gradcomp.adapter_api import HttpStore, ranks_text, use_processors
from gradcomp.errors import ConfigError, PeerError
from gradcomp_torch.compat import destroy_process_group
from torch_compressors.gloo.liveness import Liveness

__all__ = ["init_process_group", "local_place", "local_world_size", "use_own_processors"]

_HTTP_SECONDS = 30.0
_made = itertools.count()  # each process group has a key of horovodrun's store
_joined = itertools.count()


def init_process_group(backend: str = "gloo", timeout: timedelta | None = None) -> None:
    """`torch.distributed.init_process_group` with the ranks of the launcher.

    - torchrun, or any launcher that sets ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
      ``MASTER_PORT``: as PyTorch does it, and also in workers that torchrun has started again;
    - horovodrun on Gloo: Horovod's ranks; they find each other through horovodrun's own store.
      Horovod may be initialized or not;
    - no launcher: this process is the only rank.

    When the process ends, its groups are destroyed: threads of Gloo that outlive the interpreter
    may abort it.

    Args:
        backend: of PyTorch, such as "gloo" or "nccl".
        timeout: longest wait for other ranks, here and in exchanges; None for PyTorch's default, 30
            minutes.

    Raises:
        ConfigError: the launcher does not tell how the ranks find each other, as horovodrun on MPI.
        PeerError: ranks have not come in time; the message names them. Or horovodrun's store does
            not answer.
    """
    limit = timedelta(minutes=30) if timeout is None else timeout
    atexit.register(_leave)
    if "RANK" in os.environ:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _join(backend, _store_of_torchrun(rank, size, limit), rank, size, limit)
        return
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ and "HOROVOD_RANK" in os.environ:
        rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        if "HOROVOD_GLOO_IFACE" in os.environ:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", os.environ["HOROVOD_GLOO_IFACE"])
        _join(backend, _store_of_horovodrun(rank, size, limit), rank, size, limit)
        return
    if "OMPI_COMM_WORLD_SIZE" in os.environ and os.environ["OMPI_COMM_WORLD_SIZE"] != "1":
        raise ConfigError(
            "MPI has started the ranks, and does not say how torch.distributed finds them: start "
            "them with torchrun or horovodrun --gloo, or set RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT"
        )
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=limit)


def _join(backend: str, store: Any, rank: int, size: int, limit: timedelta) -> None:
    """Make the process group when all ranks have come to the store.

    Raises:
        PeerError: ranks have not come in time; the message names them.
    """
    calls = Liveness(store, f"arrival/{next(_joined)}", rank, range(size))
    missing = calls.missing(limit.total_seconds())
    if missing:
        raise PeerError(
            f"{ranks_text(missing)} not arrive in init_process_group within "
            f"{limit.total_seconds():g} s: see the output there, and give init_process_group a "
            "longer timeout if ranks only start late"
        )
    if missing is None:
        raise PeerError(
            f"the store of the process group has not answered for {limit.total_seconds():g} s: "
            "rank 0, or the launcher, holds it: see the output there"
        )
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)


def _store_of_torchrun(rank: int, size: int, limit: timedelta) -> Any:
    """The store that the launcher or rank 0 holds, as PyTorch makes it, without a wait for ranks."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    holds = rank == 0 and not of_agent
    try:
        store = _tcp_store(host, port, size, holds, limit, multi_tenant=True)
    except RuntimeError as error:
        raise PeerError(
            f"the store at {host}:{port} does not answer within {limit.total_seconds():g} s: rank "
            "0, or the launcher, holds it: see the output there, and give init_process_group a "
            f"longer timeout if rank 0 only starts late ({error})"
        ) from error
    if of_agent and os.environ["LOCAL_WORLD_SIZE"] == str(size):
        # It still has the addresses of workers before a restart, which nobody answers. Agents of
        # several machines count restarts apart.
        return PrefixStore(f"restart/{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    return store


def _leave() -> None:
    if dist.is_initialized():
        destroy_process_group()


def local_place() -> tuple[int, int] | None:
    """This rank's number on its machine, and the number of ranks there, from the launcher."""
    for names in (
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
        ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),  # horovodrun
    ):
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            return int(rank), int(size)
    return None


def local_world_size() -> int:
    """Number of ranks on this machine; without a launcher all of the job may be here."""
    place = local_place()
    return dist.get_world_size() if place is None else place[1]


def use_own_processors() -> None:
    """Give the core this rank's processors as threads."""
    use_processors(local_world_size())


def _store_of_horovodrun(rank: int, size: int, limit: timedelta) -> Any:
    """A store on rank 0; horovodrun's own key-value store tells the other ranks its address.

    Raises:
        PeerError: horovodrun's store does not answer, or rank 0 does not come in time.
    """
    launcher = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    known = HttpStore(f"http://{launcher}:{port}/torch_compressors", _HTTP_SECONDS)
    key = f"store-{next(_made)}"
    try:
        if rank == 0:
            # The address of this machine on its way to the launcher.
            with socket.create_connection((launcher, port), limit.total_seconds()) as probe:
                address = probe.getsockname()[0]
            store = _tcp_store(address, 0, size, True, limit)
            known.set(key, f"{address} {store.port}".encode())
            return store
        deadline = time.monotonic() + limit.total_seconds()
        while (answer := known.get(key)) is None:
            if time.monotonic() > deadline:
                raise PeerError(
                    f"rank 0 has not made a process group for {limit.total_seconds():g} s: see its "
                    "output"
                )
            time.sleep(0.05)
    except OSError as error:
        raise PeerError(f"horovodrun's store does not answer: {error}") from error
    host, _, store_port = answer.decode().partition(" ")
    return _tcp_store(host, int(store_port), size, False, limit)


def _tcp_store(
    host: str, port: int, size: int, holds: bool, limit: timedelta, *, multi_tenant: bool = False
) -> Any:
    """A store that does not wait for ranks.

    Raises:
        RuntimeError: it does not answer.
    """
    make = partial(
        TCPStore, host, port, size, holds, limit, wait_for_workers=False, multi_tenant=multi_tenant
    )
    try:
        return make()
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
    return make(use_libuv=False)  # a build without it, such as Debian's
