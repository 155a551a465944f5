"""State that one rank keeps from step to step, and its form in checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import device_of
from gradcomp.codec.spec import parse
from gradcomp.errors import StateError
from gradcomp.exchange.memory import (
    ESTIMATE,
    ESTIMATE_MEAN,
    ESTIMATE_ROWS,
    MOMENTUM_CORRECTION,
    NORM,
    RESIDUAL_LR,
    Arrays,
    MemoryState,
)
from gradcomp.exchange.nodes import Node
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.samples import Samples
from gradcomp.exchange.state_kinds import REPLICATED_KINDS, STATE_KINDS, state_of
from gradcomp.exchange.waiting import CHECK_EVERY, Waiting
from gradcomp.runtime.resolve import DENSE_SPEC, Resolved
from gradcomp.runtime.state.loss_scale import LossScale, poisoned
from gradcomp.runtime.state.state_check import STATE_VERSION, checked_states
from gradcomp.runtime.state.step_copies import Before, StepCopies

__all__ = ["RankState", "State"]

State = dict[str, Any]
"""A rank's state in checkpoints: numbers, strings and flat float32 arrays.

Keys of the header:

- ``version``, ``rank``, ``world_size``;
- ``ranks_per_node``: 1 without ``two_level``. With it a tensor's arrays belong to the node
  and are equal on all of its ranks;
- ``rounds``: number of averages so far, by tensor name;
- ``specs``: canonical spec of the last round, by tensor name;
- ``loss_scale``: see `RankState.set_loss_scale`;
- ``decisions`` of the policy ``auto``; see `gradcomp.runtime.policy.decision.Decision`.

Keys of arrays, each by tensor name:

- ``residual``: error feedback; DGC's velocity;
- ``momentum``: of signum, momentum_correction and ef21;
- ``estimate``, ``estimate_mean``, ``estimate_rows``: of ef21; see
  `gradcomp.exchange.estimates.Estimates`;
- ``dion_q``: Dion's factors of columns, one vector after the other;
- ``powersgd_p``, ``powersgd_q``: PowerSGD's factors of rows and columns, one vector after
  the other;
- ``residual_lr``: the learning rate of a residual's last step, with ``lr=scale``;
- ``basis``: learned from averages; see `gradcomp.Codec.learn`;
- ``carried``: starting points of encoders; see `gradcomp.EncodeItem`;
- ``norm``: the running mean of a tensor's norms, with ``residual(limit=L)``.
"""


class RankState:
    """Arrays of memories, codecs and algorithms, step counters, and each tensor's last spec.

    Args:
        rank: this rank, in [0, world_size).
        world_size: number of ranks that average together.
        ranks_per_node: number of consecutive ranks that share their arrays: the ranks of a node
            with `two_level`, else 1.

    Attributes:
        arrays: by kind, then by tensor name; flat float32. Aggregators hold the same dicts.
        rates: the learning rates of the present step.
        copies: of what the present step changes.
        loss_scale: the factor of the loss in the present step.
        residuals, samples: measure gradients and residuals before each step.
        discards: every step is copied, so that it can be discarded.
        script_step: the script's own step, counted from 0; None if the script does not tell it. It is
            in no checkpoint.
        changes: number of times that a tensor got another spec, or arrays of an earlier step.

    Raises:
        ConfigError: ``world_size`` is not a multiple of ``ranks_per_node``.
    """

    def __init__(self, rank: int, world_size: int, ranks_per_node: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.ranks_per_node = ranks_per_node
        self.node = Node.of(rank, world_size, ranks_per_node)
        self.arrays: MemoryState = {kind: {} for kind in STATE_KINDS}
        self.rates = Rates()
        self.copies = StepCopies(self.arrays)
        self.loss_scale = LossScale(self.arrays, self.copies)
        self.residuals = Waiting()
        self.samples = Samples()
        self.discards = False
        self.script_step: int | None = None
        self.changes = 0
        self._rounds: dict[str, int] = {}
        self._specs: dict[str, str] = {}

    def watch(self, residuals: Waiting, samples: Samples) -> None:
        """Let objects measure gradients and residuals; rank 0 warns."""
        residuals.logs = self.rank == 0
        self.residuals, self.samples = residuals, samples

    def step(self, name: str) -> int:
        """Number of averages of a tensor so far."""
        return self._rounds.get(name, 0)

    @property
    def steps(self) -> int:
        """The largest number of averages of any tensor so far."""
        return max(self._rounds.values(), default=0)

    def compared(self) -> dict[str, str]:
        """All that must be equal on all ranks, as short texts by name."""
        arrays = self.arrays
        velocities, momenta = arrays["residual"], arrays["momentum"]
        values: dict[str, str] = {
            "tensors that were averaged": str(len(self._rounds)),
            "averages of each tensor": _digest(sorted(self._rounds.items())),
            "specs": _digest(sorted(self._specs.items())),
            "tensors with a residual": _digest(sorted(velocities)),
            "tensors with a momentum": _digest(sorted(momenta)),
        }
        # The momentum of tensors that DGC sends dense is applied to averages.
        dense = {
            name: value
            for name, value in momenta.items()
            if name not in velocities and self._specs.get(name, "").startswith(MOMENTUM_CORRECTION)
        }
        for kind, of_kind in [
            *((kind, arrays[kind]) for kind in REPLICATED_KINDS),
            ("momentum", dense),
        ]:
            if of_kind:
                values[f"{kind} of {len(of_kind)} tensors"] = _digest_arrays(of_kind)
        return values

    def has_residual(self, resolved: Resolved) -> bool:
        """Whether a part of a tensor's gradients is still unsent."""
        residuals = self.arrays["residual"]
        if not resolved.cut:
            return resolved.key.name in residuals
        return any(key.name in residuals for key in resolved.keys)

    def count(self, names: Collection[str]) -> list[int]:
        """Count one more average of tensors; returns the numbers of earlier averages."""
        rounds = self._rounds
        steps = [rounds.get(name, 0) for name in names]
        rounds.update(zip(names, [step + 1 for step in steps], strict=True))
        return steps

    def go_dense(self, names: Collection[str]) -> None:
        """Forget the arrays of tensors that travel dense, with nothing unsent."""
        self.begin_copies(names)
        specs, dense = self._specs, DENSE_SPEC.canonical
        for name in names:
            if specs.get(name) != dense:
                self.changes += 1
                self._forget(name, STATE_KINDS)
                specs[name] = dense

    def begin(
        self, resolved: Sequence[Resolved], grads: Sequence[FloatArray]
    ) -> tuple[Sequence[FloatArray], list[int]]:
        """Begin a round, which counts as an average of each tensor; tensors with another spec than in the last round
        get the arrays of that one.

        Returns:
            The gradients as a step of mixed precision sends them; plus the residual of the last spec where the
            present one keeps none. And the numbers of earlier averages.
        """
        names = [tensor.key.name for tensor in resolved]
        self.begin_copies(names)
        steps = self.count(names)
        looks = self.samples.every or any(step and step % CHECK_EVERY == 0 for step in set(steps))
        specs = self._specs
        changed = []
        for place, (name, tensor) in enumerate(zip(names, resolved, strict=True)):
            if tensor.reset_every and steps[place] % tensor.reset_every == 0:
                self.arrays["residual"].pop(name, None)  # its memory begins again
            if looks:
                self._look(steps[place], tensor, grads[place])
            if specs.get(name) != tensor.spec.canonical:
                changed.append(place)
        sent = poisoned(grads) if self.loss_scale.active else grads
        if changed:
            sent = list(sent)
            for place in changed:
                sent[place] = self._hand_over(resolved[place], sent[place])
        return sent, steps

    def _look(self, step: int, resolved: Resolved, grad: FloatArray) -> None:
        name, spec = resolved.key.name, resolved.spec
        residual = self.arrays["residual"].get(name)
        self.samples.look(step, spec, name, grad, residual)
        if residual is not None and step and step % CHECK_EVERY == 0:
            self.residuals.look(step, spec.canonical, grad, residual)

    def begin_copies(self, names: Iterable[str]) -> None:
        """Copy the state of tensors before a round, if the step may be taken back."""
        if self.discards or self.loss_scale.active:
            self.keep(names)

    def keep(self, names: Iterable[str]) -> None:
        """Copy the state of tensors, before a round changes it."""
        self.copies.keep({name: Before(self._specs.get(name), self.step(name)) for name in names})

    def put_back(self, names: Iterable[str] | None = None) -> None:
        """Give tensors the state that they had before the present step; see `StepCopies.put_back`."""
        restored = self.copies.put_back(names)
        self._put_back_specs(restored)
        for name, before in restored.items():
            if before.rounds:
                self._rounds[name] = before.rounds
            else:
                self._rounds.pop(name, None)

    def _put_back_specs(self, restored: Mapping[str, Before]) -> None:
        self.changes += len(restored)
        for name, before in restored.items():
            if before.spec is None:
                self._specs.pop(name, None)
            else:
                self._specs[name] = before.spec

    def _hand_over(self, resolved: Resolved, grad: FloatArray) -> FloatArray:
        """Give the arrays of a tensor's last spec to its present one, which differs.

        Returns:
            The gradient, plus the residual of the last spec if this one keeps none.
        """
        name = resolved.key.name
        before = self._specs.get(name)
        now = resolved.spec
        self._specs[name] = now.canonical
        self.changes += 1
        if before is None:
            return grad
        old, new = state_of(parse(before)), state_of(now)
        # ``drop`` is for the state of an earlier phase. A tensor that goes dense within a phase, by
        # decision of the policy, hands its state over.
        if resolved.phase.state == "drop" and before != resolved.phase.use.canonical:
            new = {}
        else:
            unsent = self._on_host("residual", name)
            rate = self.arrays[RESIDUAL_LR].get(name)
            if unsent is not None and rate is not None and RESIDUAL_LR not in new:
                # The residual leaves the memory that would scale it.
                unsent *= np.float32(self.rates.factor(name, rate))
            if unsent is not None and "residual" not in new:
                grad = grad + unsent.reshape(grad.shape)
        self._forget(
            name, [kind for kind in STATE_KINDS if kind not in new or new[kind] != old.get(kind)]
        )
        return grad

    def continues(self, resolved: Resolved) -> bool:
        """Whether `begin` hands nothing over: a tensor's arrays stay those of its spec, or it has none."""
        last = self._specs.get(resolved.key.name)
        return last in (None, DENSE_SPEC.canonical, resolved.spec.canonical)

    def _on_host(self, kind: str, name: str) -> FloatArray | None:
        """A tensor's array, moved to the host; None if there is none."""
        array = self.arrays[kind].get(name)
        if array is not None:
            array = self.arrays[kind][name] = _on_host(array)
        return array

    def _forget(self, name: str, kinds: Iterable[str]) -> None:
        for kind in kinds:
            self.arrays[kind].pop(name, None)

    def set_loss_scale(self, scale: float) -> None:
        """Begin a step with this factor of the loss; see `Pipeline.set_loss_scale`."""
        # Counters go on: the ranks have made the step, and then skipped its result.
        self._put_back_specs(self.loss_scale.set(scale))

    def to_dict(self) -> State:
        """Plain data and copies of all arrays; see `Pipeline.state_dict`."""
        return {
            "version": STATE_VERSION,
            "rank": self.rank,
            "world_size": self.world_size,
            "ranks_per_node": self.ranks_per_node,
            "rounds": dict(self._rounds),
            "specs": dict(self._specs),
            "loss_scale": self.loss_scale.scale,
            **{kind: _copies(arrays) for kind, arrays in self.arrays.items()},
        }

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Any]:
        """Replace everything by a saved state; see `Pipeline.load_state_dict`.

        Returns:
            The policy's decisions in it; none at another world size.
        """
        states = checked_states(state)
        by_rank = {int(saved["rank"]): saved for saved in states}
        saved_size = int(states[0]["world_size"])
        saved_nodes = int(states[0]["ranks_per_node"])
        if isinstance(state, Mapping):
            self._check_own(int(state["rank"]), saved_size, saved_nodes)
        elif len(by_rank) != len(states) or len(by_rank) != saved_size:
            raise StateError(
                f"a list of compressor states must hold each of the {saved_size} ranks once; "
                f"it holds ranks {sorted(int(saved['rank']) for saved in states)}"
            )
        if (saved_size, saved_nodes) == (self.world_size, self.ranks_per_node):
            arrays = {kind: _copies(by_rank[self.rank].get(kind, {})) for kind in STATE_KINDS}
        else:
            arrays = _merged([by_rank[rank] for rank in range(saved_size)])
        rounds: dict[str, int] = {}
        specs: dict[str, str] = {}
        for saved in states:
            for name, count in saved["rounds"].items():
                rounds[name] = max(rounds.get(name, 0), int(count))
            specs.update(saved["specs"])
        for kind, mine in self.arrays.items():
            mine.clear()
            mine.update(arrays.get(kind, {}))
        self._rounds = rounds
        self._specs = specs
        self.changes += 1
        self.loss_scale.load(float(states[0]["loss_scale"]))
        return list(by_rank[self.rank]["decisions"]) if saved_size == self.world_size else []

    def _check_own(self, rank: int, saved_size: int, saved_nodes: int) -> None:
        if (rank, saved_size) != (self.rank, self.world_size):
            raise StateError(
                f"this is the compressor state of rank {rank} of {saved_size}, and this is rank "
                f"{self.rank} of {self.world_size}: load each rank's own state, or give "
                f"load_state_dict the list of all {saved_size} ranks' states"
            )
        if saved_nodes != self.ranks_per_node:
            raise StateError(
                f"this compressor state was saved with {saved_nodes} ranks in a node, and this run "
                f"has {self.ranks_per_node}: give load_state_dict the list of all {saved_size} "
                "ranks' states"
            )


def _merged(ranks: Sequence[Mapping[str, Any]]) -> MemoryState:
    """The arrays for every rank at another world size: means, and replicated arrays unchanged."""
    merged = {
        kind: (_same if kind in REPLICATED_KINDS else _mean)(
            [rank.get(kind, {}) for rank in ranks], kind
        )
        for kind in STATE_KINDS
        # The first two are of one rank, and soon found again; the last follows from the estimates.
        if kind not in ("carried", NORM, ESTIMATE_ROWS)
    }
    # The mean is every rank's estimate then; the mean over the ranks' own has other roundings.
    for name in merged[ESTIMATE_MEAN]:
        merged[ESTIMATE].pop(name, None)
    return merged


def _digest_arrays(arrays: Arrays) -> str:
    digest = blake2b(digest_size=8)
    for name in sorted(arrays):
        array = _on_host(arrays[name])
        digest.update(f"{name}\0{array.nbytes}\0".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _digest(values: object) -> str:
    return blake2b(repr(values).encode(), digest_size=8).hexdigest()


def _copies(arrays: Mapping[str, Any]) -> Arrays:
    return {
        name: np.array(_on_host(value), dtype=np.float32).reshape(-1)
        for name, value in arrays.items()
    }


def _on_host(array: FloatArray) -> FloatArray:
    return device_of(array).to_host(array)


def _same(of_ranks: Sequence[Mapping[str, Any]], kind: str) -> Arrays:
    """Arrays that must be equal on all ranks."""
    first, *others = (_copies(arrays) for arrays in of_ranks)
    for other in others:
        for name in sorted({*first, *other}):
            if name not in first or name not in other or not _equal(first[name], other[name]):
                raise StateError(
                    f"the ranks' {kind} of '{name}' differ, but are equal on all ranks of one run: "
                    "these are states of different runs or steps"
                )
    return first


def _equal(a: FloatArray, b: FloatArray) -> bool:
    return a.tobytes() == b.tobytes()


def _mean(of_ranks: Sequence[Mapping[str, Any]], kind: str) -> Arrays:
    """The mean over ranks, summed in rank order; a rank without an array counts as zero."""
    totals: Arrays = {}
    for arrays in of_ranks:
        for name, value in _copies(arrays).items():
            if name not in totals:
                totals[name] = value
            elif totals[name].size == value.size:
                totals[name] += value
            else:
                raise StateError(
                    f"the ranks' {kind}s of '{name}' have {totals[name].size} and {value.size} "
                    "elements: these are states of different models"
                )
    for value in totals.values():
        value /= np.float32(len(of_ranks))
    return totals
