"""Copies of gradients of a pretended device, as a process: python host_copies.py

The device is the process's accelerator. Prints the number of checks.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from itertools import chain
from typing import Any

import torch

from gradcomp_torch import staging
from gradcomp_torch.devices import TensorArray, convert
from gradcomp_torch.float_copies import FloatCopies
from gradcomp_torch.gpu.graphs import Replayed
from gradcomp_torch.host_copies import HostCopies
from gradcomp_torch.staging import Staging, computed_by_now
from support.pretend_device import DEVICE, on_device, on_host, pretended

CASES = {
    "neighbours of one buffer": lambda: dict(
        zip("abc", _buffer().split((10, 30, 24)), strict=True)
    ),
    "a gap in the buffer": lambda: {"a": _buffer()[:10], "b": _buffer()[:0], "c": _buffer()[40:]},
    "buffers of their own": lambda: {"a": _buffer(), "b": _buffer(), "c": _buffer()},
    "matrices": lambda: {"a": _buffer().view(8, 8), "b": _buffer().view(8, 8).t()},
    "two dtypes": lambda: {
        "a": _buffer(),
        "b": _buffer(torch.bfloat16),
        "c": _buffer(),
        "d": _buffer(torch.float16),
    },
}

COPIES = {
    "neighbours of one buffer": [256],
    "a gap in the buffer": [40, 0, 96],
    "buffers of their own": [256, 256, 256],
    "matrices": [256, 256],
    "two dtypes": [256, 256, 128, 128],
}
"""Bytes of each copy."""


def _buffer(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return on_device(torch.randn(64).to(dtype))


def main() -> None:
    """Copy gradients to the host, change them there, and copy them back."""
    torch.manual_seed(3)
    checks = 0
    for case, make in CASES.items():
        tensors = make()
        expected = {name: on_host(tensor) for name, tensor in tensors.items()}
        with pretended() as log:
            copies = HostCopies(tensors)
            assert log.to_host == COPIES[case], f"{case}: {log.to_host}"
            floats = {name: copies.floats(name) for name in tensors}
            early = [one for one in copies.arrays.values() if one.numel()]
            assert all(one.isnan().all() for one in early), f"{case}: a copy did not wait"
            for name, (array, arrives) in floats.items():
                arrives()
                wanted = expected[name].reshape(-1).to(torch.float32)
                assert torch.equal(array, wanted), f"{case}: {name} on the host"
                copies.arrays[name].copy_(2 * array)
                checks += 1
            back = {
                name: torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
                for name, tensor in tensors.items()
            }
            for given in (back, tensors):
                copies.give_back(given)
                for name, tensor in given.items():
                    assert torch.equal(on_host(tensor), 2 * expected[name]), f"{case}: {name} back"
                    checks += 1
    checks += work_on_another_stream()
    checks += work_after_a_late_stream()
    checks += gradients_for_another_thread()
    checks += work_of_two_threads()
    checks += many_recordings()
    print(f"{checks} checks")


def work_after_a_late_stream() -> int:
    """Work on the side stream finds elements that the current stream has not computed yet."""
    values = torch.randn(64)
    with pretended(late=True):
        tensor = _buffer()
        tensor.copy_(on_device(values))
        with Staging(DEVICE).beside([tensor]) as staged:
            found = staged.fetch(tensor)
        staged.wait()
        assert torch.equal(found, values), "read before the current stream computed it"
    return 1


class _Device:
    """A device that makes arrays."""

    def array(self, *given: Any) -> TensorArray:
        return TensorArray(self, *given)  # type: ignore[arg-type]


def gradients_for_another_thread() -> int:
    """Copies of gradients as float32, and gradients of 16 bits, which the side stream converts, are complete there."""
    values = torch.randn(64)
    checks = 0
    for beside in (False, True):
        with pretended(late=True):
            grads = {"16 bits": _buffer(torch.bfloat16), "a layout": _buffer().view(8, 8).t()}
            own = torch.Stream(DEVICE)
            with own if beside else nullcontext():
                for grad in grads.values():
                    grad.record_stream(own)
                    grad.copy_(on_device(values.to(grad.dtype).view(grad.shape)))
                arrays = FloatCopies().arrays(grads, _Device(), beside=beside)  # type: ignore[arg-type]
            made: list[Any] = list(arrays.values())
            events = [array.computed for array in made]
            assert all(event is not None for event in events) is beside
            memory = list(chain.from_iterable(array.memory for array in made))
            with Staging(DEVICE).beside(memory, filter(None, events)) as s:
                convert(made)
                found = [s.fetch(array.tensor) for array in made]
            s.wait()
            for (name, grad), floats in zip(grads.items(), found, strict=True):
                wanted = values.to(grad.dtype).float().view(grad.shape)
                assert torch.equal(floats, wanted), f"{name}: read before it was copied"
                checks += 1
    return checks


def work_of_two_threads() -> int:
    """Threads use a side stream at the same time, and then go on with their own streams."""
    with pretended():
        staging_ = Staging(DEVICE)
        meet = threading.Barrier(2, timeout=60)

        def work(own: torch.Stream) -> str:
            torch.accelerator.set_stream(own)
            try:
                for turn in range(20):
                    with staging_.beside([_buffer()]) if turn % 2 else staging_.current():
                        meet.wait()
                        shared = torch.accelerator.current_stream(DEVICE) is not own
                    meet.wait()
                    if not shared or torch.accelerator.current_stream(DEVICE) is not own:
                        return "it has another thread's stream"
            except RuntimeError as error:
                meet.abort()
                return repr(error)
            return ""

        with ThreadPoolExecutor(2) as pool:
            faults = list(pool.map(work, [torch.Stream(DEVICE), torch.Stream(DEVICE)]))
        assert faults == ["", ""], f"a thread on the side stream: {faults}"
    return 2


def many_recordings() -> int:
    """More graphs than PyTorch has streams are recorded on one stream, on which nothing else is done."""
    launched: list[torch.Stream] = []

    def launch() -> None:
        launched.append(torch.accelerator.current_stream(DEVICE))

    with pretended():
        for bucket in range(40):
            side = Staging(DEVICE)
            replayed = Replayed(DEVICE)
            with side.current():
                stream = torch.accelerator.current_stream(DEVICE)
                if bucket == 0:
                    with suppress(ZeroDivisionError):
                        replayed.run("key", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
                for _ in range(3):
                    replayed.run("key", launch)
                assert torch.accelerator.current_stream(DEVICE) is stream
            assert len(launched) == 2 * (bucket + 1), "launched once, then recorded, then replayed"
            first, recorded = launched[-2:]
            assert first is stream, "the first launch after a failed one is not recorded"
            assert recorded != stream, "a recorded stream has other work"
            assert recorded == launched[1], "each bucket has a recorded stream of its own"
    return 40


def work_on_another_stream() -> int:
    """A thread with another current stream finds elements that were computed by an event."""
    values = torch.randn(64)
    with pretended():
        tensor = _buffer().zero_()
        own = torch.Stream(DEVICE)
        tensor.record_stream(own)
        with own:
            host = staging.room(64, torch.float32, DEVICE).copy_(values)
            tensor.copy_(host, non_blocking=True)
            computed = computed_by_now(DEVICE)
        assert computed is not None
        with Staging(DEVICE).beside([tensor], [computed]) as staged:
            found = staged.fetch(tensor)
        staged.wait()
        assert torch.equal(found, values), "read before it was computed"
    assert computed_by_now(torch.device("cpu")) is None
    return 1


if __name__ == "__main__":
    main()
