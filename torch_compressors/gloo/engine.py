"""Rounds over process groups of Gloo, which matches collectives by the order of their launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import (
    AllReduce,
    Broadcast,
    FloatArray,
    RankGroup,
    Ready,
    Request,
    ranks_text,
)
from gradcomp.errors import ConfigError, ProtocolError, StateError
from torch_compressors.gloo.groups import LentGroups
from torch_compressors.gloo.keep_alive import keep
from torch_compressors.gloo.liveness import Liveness, of_group
from torch_compressors.gloo.messages import (
    BROADCASTS,
    MESSAGES,
    NEVER_SENT,
    GroupMessages,
    Part,
)
from torch_compressors.gloo.sums import FUSED_BYTES, FusedSum, Summand

__all__ = ["SUMMABLE_DTYPES", "Closing", "GlooEngine", "dense_round", "message_limit"]

SUMMABLE_DTYPES = frozenset({torch.float16, torch.float32, torch.float64})
"""Dtypes of dense gradients that are all-reduced in their own dtype; others travel as float32."""

# Bytes of an element, of a tensor and of a message that `message_limit` allows for. Frames of the
# built-in codecs have at most 4.2 bytes an element besides headers; plug-ins may have more.
_ELEMENT, _TENSOR, _MESSAGE = 16, 2**10, 2**16

_CONNECTION = r"(?i)gloo/|timed? ?out|connect|broken pipe|reset by peer|closed"


_Results = TypeVar("_Results", bound=Sequence[Any])


def message_limit(numels: Iterable[int], bucket_bytes: int) -> int:
    """Largest message of an honest rank, in bytes, for gradients of these numbers of elements.

    A round carries one bucket: a tensor, or several of ``bucket_bytes`` in float32 before the last.
    """
    numels = list(numels)
    elements = min(sum(numels), bucket_bytes // 4 + max(numels, default=0))
    return _ELEMENT * elements + _TENSOR * len(numels) + _MESSAGE


def dense_round(
    name: str,
    pieces: Sequence[FloatArray],
    results: _Results,
    arrives: Callable[[], None] | None = None,
) -> Generator[AllReduce | Ready, Any, _Results]:
    """A round of gradients that travel uncompressed in one request; their averages overwrite them.

    Args:
        pieces: the gradients' memory: flat, of one dtype. A single one is not copied.
        results: what the round returns, for each gradient.
        arrives: waits for elements that are on their way to the host; None: they are there.
    """
    if arrives is not None:
        yield Ready(name, arrives)
    together = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    average: FloatArray = yield AllReduce(name, together, overwrite=True)
    if len(pieces) == 1 and np.may_share_memory(average, together):
        return results
    begin = 0
    for piece in pieces:
        np.copyto(piece, average[begin : begin + piece.size])
        begin += piece.size
    return results


class GlooEngine:
    """Asynchronous collectives on CPU memory.

    All ranks must start and finish the same requests in the same order. Successive all-reduces are
    launched as one, at `flush`, when they reach 4 MiB, or when the first of them is finished. Other
    requests of a group travel together, too: see `torch_compressors.gloo.messages`.

    Args:
        groups: the process group of each group that this rank is in. `LentGroups` are given back with
            `close`, or when the engine is garbage.
        limit: largest message that a rank may send, in bytes: see `message_limit`.
        where: the caller's function that has a timeout, for messages.
        liveness: of the ranks in ``all``; None for that of the job's group.
    """

    def __init__(
        self,
        groups: LentGroups[RankGroup] | Mapping[RankGroup, dist.ProcessGroup],
        limit: int,
        where: str = "ddp_hook",
        liveness: Liveness | None = None,
    ) -> None:
        self.lent = groups if isinstance(groups, LentGroups) else LentGroups(groups)
        self._give_back = self.lent.until_gone(self)
        self._groups = groups = self.lent.groups
        self._where = where
        self._liveness = liveness or of_group(groups["all"], "fault")
        self._ranks = self._liveness.ranks
        self._fused: dict[tuple[RankGroup, np.dtype[Any]], FusedSum] = {}
        # Ranks that find a difference broadcast their texts, whatever they have sent before.
        self._messages, self._broadcasts = (
            {
                name: GroupMessages(
                    group,
                    self._ranks if name == "all" else dist.get_process_group_ranks(group),
                    limit,
                    len(self._ranks),
                    self.answered,
                    self.lent.messages,
                    tag,
                )
                for name, group in groups.items()
            }
            for tag in (MESSAGES, BROADCASTS)
        )

    def start(self, request: Request) -> Summand | Part | None:
        """Start a request without waiting, unless this rank is outside its group.

        Raises:
            ProtocolError: the connection to another rank is lost.
            StateError: the engine is closed.
        """
        self.check_open()
        if request.group not in self._groups:
            return None
        self.lent.begin()
        if isinstance(request, AllReduce):
            return self._add(request)
        if isinstance(request, Broadcast):
            return self._broadcasts[request.group].add(request)
        return self._messages[request.group].add(request)

    def finish(self, handle: Summand | Part | None) -> Any:
        """Wait for a started request.

        Raises:
            ProtocolError: another rank does not answer.
        """
        if handle is None:
            return None
        reply: Any
        if isinstance(handle, Part):
            reply = handle.messages.finish(handle)
        else:
            if handle.fused.work is None:
                self._launch_sums()
            reply = handle.fused.average(handle)
        self.lent.end()
        return reply

    def close(self) -> None:
        """Give the process groups back; no request may follow."""
        self._give_back()

    def check_open(self) -> None:
        """Refuse a request after `close`.

        Raises:
            StateError: the engine is closed.
        """
        if not self._give_back.alive:
            raise StateError(
                f"this compression is closed, and its process groups may be another one's: call {self._where} "
                "again"
            )

    def flush(self) -> None:
        """Launch all requests that wait for others."""
        self._launch_sums()
        for messages in self._messages.values():
            messages.send()

    def _launch_sums(self) -> None:
        for (group, _), fused in self._fused.items():
            keep(fused.launch(self._groups[group], self.answered))
        self._fused.clear()

    def _add(self, request: AllReduce) -> Summand:
        if request.alone or (request.overwrite and request.nbytes >= FUSED_BYTES):
            self._launch_sums()  # a large one needs no copy if it travels alone
        fused = self._fused.setdefault((request.group, request.array.dtype), FusedSum())
        summand = fused.add(request)
        if request.alone or fused.nbytes >= FUSED_BYTES:
            self._launch_sums()
        return summand

    @contextmanager
    def answered(self, name: str, awaited: int | None = None) -> Iterator[None]:
        """A context that turns RuntimeError of Gloo into ProtocolError, with the lost rank's name.

        The awaited rank is not always the lost one: it may have given up because of a third rank.

        Raises:
            ConfigError: Gloo refuses the exchange on this rank, and no connection has failed.
        """
        try:
            yield
        except RuntimeError as error:
            if not _of_connection(error):
                raise ConfigError(
                    f"Gloo of PyTorch {torch.__version__} refuses the exchange '{name}': {error}. No rank is "
                    "lost. If it lacks the type of the numbers, as some builds lack float16: use another "
                    "build, or a spec whose sums are float32"
                ) from error
            raise ProtocolError(
                f"{self._lost(awaited)} not answer in the exchange '{name}': see its output, and give "
                f"{self._where} a longer timeout if the rank is only slow ({error})"
            ) from error

    def _lost(self, awaited: int | None) -> str:
        if len(self._ranks) == 2:  # no need to ask
            missing = [rank for rank in self._ranks if rank != self._liveness.rank]
        else:
            for group in self._groups.values():
                _disconnect(group)
            missing = self._liveness.missing() or []
            if not missing and awaited is not None:
                missing = [awaited]
        return ranks_text(missing) if missing else "another rank does"


class Closing:
    """Base class of compressions with a `GlooEngine`; a subclass sets ``_gloo``."""

    _gloo: GlooEngine | None = None

    def close(self) -> None:
        """Give the process groups to the next compression of the same ranks.

        Call it after the last step; without a call it happens when Python frees the compression. A further
        step raises a `StateError`, and the state can still be read and saved. Ranks may call it at different
        times. After a step that has failed, the groups are not used again.
        """
        if self._gloo is not None:
            self._gloo.close()


def _of_connection(error: RuntimeError) -> bool:
    """Whether an error of Gloo is about the connection to another rank, as timeouts are.

    All such errors begin with the file in Gloo that raises them, or are of PyTorch's store.
    """
    return isinstance(error, dist.DistError) or re.search(_CONNECTION, str(error)) is not None


def _disconnect(group: dist.ProcessGroup) -> None:
    """Close a failed group's connections, so that ranks that wait for this one in a ring fail, too.

    Gloo closes all of them when one wait times out; ``abort`` does not.
    """
    for peer in set(range(group.size())) - {group.rank()}:
        with suppress(RuntimeError):
            unused = torch.empty(1, dtype=torch.uint8, device="cpu")
            group.recv([unused], peer, NEVER_SENT).wait(timedelta(milliseconds=1))
