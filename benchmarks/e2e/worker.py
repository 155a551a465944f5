"""One rank of a job of the sweep: takes some contenders' steps, and writes their times and bytes.

  python worker.py ORDER.json RESULTS

The order has the engine, the contenders, the model, the file of its gradients' numbers and the number
of steps; sweep.py starts the ranks. Each rank writes RESULTS/rank-N.json, for each contender:

- the seconds of each step;
- the seconds of each phase, if the order asks for a profile (our contenders only);
- the bytes handed to collectives (our contenders only);
- the bytes sent by the host's interface, in a step and in an idle second;
- the share of a processor that its engine takes in an idle second.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from e2e.contenders import Contender
from e2e.model import Synthetic
from gradcomp import Config, load_config
from netlab.lab import INTERFACE
from torch_compressors import DGCSGD

_IDLE_SECONDS = 1.0
_LEAST_WARMUP = 3
_LEAST_STEPS = 5


class Engine(Protocol):
    """Interface of a worker module's ``Engine``."""

    rank: int

    def barrier(self) -> None:
        """Wait for all ranks."""

    def prepare(self, contender: Contender, model: Synthetic, prefix: str) -> Run:
        """The step function of a contender; names of tensors begin with the prefix."""

    def close(self) -> None:
        """Leave the job."""


class Run:
    """A contender, ready to take steps.

    Args:
        step: a whole step, without its untimed part.
        compression: one of ours, whose ``stats`` count bytes; None for others.
    """

    def __init__(self, step: Callable[[], None], compression: Any = None) -> None:
        self.step = step
        self._compression = compression

    def profile(self) -> Any:
        """Begin to measure the phases of our steps; None for other contenders."""
        return None if self._compression is None else self._compression.stats.start_profile()

    def sent(self) -> int | None:
        """Bytes handed to collectives so far; None if they are not counted."""
        return None if self._compression is None else self._compression.stats.total_bytes


class Idle(torch.optim.SGD):
    """An optimizer without effect: its time does not belong to the engine."""

    def step(self, closure: Any = None) -> Any:
        """Nothing."""


class IdleDGC(DGCSGD):
    """The same, for specs that apply the momentum."""

    def step(self, closure: Any = None) -> Any:
        """Nothing."""


def optimizer(model: Synthetic, spec: str = "") -> torch.optim.Optimizer:
    """The optimizer that fits the spec."""
    kind = IdleDGC if spec.startswith("dgc") else Idle
    return kind(model.parameters(), lr=0.1, momentum=0.9 if kind is IdleDGC else 0.0)


def config_of(spec: str) -> Config:
    """The configuration of a contender's spec and settings of the section ``compress``."""
    first, *others = spec.split()
    settings = [f"compress.{setting}" for setting in others]
    return load_config([], ["version=1", f"compress.default={first}", *settings])


def interface_bytes() -> int:
    """Bytes sent by this host's interface so far; 0 without an interface, on a single machine."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])
    return 0


def measure(
    engine: Engine, run: Run, warmup: int, steps: int, profiled: bool = False
) -> dict[str, Any]:
    """Take the steps.

    Args:
        profiled: also measure the phases of our contenders' steps.
    """
    for _ in range(warmup):
        run.step()
    engine.barrier()
    profile = run.profile() if profiled else None
    seconds = []
    sent, seen = run.sent(), interface_bytes()
    for _ in range(steps):
        engine.barrier()
        began = time.perf_counter()
        run.step()
        seconds.append(time.perf_counter() - began)
    engine.barrier()
    now = run.sent()
    phases = None
    if profile is not None:
        phases = {name: total / steps for name, total in profile.total.phases.items()}
    return {
        "seconds": seconds,
        "phases": phases,
        "sent_bytes": None if now is None or sent is None else (now - sent) / steps,
        "interface_bytes": (interface_bytes() - seen) / steps,
    }


def idle(engine: Engine) -> dict[str, float]:
    """Idle load: the engine's own messages and its threads."""
    engine.barrier()
    began, seen, busy = time.perf_counter(), interface_bytes(), time.process_time()
    time.sleep(_IDLE_SECONDS)
    seconds = time.perf_counter() - began
    return {
        "idle_bytes_per_second": (interface_bytes() - seen) / seconds,
        "idle_processors": (time.process_time() - busy) / seconds,
    }


def main() -> None:
    """Take all contenders' steps, one contender after the other."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    numbers = torch.from_file(order["numbers"], size=Path(order["numbers"]).stat().st_size // 4)
    torch.set_num_threads(1)
    engine: Engine = importlib.import_module(f"e2e.on_{order['engine']}").Engine()
    of_all = idle(engine)
    results = {}
    for i, fields in enumerate(order["contenders"]):
        contender = Contender(**fields)
        model = Synthetic(order["model"], order["compute_ms"] / 1e3, numbers, engine.rank)
        run = engine.prepare(contender, model, f"{i}.")
        warmup, steps = max(order["warmup"], contender.warmup), order["steps"]
        if not contender.dense:  # short steps
            warmup, steps = max(warmup, _LEAST_WARMUP), max(steps, _LEAST_STEPS)
        measured = measure(engine, run, warmup, steps, order["profile"])
        results[contender.name] = {**measured, **of_all}
        del run, model
        gc.collect()
    path = Path(sys.argv[2], f"rank-{engine.rank}.json")
    path.write_text(json.dumps(results), encoding="utf-8")
    engine.close()


if __name__ == "__main__":
    main()
