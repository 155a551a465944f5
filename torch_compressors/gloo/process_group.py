"""Process groups for ranks that torchrun or horovodrun has started."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import time
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    TCPStore,
)

from gradcomp.adapter_api import ranks_text, use_processors
from gradcomp.errors import ConfigError, PeerError
from torch_compressors.gloo.liveness import Liveness

__all__ = ["init_process_group", "local_world_size", "use_own_processors"]

# Prefix of the keys under which rank 0 publishes its store; each process group has its own key.
_KEY = "torch_compressors/store"
_made = itertools.count()
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
        store = TCPStore(host, port, size, holds, limit, wait_for_workers=False, multi_tenant=True)
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
        dist.destroy_process_group()


def local_world_size() -> int:
    """Number of ranks on this machine, from the launcher; without one, the whole job may be on this machine."""
    for name in ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return dist.get_world_size()


def use_own_processors() -> None:
    """Give the core this rank's processors as threads."""
    use_processors(local_world_size())


def _store_of_horovodrun(rank: int, size: int, limit: timedelta) -> Any:
    """A store on rank 0; horovodrun's own key-value store tells the other ranks its address."""
    address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    url = f"http://{address}:{port}/{_KEY}-{next(_made)}"
    if rank == 0:
        # The address of this machine on its way to the launcher.
        with socket.create_connection((address, port), timeout=limit.total_seconds()) as probe:
            own_address = probe.getsockname()[0]
        store = TCPStore(own_address, 0, size, True, limit, wait_for_workers=False)
        _ask(Request(url, f"{own_address} {store.port}".encode(), method="PUT"))
        return store
    deadline = time.monotonic() + limit.total_seconds()
    while (answer := _ask(Request(url))) is None:
        if time.monotonic() > deadline:
            raise PeerError(
                f"rank 0 has not made a process group for {limit.total_seconds():g} s: see its "
                "output"
            )
        time.sleep(0.05)
    host, _, store_port = answer.decode().partition(" ")
    return TCPStore(host, int(store_port), size, False, limit, wait_for_workers=False)


def _ask(request: Request) -> bytes | None:
    """The answer of horovodrun's store; None if it has no such key.

    Raises:
        PeerError: the store does not answer.
    """
    try:
        with urlopen(request, timeout=30) as reply:
            answer: bytes = reply.read()
            return answer
    except HTTPError as error:
        if error.code == 404:
            return None
        raise PeerError(f"horovodrun's store does not answer: {error}") from error
    except URLError as error:
        raise PeerError(f"horovodrun's store does not answer: {error.reason}") from error
