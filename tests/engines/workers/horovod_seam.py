"""Records the stock optimizer's calls of a compressor, on one rank; the last line printed is JSON.

The optimizer of a single rank communicates only in elastic jobs: HOROVOD_ELASTIC=1 makes it so.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch import optimizer as stock

from horovod_compressors.torch import names
from horovod_compressors.torch.names import ParameterNames, calling_optimizer

Parameters = dict[str, torch.nn.Parameter]

SHAPE = (2, 3)
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


class Recorder:
    """A compressor that records its calls."""

    def __init__(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        self.params = params
        self.optimizer: Any = None
        self.events: list[dict[str, Any]] = []

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        frame = names._caller_frame()
        p = None if frame is None else frame.f_locals.get("p")
        same = [name for name, q in self.params.items() if q.grad is tensor or q is tensor]
        event = {
            "call": "compress",
            "is_gradient_of": same,
            "is_parameter": any(q is tensor for q in self.params.values()),
            "requires_grad": tensor.requires_grad,
            "caller": None if frame is None else frame.f_code.co_name,
            "frame_p": [name for name, q in self.params.items() if q is p],
            "self_is_optimizer": calling_optimizer() is self.optimizer,
            "found": ParameterNames(None).find(tensor),
        }
        self.events.append(event)
        return torch.full((1,), 3.0), event["found"]

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return a tensor that differs from Horovod's result in shape and values."""
        self.events.append(
            {
                "call": "decompress",
                "context": ctx,
                "payload": tensor.to_dense().tolist() if tensor.is_sparse else tensor.tolist(),
            }
        )
        return tensor if ctx is None else torch.full(SHAPE, 5.0)


def recording(
    params: Parameters, factory: Callable[..., Any] = hvd.DistributedOptimizer, **options: Any
) -> tuple[Any, Recorder]:
    """An optimizer of ``params``, and the compressor that it calls."""
    recorder = Recorder(params)
    options.setdefault("named_parameters", list(params.items()))
    inner = torch.optim.SGD(list(params.values()), lr=0.1)
    recorder.optimizer = factory(inner, compression=recorder, **options)
    return recorder.optimizer, recorder


def adasum(inner: torch.optim.Optimizer, compression: Any, named_parameters: Any) -> Any:
    """The optimizer that the factory makes for op=Adasum and several ranks."""
    methods = dict(stock._DistributedAdasumOptimizer.__dict__)
    kind = type(inner.__class__.__name__, (inner.__class__,), methods)
    return kind(inner.param_groups, named_parameters, compression)


def three(prefix: str) -> Parameters:
    return {f"{prefix}.{name}": torch.nn.Parameter(torch.ones(SHAPE)) for name in "abc"}


def observe() -> dict[str, Any]:
    observed: dict[str, Any] = {}

    params = three("missing")
    opt, recorder = recording(params)
    params["missing.b"].sum().backward()
    opt.step()
    observed["missing"] = recorder.events
    observed["is average"] = opt.op == hvd.Average
    observed["process set"] = opt.process_set.process_set_id
    observed["gradients"] = {name: p.grad.tolist() for name, p in params.items()}

    params = three("grouped")
    opt, recorder = recording(params, groups=1)
    torch.stack([p.sum() for p in params.values()]).sum().backward()
    opt.step()
    observed["grouped"] = recorder.events

    params = three("unnamed")
    opt, recorder = recording(params, named_parameters=None)
    torch.stack([p.sum() for p in params.values()]).sum().backward()
    opt.step()
    observed["unnamed"] = recorder.events

    params = three("dense")
    opt, recorder = recording(params, sparse_as_dense=True)
    row = torch.tensor([1])
    for p in params.values():
        torch.nn.functional.embedding(row, p, sparse=True).sum().backward()
    opt.synchronize()
    observed["sparse_as_dense"] = recorder.events

    params = three("sparse")
    opt, recorder = recording(params)
    torch.nn.functional.embedding(row, params["sparse.b"], sparse=True).sum().backward()
    params["sparse.a"].sum().backward()
    params["sparse.c"].sum().backward()
    opt.synchronize()
    observed["sparse"] = recorder.events

    params = three("adasum")
    opt, recorder = recording(params, factory=adasum)
    params["adasum.b"].sum().backward()
    opt.step()
    observed["adasum"] = recorder.events
    observed["adasum has"] = [name for name in ("op", "process_set") if hasattr(opt, name)]

    summable = []
    for dtype in DTYPES:
        with suppress(ValueError):
            hvd.allreduce(torch.ones(2, dtype=dtype), op=hvd.Sum)
            summable.append(str(dtype))
    observed["summable"] = summable
    return observed


if __name__ == "__main__":
    warnings.simplefilter("error")
    hvd.init()
    print(json.dumps(observe()))
