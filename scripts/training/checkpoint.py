"""Checkpoints: one folder a step, with one file for all ranks and one file per rank.

A folder gets its final name when all its files are written, so a visible folder is complete.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradcomp.errors import ConfigError
from training.cluster import together
from training.engines.current import engine

__all__ = ["Checkpoints", "random_state", "set_random_state"]

State = dict[str, Any]

_MODEL = "model.pt"


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, output: Path, keep: int) -> None:
        """Keep the newest ``keep`` of them in ``output``/checkpoints."""
        self._home = output / "checkpoints"
        self._keep = keep

    def save(self, step: int, common: State, of_rank: State) -> None:
        """Write one checkpoint; every rank calls this, ``common`` is taken from rank 0."""
        partial = self._home / f".step-{step:08d}.partial"

        def write() -> None:
            partial.mkdir(parents=True, exist_ok=True)
            _write(partial / _rank_file(engine().rank()), of_rank)
            if engine().rank() == 0:
                _write(partial / _MODEL, {**common, "world_size": engine().size()})

        def commit() -> None:
            if engine().rank() == 0:
                partial.rename(self._home / f"step-{step:08d}")
                self._prune()

        together(write)
        together(commit)

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        return max(self._complete(), default=None)

    def _complete(self) -> list[Path]:
        return sorted(self._home.glob("step-*"))

    def _prune(self) -> None:
        # A partial folder that is still here is left from a killed run.
        for stale in [*self._complete()[: -self._keep], *self._home.glob(".step-*.partial")]:
            shutil.rmtree(stale)


def load(path: Path) -> tuple[State, list[State]]:
    """The common part of a checkpoint, and the parts of ranks that this rank needs.

    It needs its own part, or the parts of all ranks when the world size has changed. Raises
    ConfigError naming the file that cannot be read.
    """
    common = _read(path / _MODEL)
    ranks = (
        [engine().rank()]
        if common["world_size"] == engine().size()
        else range(common["world_size"])
    )
    return common, [_read(path / _rank_file(rank)) for rank in ranks]


def random_state() -> State:
    """The state of torch's and numpy's global generators."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert name == "MT19937"
    return {
        "torch": torch.get_rng_state(),
        "numpy_keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_rest": [int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: State) -> None:
    """Restore the global generators from a result of `random_state`."""
    torch.set_rng_state(state["torch"])
    keys = state["numpy_keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, *state["numpy_rest"]))


def _rank_file(rank: int) -> str:
    return f"rank-{rank:04d}.pt"


def _write(path: Path, state: State) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> State:
    try:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is missing; the output folder must be one that all hosts share"
        ) from None
    except (EOFError, OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); remove {path.parent} to resume from the "
            "checkpoint before it"
        ) from None
    return state
