"""Compression without the plug-in library, for codecs with payloads that servers can add."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import byteps.torch as bps
import torch

from byteps_compressors.torch.checks import check_config
from byteps_compressors.torch.environment import check_initialized
from gradcomp import Config, get_codec, list_codecs
from gradcomp.adapter_api import AllReduce, Pipeline, Round, Spec, StartReport, Stats
from gradcomp.errors import ConfigError, ProtocolError
from gradcomp_torch.parameters import uncompiled

__all__ = ["Compression"]


@dataclass
class _Context:
    """A compressed gradient between compress() and decompress()."""

    payload: torch.Tensor
    round: Round
    shape: torch.Size
    dtype: torch.dtype
    factor: float  # of the payload before the sum


class _ByName(type):
    """Codecs as attributes: ``Compression.randomk(model.named_parameters(), ratio=0.1)``."""

    def __getattr__(cls, name: str) -> Callable[..., Compression]:
        if name not in list_codecs():
            raise AttributeError(f"Compression has no codec '{name}': see gradcomp list")
        return functools.partial(_by_name, name)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *list_codecs()]


def _by_name(
    codec: str,
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    **params: float | int | bool | str,
) -> Compression:
    values = ",".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in params.items()
    )
    return Compression(f"{codec}({values})" if values else codec, named_parameters)


class Compression(metaclass=_ByName):
    """A compressor for the ``compression`` argument of the stock ``bps.DistributedOptimizer``.

    Servers add the payloads as dense tensors, so only summable codecs are possible: fp16, randomk,
    randomblock, sketch. Neither workers nor servers need the plug-in. `DistributedOptimizer` runs
    all codecs.

    Args:
        config: a spec such as ``"randomk(ratio=0.1)"``, or a `gradcomp.Config`.
        named_parameters: ``model.named_parameters()``.

    Raises:
        SpecError: the spec is invalid.
        ConfigError: payloads of a codec cannot be added, or a schedule changes their size.

    Example::

        compression = Compression("residual|randomk(ratio=0.1)", model.named_parameters())
        optimizer = bps.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression)
    """

    def __init__(
        self, config: str | Config, named_parameters: Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        self.config = Config.of(config, measures=False)
        check_config(self.config)
        for spec in self.config.specs:
            _check_summable(spec)
        self._parameters = uncompiled(named_parameters)
        self._names: dict[int, str] = {}
        self._running: dict[int, _Context] = {}

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """This worker's compression state, made at first use: it needs an initialized BytePS."""
        check_initialized()
        pipeline = Pipeline(self.config, bps.rank(), bps.size())
        pipeline.stats.engine = "BytePS"
        self._report = StartReport(pipeline)
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters}
        self._report.begin(pipeline.resolve_all(shapes))
        return pipeline

    def set_lr(self, lr: float | Mapping[str, float]) -> None:
        """Set the learning rate of the coming step; see `gradcomp.Pipeline.set_lr`."""
        self.pipeline.set_lr(lr)

    def set_loss_scale(self, scale: float) -> None:
        """Begin a step of mixed precision; see `gradcomp.Pipeline.set_loss_scale`."""
        self.pipeline.set_loss_scale(scale)

    def allow_discard(self) -> None:
        """Copy what each step changes, for `discard_step`; on every worker."""
        self.pipeline.last_step.allow_discard()

    def discard_step(self) -> None:
        """Take back the last step, after ``optimizer.synchronize()``, on every worker."""
        if self._running:
            raise ProtocolError(
                "the step's averages are missing: call optimizer.synchronize() before discard_step()"
            )
        self.pipeline.last_step.discard()

    @property
    def stats(self) -> Stats:
        """Bytes that this worker has handed to BytePS."""
        return self.pipeline.stats

    # The two methods that BytePS calls.

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the payload of a gradient, which BytePS averages, and no context."""
        if self.pipeline.stats.compares:
            raise ConfigError(
                "BytePS averages a gradient once, so errors cannot be measured: use "
                "start_profile() without error=True"
            )
        if not self._running:
            self.pipeline.last_step.begin()
        values = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()
        running = self.pipeline.round(self._name_of(tensor), values)
        try:
            request = next(running)
        except StopIteration:  # pragma: no cover
            raise AssertionError("a summable payload takes one exchange") from None
        assert isinstance(request, AllReduce)  # _check_summable made sure
        # A copy: BytePS averages in place, and dense payloads are views of the gradient.
        factor = AllReduce.headroom(request.array.dtype, self.pipeline.world_size)
        payload = torch.from_numpy(request.array * request.array.dtype.type(factor)).to(
            tensor.device
        )
        # The key is the payload, not a context: BytePS' optimizer passes decompress() the context of
        # the last gradient for all gradients, but the same tensor object that compress() returned.
        self._running[id(payload)] = _Context(payload, running, tensor.shape, tensor.dtype, factor)
        return payload, None

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Decode an averaged payload into the average of the gradients; ignores ``context``."""
        context = self._running.pop(id(tensor))
        try:
            context.round.send(tensor.cpu().numpy())
        except StopIteration as stop:
            average: torch.Tensor = torch.from_numpy(stop.value).view(context.shape)
            average *= 1 / context.factor
            return average.to(device=tensor.device, dtype=context.dtype)
        raise AssertionError("a summable payload takes one exchange")

    def _name_of(self, grad: torch.Tensor) -> str:
        name = self._names.get(id(grad))
        if name is None:
            # Parameters keep their gradient tensors, so the table is rebuilt only for new ones.
            self._names = {
                id(parameter.grad): name
                for name, parameter in self._parameters
                if parameter.grad is not None
            }
            name = self._names.get(id(grad))
        if name is None:
            raise ConfigError(
                "a gradient belongs to no parameter in named_parameters: give Compression the "
                "named_parameters() of the whole model"
            )
        return name


def _check_summable(spec: Spec) -> None:
    instead = (
        f"use byteps_compressors.torch.DistributedOptimizer(..., compression='{spec}'), which "
        "compresses inside BytePS' workers and servers"
    )
    if spec.algorithm is not None:
        raise ConfigError(
            f"'{spec}' takes several exchanges a step, and BytePS has one: use Horovod for it"
        )
    if "summable" not in get_codec(spec.first_codec).caps:
        raise ConfigError(
            f"BytePS' servers add up what Compression hands over, and payloads of '{spec}' cannot "
            f"be added: {instead}"
        )
    if spec.scheduled:
        raise ConfigError(
            f"'{spec}' has payloads of different sizes, and BytePS wants one size: {instead}"
        )
