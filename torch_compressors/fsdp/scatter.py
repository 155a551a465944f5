"""Compressed reduce-scatter of the gradients of models that ``fully_shard`` has sharded (FSDP2).

::

    fully_shard(model)
    state = fsdp_reduce_scatter("residual|int4", model)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from gradcomp import Config
from gradcomp.adapter_api import (
    Collector,
    Driver,
    Pipeline,
    Resolved,
    agreement_line,
    check_agreement,
    room,
)
from gradcomp.errors import ConfigError, StateError
from gradcomp_torch.compat import require
from gradcomp_torch.devices import TensorArray
from gradcomp_torch.float_copies import FloatCopies
from gradcomp_torch.host_copies import HostCopies, to_device
from gradcomp_torch.parameters import check_real, kinds_of
from gradcomp_torch.staging import refuse_recording
from torch_compressors.fsdp.sharded import ShardedControls
from torch_compressors.fsdp.units import Unit, shard_group, units_of
from torch_compressors.gloo.device_engine import connect_devices
from torch_compressors.gloo.engine import Closing, GlooEngine, message_limit
from torch_compressors.gloo.gather import gather_texts
from torch_compressors.gloo.liveness import naming_the_absent
from torch_compressors.gloo.nodes import exchange_groups
from torch_compressors.gloo.process_group import use_own_processors
from torch_compressors.scaler import ScalerControls

__all__ = ["ReduceScatterCompression", "fsdp_reduce_scatter"]

_log = logging.getLogger(__name__)


def fsdp_reduce_scatter(
    config: str | Config, model: torch.nn.Module, timeout: timedelta | None = None
) -> ReduceScatterCompression:
    """Compress the reduce-scatter of every module that ``fully_shard`` has wrapped.

    Every rank must call it, between two steps. Each rank sends each other rank the encoded rows of
    that rank's shards, and adds the decoded rows of its own shards in float32. Parameters have their
    names and whole shapes in the model.

    Sets ``set_custom_reduce_scatter``, ``set_force_sum_reduction_for_comms`` and
    ``set_reduce_scatter_unused_params``.

    Args:
        config: a spec such as ``"residual|int4"`` for all parameters, or a `gradcomp.Config`; the
            same on every rank. With a spec, parameters with at most one dimension or under 4096
            elements travel uncompressed.
        model: sharded over a mesh of one dimension, or of two, (replicate, shard). With two, the
            all-reduce over the first stays uncompressed.
        timeout: see `torch_compressors.ddp_hook`.

    Returns:
        The state, which has `save`, `load`, `set_epoch` and `stats`.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: the model is not sharded, or not over the same ranks everywhere; or the
            configuration has an algorithm such as ``powersgd``, ``momentum_correction``, an
            exchange, ``policy: auto``, ``check_replicas_every`` or ``stats.error``.
        ProtocolError: the ranks run different compression or different models.
    """
    return ReduceScatterCompression(config, model, timeout)


class ReduceScatterCompression(Closing, ShardedControls, ScalerControls):
    """The compression of one model's reduce-scatter on this rank; made by `fsdp_reduce_scatter`.

    Attributes:
        uncompressed: the reason, by name, for each parameter that travels uncompressed.
    """

    def __init__(
        self, config: str | Config, model: torch.nn.Module, timeout: timedelta | None = None
    ) -> None:
        self.config = Config.of(config, measures=False)
        check_real(model.named_parameters(), _NAME)
        units = units_of(model)
        group = shard_group(units)
        self._shapes = {
            sharded.name: sharded.shape for unit in units for sharded in unit.parameters
        }
        self._rearranged = [
            sharded.name
            for unit in units
            for sharded in unit.parameters
            if sharded.shape != tuple(sharded.parameter.shape)
        ]
        kinds = kinds_of((part.name, part.parameter) for unit in units for part in unit.parameters)
        with naming_the_absent(group, "fsdp_reduce_scatter"):
            line = agreement_line(self.config, self._shapes, None, kinds=kinds)
            check_agreement(gather_texts(line, group))
        self._refuse_options()
        use_own_processors()
        self._pipeline = Pipeline(self.config, group.rank(), group.size(), scatters=True)
        if self._pipeline.policy.measures:
            raise ConfigError("compress.policy: auto is for ddp_hook; use policy: always")
        self.uncompressed = self._reasons()
        numels = [part.numel for unit in units for part in unit.parameters]
        limit = message_limit(numels, 4 * sum(numels))
        self._gloo = GlooEngine(exchange_groups(group, 1, timeout), limit, _NAME)
        self._devices, engine = connect_devices(
            self._pipeline, self._gloo, group, model.parameters(), timeout
        )
        self._driver = Driver(self._pipeline.profiled(engine, "FSDP"))
        self._reduced: set[str] = set()
        self._floats = FloatCopies()
        for unit in units:
            _install(unit, _ReduceScatter(self, unit))

    def _refuse_options(self) -> None:
        if self.config.check_replicas_every:
            raise ConfigError(
                "check_replicas_every is for ddp_hook: shards have no replicas; remove it"
            )
        if self.config.stats.error:
            raise ConfigError(
                "stats.error is for ddp_hook: a rank does not get the whole average; remove it"
            )

    def _reasons(self) -> dict[str, str]:
        """The reasons of `uncompressed`; the first rank logs them."""
        reasons: dict[str, str] = {}
        by_reason: dict[str, list[str]] = {}
        for name, shape in self._shapes.items():
            rule, schedule, *_ = self.config.resolve(name, shape)
            if all(spec.canonical == "identity" for spec in schedule.specs):
                reasons[name] = rule
                by_reason.setdefault(rule, []).append(name)
        if reasons and self._pipeline.rank == 0:
            listed = "; ".join(f"{rule}: {', '.join(names)}" for rule, names in by_reason.items())
            few = sum(math.prod(self._shapes[name]) for name in reasons)
            percent = 100 * few / sum(map(math.prod, self._shapes.values()))
            _log.info(
                f"gradcomp: {_NAME}: {len(reasons)} of {len(self._shapes)} parameters, {percent:.2g} "
                f"% of the elements, travel uncompressed ({listed})"
            )
        return reasons

    @cached_property
    def _collector(self) -> Collector:
        """For the comparison of the ranks in each step; made in the first one, as for DDP."""
        return Collector(self._driver, self._pipeline, self._shapes)

    def _check_mesh(self, states: Sequence[Mapping[str, Any]]) -> None:
        if self._pipeline.world_size != dist.get_world_size() or self._rearranged:
            super()._check_mesh(states)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state: this rank's own, or the list of all ranks' states.

        See `Pipeline.load_state_dict`; the ranks are those that share the model.

        Raises:
            StateError: the state does not fit.
        """
        if not isinstance(state, Mapping) and self._rearranged:
            raise StateError(
                f"'{self._rearranged[0]}' is sharded by another dimension than the first, and its "
                "residual depends on the ranks' number: load each rank's own state"
            )
        super().load_state_dict(state)

    @torch.no_grad()
    def reduce(self, unit: Unit, output: torch.Tensor, given: torch.Tensor, op: Any) -> None:
        """Reduce the gradients of a unit; ``fully_shard`` calls it in the same order on every rank.

        Args:
            output: flat, for this rank's rows of each parameter, one after the other.
            given: flat, the same of every rank in rank order.
            op: SUM or AVG.

        Raises:
            ConfigError: ``op`` is another one, a gradient is missing, or a CUDA graph is recorded.
            ProtocolError: another rank does not answer, or is at another step.
        """
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ConfigError(
                f"fully_shard asks for the reduction {op}; {_NAME} has SUM and AVG: call "
                "set_force_sum_reduction_for_comms(True) on the module"
            )
        refuse_recording(given.device, _NAME)
        ranks, rank = self._pipeline.world_size, self._pipeline.rank
        parameters = [sharded for sharded in unit.parameters if sharded.parameter.requires_grad]
        of_ranks = given.detach().view(ranks, -1)
        if of_ranks.shape[1] != sum(sharded.chunk for sharded in parameters):
            if hasattr(unit.module, _OF_UNUSED):
                remedy = f"call {_OF_UNUSED}(True) on the model"
            else:
                remedy = "use it in each step, or PyTorch 2.13 or later, which adds zeros"
            raise ConfigError(
                f"the gradients of '{unit.name}' have {given.numel()} elements, and those of its "
                f"parameters {ranks * sum(sharded.chunk for sharded in parameters)}: a parameter has no "
                f"gradient in this step: {remedy}"
            )
        if unit.name in self._reduced or not self._reduced:
            self._reduced.clear()
            self._follow_scale()
            self._collector.begin_step()
        self._reduced.add(unit.name)
        rows, dense_elements, begin = {}, 0, 0
        for sharded in parameters:
            rows[sharded.name] = of_ranks[:, begin : begin + sharded.chunk]
            own_elements = min(max(sharded.numel - rank * sharded.chunk, 0), sharded.chunk)
            dense_elements += sharded.numel - own_elements
            begin += sharded.chunk
        resolved = self._pipeline.resolve_all(
            {sharded.name: sharded.shape for sharded in parameters}
        )
        sums = self._driver.run(
            self._pipeline.bucket_round(
                unit.name,
                self._arrays(rows, resolved, given.device),
                dense_elements * given.element_size(),
                overwrite=True,
                resolved=resolved,
            )
        )
        self._collector.check()
        begin = 0
        output.zero_()
        for sharded, total in zip(parameters, _tensors(sums, output.device), strict=True):
            output[begin : begin + total.numel()].copy_(total)
            begin += sharded.chunk
        if op == dist.ReduceOp.AVG:
            output.div_(ranks)
        self._collector.end_step()

    def _arrays(
        self,
        rows: Mapping[str, torch.Tensor],
        resolved: Mapping[str, Resolved],
        place: torch.device,
    ) -> dict[str, Any]:
        """Gradients as rounds take them: on their device, where kernels take them, else on the host.

        Args:
            rows: of each gradient those of every rank, [ranks, chunk]. Padding is at the end: the last
                ranks have fewer rows or none.
        """
        device = self._devices.of(place)
        arrays: dict[str, Any] = {}
        others: dict[str, torch.Tensor] = {}
        for name, gradient in rows.items():
            shape = resolved[name].key.shape
            if device is not None and self._pipeline.on_device(resolved[name], device):
                floats = self._floats.of({name: gradient})[name]
                arrays[name] = device.array(_without_padding(floats, shape))
            elif place.type == "cpu":
                memory = torch.from_numpy(room(gradient.numel()))
                floats = memory.view(gradient.shape).copy_(gradient)
                arrays[name] = _without_padding(floats, shape).numpy()
            else:
                others[name] = gradient.contiguous()
        copies = HostCopies(others)
        copies.wait()
        for name in others:
            floats = copies.arrays[name].to(torch.float32)
            arrays[name] = _without_padding(floats, resolved[name].key.shape).numpy()
        return {name: arrays[name] for name in rows}


def _without_padding(rows: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The rows of a gradient in its shape, without the padding at the end."""
    return rows.view(-1)[: math.prod(shape)].view(shape)


def _tensors(sums: Sequence[Any], place: torch.device) -> list[torch.Tensor]:
    """Sums as flat tensors of a device, to which those on the host come by one copy."""
    host = [torch.from_numpy(total) for total in sums if not isinstance(total, TensorArray)]
    if host and place.type != "cpu":
        sizes = [total.numel() for total in host]
        host = list(torch.split(to_device(torch.cat(host), place), sizes))
    arrived = iter(host)
    return [total.tensor if isinstance(total, TensorArray) else next(arrived) for total in sums]


_NAME = fsdp_reduce_scatter.__name__
_OF_UNUSED = "set_reduce_scatter_unused_params"
"""The method of a module, from PyTorch 2.13 on, with which unused parameters count as zero."""


class _ReduceScatter:
    """The interface ``ReduceScatter`` of ``fully_shard``, for one unit."""

    def __init__(self, state: ReduceScatterCompression, unit: Unit) -> None:
        self._state = state
        self._unit = unit

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        self._state.reduce(self._unit, output_tensor, input_tensor, op)


def _install(unit: Unit, comm: Any) -> None:
    module: Any = unit.module
    for method in ("set_custom_reduce_scatter", "set_force_sum_reduction_for_comms"):
        require(module, method, "2.9", _NAME)
    module.set_custom_reduce_scatter(comm)
    module.set_force_sum_reduction_for_comms(True)
    # Without it, an unused parameter is an error in the step.
    if hasattr(module, _OF_UNUSED):
        module.set_reduce_scatter_unused_params(True, recurse=False)
