"""Ranks whose devices send each other factors, beside ranks on the host, as a process: python factors.py

Prints the number of steps that were compared; the first difference is an error.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gpu.quick_interpreter  # noqa: F401
from gradcomp import Pipeline
from gradcomp.codec.devices import HOST
from gradcomp.exchange.rounds import AllGather, AllReduce, advance
from gradcomp_torch.device_messages import DeviceMessage
from gradcomp_torch.gpu.graphs import Replayed
from gradcomp_torch.gpu.peer_device import DirectDevice
from support.mixed_ranks import RANKS, average, gradients, ranks_of, residuals
from support.pipelines import config_of

SPECS = [
    "powersgd(rank=2,start_step=1,variant=library)",
    "powersgd(rank=2,start_step=0,variant=paper)",
    "powersgd(rank=3,start_step=0,iters_per_step=2,warm_start=false,variant=library)",
    "powersgd(rank=1,start_step=0,iters_per_step=2,lr=scale,variant=paper)",
    "powersgd(rank=2,start_step=0,values=fp16)",
    "powersgd(rank=2,start_step=0,values=fp16,variant=library)",
]
THROUGH_HOST = [
    "powersgd(rank=2,start_step=0,values=bf16)",
    "powersgd(rank=2,start_step=0,orthogonalization=qr)",
]


PRODUCTS = frozenset(
    {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.mv}
)
"""Operators that use a workspace of cuBLAS on a GPU."""


class Products(TorchDispatchMode):
    """Counts products of matrices; one among launches that a GPU records is an error.

    All graphs that are recorded on one stream would share its workspace, and are replayed at the same time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched = 0
        self.recordings = 0
        self._records = False
        run = Replayed.run

        def records(replayed: Replayed, key: object, launch: Callable[[], None]) -> None:
            self._records = True
            run(replayed, key, launch)
            self._records = False
            self.recordings += 1

        Replayed.run = records  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op.overloadpacket in PRODUCTS:
            assert not self._records, f"{op} would be recorded in a graph"
            self.launched += 1
        return op(*args, **(kwargs or {}))


def main() -> None:
    """Averages and factors are equal on all ranks, and near those of the host; products are in no graph."""
    with Products() as products:
        compared = compare()
    assert products.launched > 0, "no product was seen"
    assert products.recordings > 0, "nothing is recorded"
    check_nothing_is_lost()
    print(f"{compared} steps")


def compare() -> int:
    """Number of steps with averages, factors and states that were compared."""
    compared = 0
    for spec in (*SPECS, *THROUGH_HOST):
        direct, alone = ranks_of(config_of(spec, device="direct")), ranks_of(config_of(spec))
        devices = [DirectDevice(torch.device("cpu")) for _ in range(RANKS)]
        for rank, one in zip(direct, devices, strict=True):
            rank.begin_peer_messages(one)
        for step in range(5):
            if step == 3:  # from a checkpoint
                for one in (*direct, *alone):
                    one.load_state_dict(one.state_dict())
            for one in (*direct, *alone):
                one.set_lr(0.1 / (1 + step // 2))
            grads = gradients(step)
            found = average(direct, devices, grads, _run)
            expected = average(alone, [HOST] * RANKS, grads)
            assert all(one == found[0] for one in found), f"{spec}: averages differ by rank"
            for name, data in found[0].items():
                _check_near(spec, data, expected[0][name])
            compared += 1
        _check_states(spec, direct, alone)
        assert direct[0].stats.sent_bytes == alone[0].stats.sent_bytes, spec
        through_host = not any(one._of_factors for one in devices)
        assert through_host is (spec in THROUGH_HOST), f"{spec}: where factors travel"
    return compared


def check_nothing_is_lost() -> None:
    """Gradients are averages and residuals, also where factors are rounded: a lone rank adds nothing up."""
    for spec in SPECS:
        if "lr=scale" in spec:
            continue  # residuals change with the rate
        lone = Pipeline(config_of(spec, device="direct"), 0, 1)
        device = DirectDevice(torch.device("cpu"))
        lone.begin_peer_messages(device)
        total: dict[str, Any] = {}
        for step in range(4):
            grads = gradients(step, 1)
            [averages] = average([lone], [device], grads, _run)
            for name, data in averages.items():
                lost = grads[name][0].reshape(-1) - np.frombuffer(data, np.float32)
                total[name] = total.get(name, 0) + lost
        for name, data in residuals(lone)["residual"].items():
            np.testing.assert_allclose(
                *(np.frombuffer(data, np.float32), total[name]),
                atol=2e-5,
                err_msg=f"{spec}: what was not sent is lost",
            )


def _check_states(spec: str, direct: Sequence[Pipeline], alone: Sequence[Pipeline]) -> None:
    states = [one.state_dict() for one in direct]
    for kind in ("powersgd_p", "powersgd_q"):
        for name, factor in states[0][kind].items():
            assert all(one[kind][name].tobytes() == factor.tobytes() for one in states), kind
    for one, other in zip(direct, alone, strict=True):
        for name, data in residuals(one)["residual"].items():
            _check_near(spec, data, residuals(other)["residual"][name])


def _check_near(spec: str, found: bytes, expected: bytes) -> None:
    # With factors of 16 bits a last bit may be another one.
    limit = 1e-2 if "values" in spec else 1e-4
    arrays = [np.frombuffer(one, np.float32) for one in (found, expected)]
    np.testing.assert_allclose(*arrays, atol=limit, err_msg=spec)


def _run(rounds: Sequence[Any]) -> list[Any]:
    """Run a round of each rank; messages of devices are added up in rank order."""
    replies: list[Any] = [None] * len(rounds)
    results: list[Any] = []
    while not results:
        requests: list[Any] = []
        for one, reply in zip(rounds, replies, strict=True):
            try:
                requests.append(advance(one, reply))
            except StopIteration as stop:
                results.append(stop.value)
        assert not (requests and results), "rounds end apart"
        if requests:
            replies = _replies(requests)
    return results


def _replies(requests: Sequence[AllReduce | AllGather]) -> list[Any]:
    assert len({request.name for request in requests}) == 1
    frames = [request.frame for request in requests if isinstance(request, AllGather)]
    if frames:
        return [frames for _ in frames]
    arrays: list[Any] = [request.array for request in requests if isinstance(request, AllReduce)]
    if not isinstance(arrays[0], DeviceMessage):
        mean = np.stack(arrays).sum(0) * arrays[0].dtype.type(1 / len(arrays))
        return [mean for _ in arrays]
    sums = torch.stack([array.data for array in arrays]).sum(0)
    for array in arrays:
        array.data.copy_(sums / len(arrays))  # in place, as engines do
    return arrays


if __name__ == "__main__":
    main()
