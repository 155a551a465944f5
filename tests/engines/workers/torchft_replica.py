"""One replica of torchft, which may be killed at any time; it logs each outer step.

Argument: a JSON object, see `main`.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft.local_sgd import DiLoCo, LocalSGD

from gradcomp.errors import GradcompError
from torch_compressors.torchft import CompressedManager

EVERY = 4


class Scaled(torch.nn.Linear):
    """A layer with a parameter of one element."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = torch.nn.Parameter(torch.ones(1))


def main(options: dict[str, Any]) -> None:
    """Make the runs of the options, one after the other, each until the outer step in a file."""
    torch.set_num_threads(1)
    for number, run in enumerate(options["runs"]):
        with Path(f"{options['log']}-{number}").open("a", buffering=1, encoding="utf-8") as log:
            try:
                train({**options, **run}, log)
            except GradcompError as error:
                print(json.dumps({"error": str(error)}), file=log)


def train(options: dict[str, Any], log: Any) -> None:
    """Train with one of torchft's loops."""
    torch.manual_seed(options["seed"])
    generator = torch.Generator().manual_seed(options["seed"])
    model = torch.nn.Sequential(Scaled(80, 64), torch.nn.Linear(64, 80))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    local = options["loop"] == "local_sgd"
    fragments = list(model) if options["loop"] == "fragments" else [model]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = manager_of(options, model, fragments, store.port)
    loop: Any = (
        LocalSGD(manager, model, inner, EVERY)
        if local
        else DiLoCo(manager, fragments, inner, outer, sync_every=EVERY * len(fragments))
    )
    rejected = options["reject"]
    last = Path(options["last"])
    try:
        with loop:
            while manager.current_step() < int(last.read_text()):
                step, change = manager.current_step(), 0.0
                for inner_step in range(1, EVERY + 1):
                    time.sleep(options["pause"])
                    for p in model.parameters():
                        p.grad = torch.randn(p.shape, generator=generator)
                        change += 0.1 * float(p.grad.double().sum())
                    if inner_step == EVERY and step == rejected:
                        rejected = None
                        reject_next(manager)
                    inner.step()
                # A replica that has taken another one's state goes on at its step.
                committed = manager.current_step() > step
                step = manager.current_step() - 1 if committed else step
                exchanged = fragments[step % len(fragments)]
                row = {"step": step, "committed": committed, "change": change}
                print(json.dumps({**row, **facts(manager, exchanged)}), file=log)
    finally:
        manager.shutdown(wait=False)


def manager_of(
    options: dict[str, Any], model: torch.nn.Module, fragments: list[torch.nn.Module], port: int
) -> CompressedManager:
    """The manager of a replica group of one rank, with the store at that port."""
    return CompressedManager(
        options["spec"],
        fragments,
        load_state_dict=lambda state: model.load_state_dict(state),
        state_dict=lambda: {name: one.clone() for name, one in model.state_dict().items()},
        min_replica_size=options["least"],
        use_async_quorum=False,
        timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=port,
        lighthouse_addr=options["lighthouse"],
        replica_id=options["name"],
        hostname="127.0.0.1",
    )


def facts(manager: CompressedManager, exchanged: torch.nn.Module) -> dict[str, Any]:
    """The state after an exchange."""
    residual = manager.compression.state_dict()["residual"]
    flat = torch.cat([p.detach().reshape(-1) for p in exchanged.parameters()])
    return {
        "size": manager.num_participants(),
        "digest": hash(flat.numpy().tobytes()),
        "sum": float(flat.double().sum()),
        "residual": sum(float(one.astype("float64").sum()) for one in residual.values()),
        "residual_digest": hash(b"".join(residual[one].tobytes() for one in sorted(residual))),
        "bytes": manager.stats.total_bytes,
    }


def reject_next(manager: CompressedManager) -> None:
    """Let this replica refuse the commit of the coming exchange."""
    ask = manager.should_commit

    def refuse(timeout: timedelta | None = None) -> bool:
        manager.should_commit = ask
        manager.report_error(RuntimeError("refused by the test"))
        return ask(timeout)

    manager.should_commit = refuse


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
