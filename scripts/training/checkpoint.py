"""Checkpoints of a run, in the files of `gradcomp.runtime.state.checkpoint`, which have checksums.

Each rank's file has the state that all ranks share, too: so a host needs only the files of its ranks.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gradcomp.errors import StateError
from gradcomp.runtime.state import checkpoint as files
from training.cluster import EXIT_CONFIG, EXIT_FAILED, AbortError
from training.engines.current import engine

__all__ = ["Checkpoints", "Resumed", "random_state", "set_random_state"]

State = dict[str, Any]


class Resumed(NamedTuple):
    """A checkpoint that all ranks have read.

    Attributes:
        path: its folder.
        common: the state that is the same on every rank, with the number of ranks as "world_size".
        parts: this rank's own state, or those of all ranks if their number has changed.
    """

    path: Path
    common: State
    parts: list[State]


class Checkpoints:
    """The checkpoints of one run; all ranks call the same methods."""

    def __init__(self, output: Path, keep: int) -> None:
        """Keep the newest ``keep`` of them in ``output``/checkpoints."""
        self._home = output / "checkpoints"
        self._keep = keep
        # The trainer compares the configuration of the checkpoint.
        self._files = files.Checkpoints(engine().rank(), engine().size(), 1, "train.py", _gather)

    def save(self, step: int, common: State, of_rank: State) -> None:
        """Write one checkpoint.

        Raises:
            AbortError: on all ranks, if any could not write.
        """
        content = {"common": {**common, "world_size": engine().size()}, "of_rank": of_rank}
        try:
            self._files.save(self._home, step, self._keep, {"torch": _packed(content)})
        except StateError as error:
            raise AbortError(str(error), EXIT_FAILED) from error

    def newest(self) -> Resumed:
        """The newest complete checkpoint; a warning names damaged ones that are skipped.

        Raises:
            AbortError: on all ranks, if there is none.
        """
        if not self._files.exist(self._home):
            raise AbortError(
                f"{self._home} has no complete checkpoint to resume from; start the run without --resume, "
                "in a new or removed output folder",
                EXIT_CONFIG,
            )
        try:
            loaded = self._files.load(self._home)
            contents: list[State] = []
            states = [loaded.states] if isinstance(loaded.states, dict) else loaded.states
            self._files.together(lambda: contents.extend(map(_unpacked, states)))
        except StateError as error:
            raise AbortError(str(error), EXIT_CONFIG) from error
        path = self._home / f"step-{loaded.step:012d}"
        parts = [content["of_rank"] for content in contents]
        return Resumed(path, contents[0]["common"], parts)


def _gather(data: bytes) -> list[bytes]:
    texts = engine().allgather_object(data.decode(), name="train.checkpoint")
    return [text.encode() for text in texts]


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


def _packed(content: State) -> Any:
    """A state of torch as an array of bytes."""
    file = io.BytesIO()
    torch.save(content, file)
    return np.frombuffer(file.getbuffer(), np.uint8)


def _unpacked(state: State) -> State:
    """The inverse of `_packed`, of a whole state of a rank."""
    try:
        data = state["torch"].tobytes()
        content: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return {key: dict(content[key]) for key in ("common", "of_rank")}
    except Exception as error:  # of many types: the bytes are those of another program
        reason = str(error).partition("\n")[0]
        raise StateError(
            f"a checkpoint was not written by this scripts/train.py ({reason}); give another --output"
        ) from error
