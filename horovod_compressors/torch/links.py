"""Horovod's collectives for `gradcomp advise --measure`."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from gradcomp.adapter_api import AllReduce, JobLinks, Request
from horovod_compressors.torch.engine import HorovodEngine

__all__ = ["open_links"]


class _InPlace(HorovodEngine):
    """All-reduces as Horovod's optimizer makes them: in the gradients' memory."""

    def start(self, request: Request) -> tuple[Request, int] | None:
        """Start a request without waiting."""
        if not isinstance(request, AllReduce):
            return super().start(request)
        tensor: Any = torch.from_numpy(request.array)
        return request, hvd.allreduce_async_(tensor, name=request.name, op=hvd.Average)


def open_links() -> JobLinks:
    """Join the job that horovodrun has started."""
    hvd.init()
    engine = _InPlace("gradcomp.links", {"all": hvd.global_process_set})
    return JobLinks("horovod", engine, hvd.rank(), hvd.size(), hvd.local_size(), hvd.shutdown)
