"""Compression objects for the stock ``hvd.DistributedOptimizer``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from gradcomp import Config
from gradcomp.adapter_api import (
    AllReduce,
    Collector,
    FloatArray,
    RankGroup,
    Resolved,
    Round,
    Route,
    exchange_pattern,
)
from gradcomp.errors import ConfigError, ProtocolError
from gradcomp_torch.devices import TensorArray
from gradcomp_torch.float_copies import FloatCopies
from gradcomp_torch.gpu.device_lookup import Devices
from gradcomp_torch.host_copies import HostCopies, to_device, to_host
from gradcomp_torch.optimizers import check_optimizer
from gradcomp_torch.parameters import kinds_of, parameter_bytes
from gradcomp_torch.rates import rates_of
from gradcomp_torch.staging import refuse_recording
from gradcomp_torch.state import TensorControls
from horovod_compressors.compression import BaseCompression
from horovod_compressors.nodes import follower_set
from horovod_compressors.torch.encoder_thread import EncoderThread
from horovod_compressors.torch.engine import SUMMABLE_DTYPES, HorovodEngine
from horovod_compressors.torch.join import Attendance, check_takes_part, take_part
from horovod_compressors.torch.names import ParameterNames, calling_optimizer, check_averaged
from horovod_compressors.torch.wait import synchronize, wait_first

__all__ = ["Compression"]

NamedParameters = Iterable[tuple[str, torch.Tensor]]


# The contexts of a gradient that Horovod all-reduces uncompressed, of one that it all-reduces as pairs of
# real numbers, and of a tensor that is none.
_DENSE, _PAIRS, _NO_GRADIENT = object(), object(), object()


@dataclass
class _Context:
    """A compressed gradient, for decompress."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    copies: HostCopies | None  # of a gradient on a GPU, where no kernel takes it
    round: Round | None  # a linear round; the driver has all other rounds
    factor: float = 1.0  # of the payload of a linear round before the sum

    def on_host(self, tensor: torch.Tensor) -> tuple[FloatArray, Callable[[], None] | None]:
        """The gradient as float32 of the host, and a function that waits for its elements, if needed."""
        arrives: Callable[[], None] | None = None
        if tensor.device.type == "cpu":
            floats = tensor.detach().to(torch.float32).contiguous()
        else:
            self.copies = HostCopies({self.name: tensor.detach()})
            floats, arrives = self.copies.floats(self.name)
        return floats.view(tensor.shape).numpy(), arrives

    def restore(self, average: Any) -> torch.Tensor:
        """The average with the gradient's shape, dtype and device; a GPU's stream is computing it."""
        if isinstance(average, TensorArray):
            return average.tensor.view(self.shape).to(self.dtype)
        tensor = torch.from_numpy(average).view(self.shape)
        if self.copies is None:
            return tensor.to(self.dtype)
        host = self.copies.arrays[self.name].view(self.shape)
        if host.data_ptr() != tensor.data_ptr():  # else already in place
            host.copy_(tensor)
        result = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        self.copies.give_back({self.name: result})
        return result


def _check_nameless(config: Config) -> None:
    """Refuse a configuration that needs the names of parameters."""
    if config.stateful:
        spec = next(spec for spec in config.specs if spec.stateful)
        reason = f"'{spec}' keeps state between steps, by parameter name"
    elif config.switches:
        schedules = (schedule for _, schedule, *_ in config.compress.resolutions)
        schedule = next(schedule for schedule in schedules if schedule.switches)
        reason = f"'{schedule}' counts steps by parameter name"
    elif config.compress.policy == "auto":
        reason = "the policy 'auto' decides by parameter name"
    else:
        return
    raise ConfigError(f"{reason}: pass named_parameters=model.named_parameters() to Compression")


def _check_complex(resolved: Resolved, tensor: torch.Tensor) -> None:
    """Refuse a complex gradient of a spec that would compress real ones in more than one all-reduce."""
    if tensor.requires_grad or resolved.group is not None or not resolved.aggregator.linear:
        raise TypeError(
            f"a gradient of dtype {tensor.dtype} cannot take '{resolved.spec}' here: codecs work on real "
            "numbers, so complex ones travel uncompressed, with op=Average or op=Sum, without policy: auto, "
            "and with `identity` or specs with payloads that can be added: give the parameter a rule with "
            "`use: identity`, or make it real and use torch.view_as_complex on it"
        )


class Compression(TensorControls, BaseCompression):
    """A compressor for the ``compression`` argument of the stock ``hvd.DistributedOptimizer``.

    Summable payloads are all-reduced by Horovod itself. For any other spec ``compress`` starts the
    exchange in the background and gives Horovod a one-element token. ``decompress`` finishes the
    exchange; the token's reduced value must be that of the optimizer's op.

    Args:
        config: a spec such as ``"residual|topk(ratio=0.01)"`` for all tensors, ``"auto"`` for the
            preset of docs/which-compressor.md, or a `gradcomp.Config` with its own rules. With a
            spec, tensors with at most one dimension or under 4096 elements travel uncompressed. The
            same on every rank; a difference is an error on all ranks.
        named_parameters: ``model.named_parameters()``. Required if the configuration needs names:
            for state between steps (a memory, an algorithm), several specs in turn, or the policy
            ``auto``. By default the optimizer's own names.
        process_set: the process set of the optimizer.
        uneven: ranks may have different numbers of steps, and call `join` when their data has ended;
            the same on every rank.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: ``named_parameters`` is required and missing.

    Example::

        compression = Compression(named_parameters=model.named_parameters())
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression)
    """

    HOROVOD = hvd
    OPTIONS = ("named_parameters", "process_set", "uneven")
    OVERWRITE = True  # Horovod's optimizer replaces gradients by their averages

    _predivide_factor = 1.0  # that the optimizer has from Horovod, or from here

    def __init__(
        self,
        config: str | Config = "auto",
        named_parameters: NamedParameters | None = None,
        process_set: Any = hvd.global_process_set,
        uneven: bool = False,
    ) -> None:
        super().__init__(config, process_set)
        self._uneven = uneven
        if named_parameters is None:
            _check_nameless(self.config)
        self._names = ParameterNames(named_parameters)
        self._begin()

    def _begin(self) -> None:
        self._collector: Collector | None = None
        self._encoder_thread: EncoderThread | None = None
        self._collector_life = self._life()
        # True from a step's first gradient until the optimizer's first `decompress`.
        self._in_step = False
        self._scale: int | None = None  # of sums, relative to averages; None outside an optimizer
        self._devices = Devices(self.config.compress.device)
        self._floats = FloatCopies()
        self._on_device = False  # gradients of the named parameters come on a GPU
        # Horovod wants the tensors of a group on one device.
        self._host_tokens = False
        self._attendance = Attendance(self.process_set) if self._uneven else None
        self._divides = False  # Horovod, before the sum

    def join(self, optimizer: Any) -> int:
        """Take part in the steps of ranks that still have data, until no rank has any.

        A rank without data contributes gradients of zeros, and the rest of its residual. It makes
        every step of the optimizer with the learning rates of the others, so the ranks' parameters
        stay equal. Averages divide by all ranks, as after ``hvd.join()``. Other collectives of the
        script are not answered.

        Args:
            optimizer: the ``hvd.DistributedOptimizer`` with this compression.

        Returns:
            Number of steps that this rank has made without data: what its own schedule of learning
            rates has missed.

        Raises:
            ConfigError: the compression was made without ``uneven=True``, or the optimizer has groups.
        """
        if self._attendance is None:
            raise ConfigError("join() needs Compression(..., uneven=True), on every rank")
        check_takes_part(optimizer)
        attendance, steps = self._attendance, 0
        # Gradients of this rank do not begin steps now.
        self._attendance = None
        try:
            while (rates := attendance.wait(optimizer)) is not None:
                take_part(optimizer, rates)
                steps += 1
        finally:
            self._attendance = attendance
        return steps

    def _collect(
        self, collector: Collector, resolved: Resolved, tensor: torch.Tensor, context: _Context
    ) -> None:
        """Give a gradient to its bucket, on its device where kernels take it, else on the host."""
        thread = self._encoder_thread
        assert thread is not None  # made with the collector
        # The parts of a profiled step add up, without overlap.
        beside = self.stats.profile is None and thread.takes()
        device = self._devices.of(tensor.device)
        if device is not None and self.pipeline.on_device(resolved, device):
            name = resolved.key.name
            given = {name: tensor.detach()}
            arrays = self._floats.arrays(given, device, beside=thread.used)
            gradient, arrives = arrays[name], None
        else:
            gradient, arrives = context.on_host(tensor)
        collector.add(resolved, gradient, tensor.nbytes, arrives, beside)

    # The interface that Horovod calls.

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start averaging a gradient; Horovod all-reduces the returned tensor.

        A tensor without a name comes from a call by hand, such as ``hvd.allreduce``. As with the stock
        ``Compression.fp16``, integers and booleans are returned as they are, with any spec, and ``fp16``
        takes floating tensors of any size. Complex gradients travel uncompressed, as real numbers.

        Raises:
            TypeError: the gradient is sparse, or complex and of a spec with payloads that cannot be added;
                or op=Adasum does not fit.
            ConfigError: the optimizer or the names do not fit, or a CUDA graph is recorded.
            ProtocolError: the ranks run different compression, or the gradient came twice.
        """
        if tensor.is_sparse:
            raise TypeError(
                "a sparse gradient cannot be compressed: pass sparse_as_dense=True, which works "
                "without groups only, to hvd.DistributedOptimizer, or make the layer's gradient "
                "dense (sparse=False)"
            )
        if not tensor.is_floating_point() and (
            not tensor.is_complex() or calling_optimizer() is None
        ):
            return tensor, _NO_GRADIENT
        if self._collector_life is not self._life():
            self._begin()  # the ranks have changed, perhaps within a step
        if self._attendance is not None and not self._in_step:
            self._attendance.mark(calling_optimizer())
        collector = self._collector or self._first_use()
        if not self._in_step:
            refuse_recording(tensor.device, "Compression")
            self._in_step = True
            self._begin_step()
            self._report(collector.begin_step())
        name = self._names.find(tensor) or ""
        default_rules = name != "" or self._default_rules_by_hand
        resolved = collector.resolve(name, tuple(tensor.shape), default_rules)
        if tensor.requires_grad:  # the parameter itself, which op=Adasum compresses
            self._check_adasum(resolved)
        if not name and not resolved.aggregator.linear:
            raise ConfigError(
                f"'{resolved.spec}' needs the parameter's name: use it in "
                "hvd.DistributedOptimizer, or pass named_parameters to Compression"
            )
        if tensor.is_complex():
            _check_complex(resolved, tensor)
            self.pipeline.count_dense({name: tensor.nbytes})
            return torch.view_as_real(tensor.resolve_conj()).contiguous(), _PAIRS
        # A single all-reduce by Horovod would need the payload now. Adasum has no other.
        fuses = tensor.requires_grad or not self._on_device
        route = collector.route(resolved, sums_dtype=tensor.dtype in SUMMABLE_DTYPES, fuses=fuses)
        if route is Route.DENSE:
            self.pipeline.count_dense({name: tensor.nbytes})
            return tensor.contiguous(), _DENSE
        context = _Context(name, tensor.shape, tensor.dtype, tensor.device, None, None)
        if route is Route.LINEAR:
            gradient, arrives = context.on_host(tensor)
            if arrives is not None:
                arrives()
            # Without a name it is the script's own tensor.
            context.round = self.pipeline.round(
                name, gradient, tensor.nbytes, resolved, overwrite=bool(name)
            )
            request = next(context.round)
            assert isinstance(request, AllReduce)  # ensured by `Aggregator.linear`
            payload = torch.from_numpy(request.array)
            context.factor = self._headroom(payload, tensor)
            if context.factor != 1:
                payload = payload * torch.tensor(context.factor, dtype=payload.dtype, device="cpu")
            return to_device(payload, tensor.device), context
        self._collect(collector, resolved, tensor, context)
        token = torch.ones(
            1, dtype=torch.float32, device="cpu" if self._host_tokens else tensor.device
        )
        self.stats.count("token", token.nbytes)
        return token, context

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The averaged gradient; ``tensor`` is the all-reduced result of `compress`.

        Raises:
            ProtocolError: the optimizer's op is neither Average nor Sum, or a rank has joined.
        """
        if ctx is _NO_GRADIENT:
            return tensor
        average = self._average(tensor, ctx)
        if self._attendance is not None:
            self._attendance.settle()
        self._in_step = False
        if self._collector is not None:
            self._collector.end_step()
        return average

    def _life(self) -> object:
        """See `BaseCompression`: Horovod makes a new map of handles in each ``hvd.init()``."""
        return hvd.mpi_ops._handle_map if self._elastic else None

    def _check_complete(self) -> None:
        if self._in_step:
            raise ProtocolError(
                "the step's averages are missing: call optimizer.synchronize() before discard_step()"
            )

    def _compared_options(self) -> str:
        options = ["uneven=True"] * self._uneven + ["gradients on a GPU"] * self._on_device
        return " and ".join(options)

    def _begin_step(self) -> None:
        """Look at the optimizer of the step; without one, `set_lr` gives learning rates."""
        optimizer = calling_optimizer()
        if optimizer is None:
            return
        check_averaged(optimizer)
        if self.config.scales_lr:
            self.set_lr(rates_of(optimizer, self._names.parameters()))

    def _check_adasum(self, resolved: Resolved) -> None:
        if self.pipeline.policy.measures:
            raise TypeError(
                "op=Adasum does not work with `compress.policy: auto`, which averages while it "
                "measures: use op=Average, or set compress.policy to always"
            )
        schedule = self.config.resolve(resolved.key.name, resolved.key.shape).schedule
        if schedule.stateful or not resolved.aggregator.linear:
            raise TypeError(
                f"op=Adasum does not work with '{schedule}' here: Adasum combines parameter "
                "changes by their angles, which needs payloads that can be added, no memory, "
                "and an all-reduce; use op=Average, or a spec such as fp16 with exchange: auto"
            )

    def _average(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        if ctx is _DENSE or ctx is _PAIRS:
            self._check()
            return tensor if ctx is _DENSE else torch.view_as_complex(tensor)
        if ctx is None:
            return self._pass_sparse(tensor)
        assert isinstance(ctx, _Context)
        if ctx.round is not None:
            self._check()
            try:
                ctx.round.send(to_host(tensor).numpy())
            except StopIteration as stop:
                average = stop.value
                if ctx.factor != 1:
                    average *= np.float32(1 / ctx.factor)
                return ctx.restore(average)
            raise ProtocolError(f"the linear round of '{ctx.name}' has a second phase")
        assert self._collector is not None  # made by `compress`
        scale = self._token_scale(tensor)
        average = ctx.restore(self._collector.finish(ctx.name))
        return average if scale == 1 else average * scale

    def _headroom(self, payload: torch.Tensor, tensor: torch.Tensor) -> float:
        """The factor of a payload that Horovod adds; 1 where Horovod itself divides before the sum."""
        if tensor.requires_grad or self._divides:  # op=Adasum weighs tensors by their norms
            return 1.0
        return AllReduce.headroom(payload.dtype, self.pipeline.world_size)

    def _divide_before_sums(self, optimizer: Any) -> bool:
        """Let Horovod divide before sums of float16, unless the script has; returns whether it does.

        It divides neither in groups nor with op=Sum. `_headroom` then divides the payload, the average of
        which has fewer bits below the normal numbers of float16.
        """
        given = getattr(optimizer, "gradient_predivide_factor", self._predivide_factor)
        if given != self._predivide_factor:
            return True
        halves = self.config.compress.policy == "auto" or any(
            spec.algorithm is None and spec.first_codec.startswith("fp16")
            for spec in self.config.specs
        )
        if getattr(optimizer, "op", None) != hvd.Average or not (self._host_tokens and halves):
            return False
        factor = 1 / AllReduce.headroom(torch.float16, self.process_set.size())
        optimizer.gradient_predivide_factor = self._predivide_factor = factor
        return True

    def _check(self) -> None:
        """See `Collector.check`."""
        if self._collector is not None:
            self._collector.check()

    def _finish(self) -> None:
        """See `Collector.finish_all`."""
        if self._collector is not None:
            self._collector.finish_all()

    def _waited(self, seconds: float) -> None:
        self.stats.spend(waiting=seconds)

    def _token_scale(self, token: torch.Tensor) -> int:
        """1 for op=Average, the number of ranks for op=Sum."""
        scale = float(to_host(token))
        size = self.pipeline.world_size
        for known in (1, size) if self._scale is None else (self._scale,):
            if abs(scale - known) < 1e-3:
                return known
        raise ProtocolError(
            f"the token of a compressed gradient was reduced to {scale:g}; op=Average gives 1 and "
            f"op=Sum {size}: other operations do not work with a spec with payloads that cannot be added, "
            "nor do ranks that are in hvd.join(): use Compression(..., uneven=True) and its join()"
        )

    def _pass_sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a sparse gradient, which Horovod has gathered without calling `compress`."""
        found = self._names.decompressed()
        choices = self.config.compress.choices
        if found is not None:
            name, parameter = found
            chosen = self.config.resolve(name, tuple(parameter.shape))
            choices = tuple(
                (name, phase.use, phase.exchange or chosen.exchange)
                for phase in chosen.schedule.phases
            )
        for _, spec, exchange in choices:
            if exchange_pattern(spec, exchange) not in ("dense", "reduce"):
                raise TypeError(
                    f"'{spec}' cannot compress a sparse gradient: give the parameter a rule with "
                    "`use: identity`, pass sparse_as_dense=True to hvd.DistributedOptimizer, or make the "
                    "layer's gradient dense (sparse=False)"
                )
        return tensor

    def _first_use(self) -> Collector:
        """See `agree`.

        Blocking is safe here: every rank calls this with its first gradient of the first step,
        because Horovod submits every parameter on every rank.
        """
        optimizer = calling_optimizer()
        if optimizer is not None:
            self._check_optimizer(optimizer)
            if self._uneven:
                check_takes_part(optimizer)
            op = getattr(optimizer, "op", None)
            self._host_tokens = getattr(optimizer, "_groups", None) is None
            self._scale = {hvd.Average: 1, hvd.Sum: self.process_set.size()}.get(op)
            self._divides = self._divide_before_sums(optimizer)
            wait_first(optimizer, self._check, self._finish, self._waited)
        shapes = self._names.shapes()
        self._on_device = any(tensor.device.type != "cpu" for _, tensor in self._names.tensors())
        self._collector = self.agree(shapes, kinds_of(self._names.tensors()))
        self._encoder_thread = EncoderThread(self.config, self._on_device, self._collector.settle)
        return self._collector

    def _connect_devices(self) -> None:
        """See `BaseCompression`."""
        places: Counter[torch.device] = Counter()
        for _, tensor in self._names.tensors():
            places[tensor.device] += tensor.numel()
        built = "" if hvd.nccl_built() else "its Horovod is built without NCCL"

        def gather(text: str) -> list[str]:
            return [theirs.decode() for theirs in self.gather(text.encode())]

        self._devices.connect(self.pipeline, places, built, gather)

    def _parameters(self) -> Iterable[tuple[str, Any]]:
        return parameter_bytes(self._names.tensors())

    def _collectives(self, prefix: str, process_sets: Mapping[RankGroup, Any]) -> HorovodEngine:
        return HorovodEngine(prefix, process_sets, follower_set(hvd, self.pipeline.ranks_per_node))

    def _gather_text(self, text: bytearray, name: str) -> bytes:
        texts = synchronize(
            hvd.allgather_async(
                torch.frombuffer(text, dtype=torch.uint8), name=name, process_set=self.process_set
            )
        )
        return bytes(texts.numpy())

    def _check_optimizer(self, optimizer: Any) -> None:
        """Refuse options that would give wrong averages.

        The stock optimizer for op=Adasum has neither ``process_set`` nor ``op``.
        """
        check_optimizer(self.config, optimizer)
        theirs = getattr(optimizer, "process_set", hvd.global_process_set)
        self._check_process_set(theirs.process_set_id)
        if getattr(optimizer, "op", hvd.Average) not in (hvd.Average, hvd.Sum, hvd.Adasum):
            self._check_exotic_op()
