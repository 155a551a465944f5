"""Training with local steps: every rank trains alone, and the ranks average their changes at times.

::

    outer = OuterStep("int4", model, every=30)
    for batch in loader:
        loss(model, batch).backward()
        optimizer.step()
        outer.step()
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from gradcomp import Config, get_codec
from gradcomp.adapter_api import (
    AllReduce,
    Collector,
    Driver,
    FloatArray,
    OuterSGD,
    Pipeline,
    ProfiledEngine,
    Route,
    Spec,
    agreement_line,
    check_agreement,
    differences,
    profile_as_configured,
    read_object,
    state_of,
)
from gradcomp.errors import ConfigError, ProtocolError, StateError
from torch_compressors.gather import gather_bytes, gather_texts
from torch_compressors.gloo import GlooEngine, message_limit
from torch_compressors.roll_call import naming_the_absent
from torch_compressors.shared.parameters import parameter_bytes
from torch_compressors.shared.state import TensorControls

__all__ = ["OuterStep"]


class OuterStep(TensorControls):
    """Averages the ranks' changes of a model after every ``every`` inner steps.

    A rank's pseudo-gradient is ``start - parameters``, with the values after the last outer step
    as ``start``. The ranks average it through a spec and its error feedback, and all make the same
    step of `OuterSGD` from ``start``. Between outer steps nothing travels. The inner optimizer may
    be any; its state stays with the rank. Settings of published methods: docs/outer.md.

    Every rank must construct it at the same time; parameters and buffers of rank 0 are then
    everyone's. Buffers differ between ranks afterwards, as each rank's batches do.

    Args:
        config: a spec for all pseudo-gradients that are not small, or a `gradcomp.Config`.
        model: not wrapped in DistributedDataParallel. Its trainable parameters must be floating;
            sums are float32.
        every: number of inner steps per outer step, H, at least 1.
        lr: outer learning rate, in (0, 10]; by default 0.7, or 1 with error feedback.
        momentum: outer momentum, in [0, 1); by default 0.9, or 0 with error feedback: what waits in
            a residual arrives late, and momentum amplifies it, see docs/outer.md.
        nesterov: Nesterov's momentum.
        timeout: see `torch_compressors.ddp_hook`.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: an argument is not in its range; or the configuration has momentum correction,
            ``dion``, a learning rate (``lr=scale``), ``two_level`` or ``policy: auto``.
        ProtocolError: the ranks have different arguments or models.
    """

    def __init__(
        self,
        config: str | Config,
        model: torch.nn.Module,
        *,
        every: int = 30,
        lr: float | None = None,
        momentum: float | None = None,
        nesterov: bool = True,
        timeout: timedelta | None = None,
    ) -> None:
        self.config = Config.from_spec(config) if isinstance(config, str) else config
        self.every = every
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._check_arguments(model)
        feeds_back = any("residual" in state_of(spec) for spec in self.config.specs)
        lr = (1.0 if feeds_back else 0.7) if lr is None else lr
        momentum = (0.0 if feeds_back else 0.9) if momentum is None else momentum
        if momentum and any(_waits(spec) for spec in self.config.specs):
            warnings.warn(
                f"outer momentum {momentum} with error feedback of a sparse codec "
                f"('{self.config.compress.default}') often diverges: use momentum=0, or a spec "
                "without a residual",
                stacklevel=2,
            )
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        world = dist.group.WORLD
        assert world is not None
        settings = {"every": every, "lr": lr, "momentum": momentum, "nesterov": nesterov}
        with naming_the_absent(world, "OuterStep"):
            check_agreement(gather_texts(agreement_line(self.config, shapes, None), world))
            _check_settings(gather_texts(json.dumps(settings), world))
        self._pipeline = Pipeline(self.config, world.rank(), world.size())
        own = dist.new_group(dist.get_process_group_ranks(world), timeout, "gloo")
        limit = message_limit(map(math.prod, shapes.values()), self.config.compress.bucket_bytes)
        self._gloo = GlooEngine({"all": own}, limit, "OuterStep")
        self._engine = ProfiledEngine(self._gloo, profile_as_configured(self._pipeline).stats)
        self._shapes = shapes
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        self._outer = OuterSGD(self._read(), lr, momentum, nesterov)
        self._given = self._outer.start
        self._inner_steps = 0

    @property
    def pipeline(self) -> Pipeline:
        """See `gradcomp.runtime.controls.Controls`."""
        return self._pipeline

    @property
    def inner_steps(self) -> int:
        """Number of inner steps so far."""
        return self._inner_steps

    def step(self) -> bool:
        """Count an inner step; after every ``every``-th one, average and make the outer step.

        Every rank must call it after each of its inner steps, also after one that a GradScaler has
        skipped: all must call it equally often.

        Returns:
            Whether an outer step was made.

        Raises:
            ProtocolError: another rank does not answer, or is at another step.
        """
        self._inner_steps += 1
        if self._inner_steps % self.every:
            return False
        self._average()
        return True

    @torch.no_grad()
    def _average(self) -> None:
        collector = self._collector
        self._report(collector.begin_step())
        now = self._read()
        handles: dict[str, Any] = {}
        for name, value in now.items():
            change = self._given[name] - value
            resolved = collector.resolve(name, self._shapes[name])
            if collector.route(resolved, sums_dtype=True) is Route.DENSE:
                self._pipeline.count_dense(name, change.nbytes)
                handles[name] = self._engine.start(AllReduce(name, change))
            else:
                collector.add(resolved, change.reshape(self._shapes[name]), change.nbytes)
        self._gloo.flush()
        collector.check()
        for name in now:
            if name in handles:
                average = self._engine.finish(handles[name])
            else:
                average = collector.finish(name)
            self._write(name, self._outer.step(name, average.reshape(-1)))
        collector.end_step()
        self._given = self._values_given()

    @cached_property
    def _collector(self) -> Collector:
        return Collector(
            Driver(self._engine),
            self._pipeline,
            self._shapes,
            overwrite=True,
            parameters=lambda: parameter_bytes(self._parameters.items()),
        )

    def _check_arguments(self, model: torch.nn.Module) -> None:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise ConfigError(
                "the model is a DistributedDataParallel, which averages every gradient already: "
                "give OuterStep the module itself"
            )
        if self.every < 1:
            raise ConfigError(f"every is {self.every}; it must be at least 1 inner step")
        for name, p in self._parameters.items():
            if not p.is_floating_point():
                raise ConfigError(f"'{name}' is of {p.dtype}; parameters must be floating")
        if self.config.momentum_correction is not None or self.config.dion is not None:
            raise ConfigError(
                f"'{self.config.compress.default}' has a momentum of its own: leave it to the outer "
                "momentum, and use a codec, such as residual|topk(ratio=0.01)"
            )
        if self.config.scales_lr:
            raise ConfigError(
                "lr=scale follows the rate of an optimizer that applies averages, and the outer "
                "learning rate is constant: leave out lr=scale"
            )
        if self.config.compress.two_level:
            raise ConfigError("compress.exchange: two_level is for ddp_hook; remove it")

    # Values -------------------------------------------------------------------------------------

    def _read(self) -> dict[str, FloatArray]:
        """The parameters, flat float32; views where that needs no copy."""
        return {
            name: p.detach().to("cpu", torch.float32).reshape(-1).numpy()
            for name, p in self._parameters.items()
        }

    @torch.no_grad()
    def _write(self, name: str, value: FloatArray) -> None:
        p = self._parameters[name]
        p.copy_(torch.from_numpy(value).view(p.shape))

    def _values_given(self) -> dict[str, FloatArray]:
        """The values from which ranks train on: rounded, where parameters are not float32."""
        if all(p.dtype == torch.float32 for p in self._parameters.values()):
            return self._outer.start
        return {name: value.copy() for name, value in self._read().items()}

    # Checkpoints --------------------------------------------------------------------------------

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        world = dist.group.WORLD
        assert world is not None
        return gather_bytes(data, world)

    def _state_to_save(self) -> Mapping[str, Any]:
        return {
            "compression": self._pipeline.state_dict(),
            "outer": self._outer.state_dict(),
            "inner_steps": self._inner_steps,
            "values": self._read(),
        }

    def _take_saved(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        same_ranks = isinstance(states, Mapping)
        rows: Sequence[Mapping[str, Any]] = [states] if isinstance(states, Mapping) else states
        first = rows[0]
        steps = first.get("inner_steps")
        if not isinstance(steps, int) or steps < 0 or any("compression" not in one for one in rows):
            raise StateError(
                "the checkpoint is of another object than an OuterStep: load the directory that "
                "OuterStep.save has written"
            )
        # All checks come before any change.
        for kind in ("start", "momentum"):
            self._outer.checked(first.get("outer"), kind)
        values = self._outer.checked(first, "values")
        compression = [one["compression"] for one in rows]
        self._pipeline.load_state_dict(compression[0] if same_ranks else compression)
        self._outer.load_state_dict(first["outer"])
        for name, value in self._outer.start.items():
            self._write(name, value)
        self._given = self._values_given()
        if same_ranks:
            for name, value in values.items():
                self._write(name, value)
        else:  # the changes of other ranks since the last outer step belong to nobody here
            steps -= steps % self.every
        self._inner_steps = steps


def _check_settings(texts: Sequence[str]) -> None:
    rows = [read_object(text, rank) for rank, text in enumerate(texts)]
    lines = differences(rows)
    if lines:
        raise ProtocolError(
            f"the ranks' arguments of OuterStep differ:\n{lines}\nGive all ranks the same arguments"
        )


def _waits(spec: Spec) -> bool:
    """Whether most elements wait in a residual for many rounds."""
    sparse = spec.algorithm is None and "sparse" in get_codec(spec.first_codec).caps
    return sparse and "residual" in state_of(spec)
