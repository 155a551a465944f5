"""The driver of an elastic job of Horovod on Ray; its slots change from 1 to 2 to 1.

Argument: a folder, for the rows of `workers.elastic_horovod`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
from horovod.ray import ElasticRayExecutor
from horovod.ray.elastic import RayHostDiscovery
from workers.elastic_horovod import main as train

STEPS = 15
"""Steps with each number of slots, at least."""
SLOTS = (1, 2, 1)
START_SECONDS = 120
"""Longest start of a worker, on a busy machine."""


class Changing(RayHostDiscovery):  # type: ignore[misc]
    """Ray's hosts with a part of their slots, which depends on the progress of the job."""

    def __init__(self, rows: Path) -> None:
        super().__init__()
        self._rows = rows
        self._phase = 0
        self._known = 0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Part of Horovod's elastic driver, which calls it every second."""
        files = [path.read_text() for path in self._rows.glob("*.jsonl")]
        size = f'"size": {SLOTS[self._phase]}'
        steps = sum(text.count(size) for text in files)
        if self._phase + 1 < len(SLOTS) and steps - self._known >= STEPS:
            self._phase += 1
            size = f'"size": {SLOTS[self._phase]}'
            self._known = sum(text.count(size) for text in files)
        elif self._phase + 1 == len(SLOTS) and steps - self._known >= STEPS:
            new = self._rows.parent / "last.new"
            new.write_text("0")
            new.replace(self._rows.parent / "last")
        hosts = super().find_available_hosts_and_slots()
        return {host: min(slots, SLOTS[self._phase]) for host, slots in hosts.items()}


class Executor(ElasticRayExecutor):  # type: ignore[misc]
    """Horovod's executor, which waits until a new worker has started.

    Horovod gives a worker 10 s to answer, the start of its process and imports included. Processes
    of Ray that ran a task are not taken for workers, so they cannot be started before.
    """

    def _create_remote_worker(self, *arguments: Any) -> Any:
        worker = super()._create_remote_worker(*arguments)
        ray.get(worker.env_vars.remote(), timeout=START_SECONDS)
        return worker


def main(folder: Path) -> None:
    (folder / "last").write_text("1000000")
    rows = folder / "rows"
    rows.mkdir()
    ray.init(num_cpus=2, include_dashboard=False)
    settings = Executor.create_settings(1, 2, nics={"lo"})
    settings.discovery = Changing(rows)
    executor = Executor(settings, override_discovery=False)
    executor.start()
    executor.run(lambda: train(rows))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
