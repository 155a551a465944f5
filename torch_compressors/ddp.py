"""Compression as a communication hook of ``DistributedDataParallel``.

::

    from torch.nn.parallel import DistributedDataParallel
    from torch_compressors import ddp_hook

    model = DistributedDataParallel(model)
    state, hook = ddp_hook(model=model)
    model.register_comm_hook(state, hook)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config
from gradcomp.adapter_api import (
    Collector,
    Driver,
    FloatArray,
    Pipeline,
    Resolved,
    Route,
)
from gradcomp.errors import ConfigError, ProtocolError
from gradcomp_torch.devices import TensorDevice
from gradcomp_torch.encoder_thread import encodes_beside
from gradcomp_torch.float_copies import FloatCopies
from gradcomp_torch.host_copies import HostCopies
from gradcomp_torch.optimizers import check_optional
from gradcomp_torch.parameters import kinds_of, parameter_bytes
from gradcomp_torch.rates import rates_of
from gradcomp_torch.staging import refuse_recording
from torch_compressors.gloo.bucket_plan import BucketPlan, DenseRequest, label_of, same
from torch_compressors.gloo.device_engine import TogetherSum, connect_devices
from torch_compressors.gloo.engine import (
    SUMMABLE_DTYPES,
    Closing,
    GlooEngine,
    dense_round,
    message_limit,
)
from torch_compressors.gloo.gather import gather_bytes
from torch_compressors.gloo.keep_alive import keep
from torch_compressors.gloo.liveness import naming_the_absent
from torch_compressors.gloo.nodes import agreed_ranks_per_node, exchange_groups, node_size
from torch_compressors.gloo.process_group import use_own_processors
from torch_compressors.gloo.sums import FUSED_BYTES
from torch_compressors.hook_model import UnusedParameters, WrappedModel, registered_with
from torch_compressors.scaler import ScalerControls

__all__ = ["DDPCompression", "ddp_hook"]

Hook = Callable[["DDPCompression", GradBucket], torch.futures.Future[torch.Tensor]]


def ddp_hook(
    config: str | Config = "auto",
    model: DistributedDataParallel | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    timeout: timedelta | None = None,
    clip_norm: float | None = None,
) -> tuple["DDPCompression", Hook]:
    """The two arguments of ``model.register_comm_hook``.

    Every rank must call it, in the same order as other collectives. Each model needs its own.

    Args:
        config: a spec such as ``"residual|topk(ratio=0.01)"`` for all tensors, ``"auto"`` for the
            preset of docs/which-compressor.md, or a `gradcomp.Config` with its own rules. With a
            spec, tensors with at most one dimension or under 4096 elements travel uncompressed. The
            same on every rank; a difference is an error on all ranks.
        model: its gradients are averaged. Parameters have their names in ``model.module``. None for
            the model with which the state is registered later, for trainers that wrap the model
            themselves; the ranks then compare configurations and models at its first gradients.
        optimizer: the model's optimizer. Required if the spec applies the momentum (``dgc``), to
            check that the optimizer does not. ``lr=scale`` reads its learning rates;
            without it, call `set_lr` before each step.
        timeout: longest wait for another rank in an exchange; None for PyTorch's default, 30
            minutes.
        clip_norm: largest L2 norm of this rank's whole gradient, to which it is scaled down before
            anything is compressed, above 0. All exchanges then begin after the backward pass. None:
            no clipping.

    Returns:
        The state, which has `state_dict`, `set_epoch` and `stats`, and the hook.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: the model is not a DistributedDataParallel, the optimizer applies the momentum,
            too, or with ``two_level`` the ranks do not form equal nodes; or ``clip_norm`` is not
            above 0.
        ProtocolError: the ranks run different compression or different models.
    """
    return DDPCompression(config, model, optimizer, timeout, clip_norm), compress_bucket


def compress_bucket(
    state: "DDPCompression", bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients; DDP calls it."""
    return state.average(bucket)


@dataclass
class _Arrived:
    """A bucket of DDP in a step.

    Attributes:
        buffer: its elements; or one sparse gradient, which travels as it is.
        plan: of its gradients; the name of a sparse one.
        copies: of gradients on a GPU that go through the host.
        work: the all-reduce of a sparse gradient.
    """

    future: torch.futures.Future[torch.Tensor]
    buffer: torch.Tensor
    plan: BucketPlan | str
    copies: HostCopies | None = None
    work: Any = None

    def values(self) -> torch.Tensor:
        """All elements."""
        return self.buffer.coalesce().values() if isinstance(self.plan, str) else self.buffer


class DDPCompression(Closing, ScalerControls):
    """The compression of one model's gradients on this rank; made by `ddp_hook`.

    Gradients arrive in DDP's buckets, but each parameter is compressed by its own name and shape,
    as in every other engine. The first phase of each exchange starts during the backward pass. When
    the last bucket has arrived, the other phases run and gradients are decoded.
    """

    def __init__(
        self,
        config: str | Config = "auto",
        model: DistributedDataParallel | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        timeout: timedelta | None = None,
        clip_norm: float | None = None,
    ) -> None:
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise ConfigError(f"clip_norm is {clip_norm}; it must be above 0 and finite, or None")
        if not isinstance(model, DistributedDataParallel | None):
            raise ConfigError(
                f"the model is a {type(model).__name__}; it must be a DistributedDataParallel: "
                "wrap it first"
            )
        self.config = Config.of(config)
        check_optional(self.config, optimizer, "ddp_hook")
        self._optimizer = optimizer
        self._timeout = timeout
        self._clip_norm = clip_norm
        self._begin()
        if model is not None:
            self._model = WrappedModel.of(model)
            self._connect(in_pass=False)

    def _begin(self) -> None:
        self._gloo: GlooEngine | None = None
        self._unused: UnusedParameters | None = None
        self._arrived: list[_Arrived] = []
        self._plans: dict[int, BucketPlan] = {}
        self._floats = FloatCopies()
        self._together: dict[torch.dtype, list[DenseRequest]] = {}
        self._together_bytes = 0
        self._sums: dict[str, _Together] = {}
        self._beside = False  # a thread encodes the gradients of this step

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: configuration and state, without model, optimizer and engine."""
        copied = {"config", "pipeline", "_timeout", "_clip_norm"}
        return {name: value for name, value in vars(self).items() if name in copied}

    def __setstate__(self, copied: dict[str, Any]) -> None:
        vars(self).update(copied)
        self._optimizer = None
        self._begin()

    @cached_property
    def _model(self) -> WrappedModel:
        """The model with which this state is registered.

        Raises:
            StateError: there is none.
        """
        return WrappedModel.of(registered_with(self))

    @cached_property
    def pipeline(self) -> Pipeline:
        """See `gradcomp.runtime.controls.Controls`."""
        world = self._model.world
        size, _ = node_size(self.config, world)
        return Pipeline(self.config, world.rank(), world.size(), size)

    def _connect(self, in_pass: bool) -> GlooEngine:
        """Agree with the other ranks, and make the process groups; all ranks call it together."""
        world, shapes = self._model.world, self._model.shapes
        copied = vars(self).get("pipeline")
        kinds = kinds_of((name, parameter) for parameter, name in self._model.names.items())
        limit = message_limit(map(math.prod, shapes.values()), self.config.compress.bucket_bytes)
        with naming_the_absent(world, "ddp_hook"):
            size = agreed_ranks_per_node(self.config, world, shapes, kinds, copied)
            use_own_processors()
            self._gloo = GlooEngine(exchange_groups(world, size, self._timeout), limit)
            self._devices, engine = connect_devices(
                self.pipeline, self._gloo, world, self._model.names, self._timeout
            )
        self._engine = self.pipeline.profiled(engine, "DDP")
        if self._model.leaves_out and self.config.stateful:
            self._unused = UnusedParameters(self._model.names, in_pass)
        return self._gloo

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        return gather_bytes(data, self._model.world)

    def _attended(self, call: str) -> AbstractContextManager[None]:
        return naming_the_absent(self._model.world, call, warns=True)

    @cached_property
    def _driver(self) -> Driver:
        return Driver(self._engine)

    @cached_property
    def _collector(self) -> Collector:
        """Made with the first bucket, because the resolution of tensors may depend on the epoch."""
        return Collector(
            self._driver,
            self.pipeline,
            self._model.shapes,
            overwrite=True,
            parameters=lambda: parameter_bytes(
                (name, parameter) for parameter, name in self._model.names.items()
            ),
        )

    def average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start averaging the gradients of a bucket; returns a future of the bucket's buffer.

        The last bucket of a step completes all futures. DDP calls this for the same buckets in the
        same order on every rank.

        Raises:
            ConfigError: a gradient is sparse or complex, and of a spec with payloads that cannot be added; the
                model is in ``join(divide_by_initial_world_size=False)``; or a CUDA graph is recorded.
            ProtocolError: another rank does not answer, or the last backward pass has not ended.
        """
        if bucket.index() == 0:
            refuse_recording(bucket.buffer().device, "ddp_hook")
        gloo = self._gloo or self._connect(in_pass=True)
        if bucket.index() == 0:
            if self._arrived:
                raise ProtocolError(
                    f"the last backward pass has ended after {len(self._arrived)} of the model's buckets, and "
                    "their exchanges with other ranks cannot be completed: wrap the model again and call "
                    "ddp_hook again, on every rank"
                )
            self._model.check_join()
            self._follow_scale()
            if self._optimizer is not None and self.config.scales_lr:
                self.set_lr(rates_of(self._optimizer, self._model.names))
            self._report(self._collector.begin_step())
            # The parts of a profiled step add up, without overlap.
            self._beside = self._has_thread and self.pipeline.stats.profile is None
        arrived = self._take(bucket)
        self._arrived.append(arrived)
        if self._unused is not None and isinstance(arrived.plan, BucketPlan):
            parameters = {
                self._model.name(parameter): parameter for parameter in bucket.parameters()
            }
            self.pipeline.last_step.keep(self._unused.unused(parameters, arrived.buffer))
        if not self._beside:
            # A GPU has worked on the last bucket since the last call: its exchanges begin now.
            self._release(gloo)
        if self._clip_norm is None:
            self._start(arrived)
        elif bucket.is_last():
            self._clip(self._clip_norm)
            for waiting in self._arrived:
                self._start(waiting)
        if bucket.is_last():
            self._start_together()
        self._driver.call_beside(gloo.flush)
        if bucket.is_last():
            self._release(gloo)
            self._finish(gloo)
        return arrived.future

    @cached_property
    def _has_thread(self) -> bool:
        """Whether a thread encodes. Gradients that are clipped together start at the end of the pass."""
        on_device = any(parameter.device.type != "cpu" for parameter in self._model.names)
        # Nothing waits for messages from device to device.
        waits = self._devices.direct is None or self.config.compress.encoder_thread == "always"
        return waits and self._clip_norm is None and encodes_beside(self.config, on_device)

    def _release(self, gloo: GlooEngine) -> None:
        """Start the exchanges of gradients that were on a GPU."""
        self._collector.settle()
        gloo.flush()

    def _take(self, bucket: GradBucket) -> _Arrived:
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] = (
            [] if buffer.device.type == "cpu" else [buffer.device]
        )
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        if buffer.layout != torch.strided:
            (parameter,) = bucket.parameters()
            return _Arrived(future, buffer, self._model.name(parameter))
        index = bucket.index()
        plan = self._plans.get(index)
        if plan is None or not plan.is_in(buffer):
            plan = self._plans[index] = BucketPlan(buffer, self._views_of(bucket, buffer))
        return _Arrived(future, buffer, plan)

    def _views_of(self, bucket: GradBucket, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """The gradients of a bucket, by name; complex ones as pairs of real numbers."""
        grads = {}
        first = buffer.storage_offset()
        is_complex = bucket.parameters()[0].is_complex()
        if is_complex:  # the buffer has pairs, and places count these
            buffer = torch.view_as_complex(buffer.view(-1, 2))
        for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            # A gradient has the memory layout of its parameter; DDP's view is contiguous instead.
            begin = view.storage_offset() - first
            flat = buffer[begin : begin + view.numel()]
            stride = parameter.stride() if _fills(parameter) else view.stride()
            grad = flat.as_strided(parameter.shape, stride).detach()
            grads[self._model.name(parameter)] = torch.view_as_real(grad) if is_complex else grad
        return grads

    @torch.no_grad()
    def _clip(self, limit: float) -> None:
        """Scale the gradients of all buckets to an L2 norm of at most ``limit``."""
        norms = [torch.linalg.vector_norm(arrived.values().double()) for arrived in self._arrived]
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        if limit < norm < math.inf:
            for arrived in self._arrived:
                arrived.buffer.mul_(limit / norm)

    def _start(self, arrived: _Arrived) -> None:
        """Start the exchanges of a bucket's gradients; those on a GPU follow with `_release`."""
        plan = arrived.plan
        if isinstance(plan, str):
            self._start_sparse(arrived, plan)
            return
        place = arrived.buffer.device
        device = self._devices.of(place)
        if not plan.holds(self._collector.routes):
            self._make(plan, place, device)
        if device is not None or place.type != "cpu":
            self._launch(arrived, plan, device)
            return
        for request in plan.dense:
            self._start_dense(request, *request.on_host())
        self._collector.add_all(plan.collected, plan.floats(), plan.nbytes, beside=self._beside)

    def _make(self, plan: BucketPlan, place: torch.device, device: TensorDevice | None) -> None:
        """Plan how a bucket's gradients travel, in this step at least."""
        dense: list[str] = []
        collected: dict[str, Resolved] = {}
        there: list[str] = []
        for name, grad in plan.grads.items():
            resolved, route = self._route(name, grad)
            if route is Route.DENSE:
                dense.append(name)
                continue
            collected[name] = resolved
            if device is not None and self.pipeline.on_device(resolved, device):
                there.append(name)
        copied: set[str] = set()
        if device is not None or place.type != "cpu":
            copied = collected.keys() - there
            if self._devices.direct is None:
                copied.update(dense)
        plan.decide(self._collector.routes, dense, collected, there, copied)

    def _start_dense(
        self,
        request: DenseRequest,
        pieces: Sequence[FloatArray],
        results: list[FloatArray | None],
        arrives: Callable[[], None] | None = None,
    ) -> None:
        """Start one all-reduce of gradients that travel uncompressed, in their own dtype."""
        self.pipeline.count_dense(request.sizes)
        names = list(request.sizes)
        round_ = dense_round(request.label, pieces, results, arrives)
        self._driver.start(names[0], round_, names, beside=self._beside)

    def _start_sparse(self, arrived: _Arrived, name: str) -> None:
        """Start the all-reduce of a sparse gradient in the model's group, as DDP does without a hook."""
        grad = arrived.buffer
        self._route(name, grad)
        self.pipeline.count_dense({name: grad._values().nbytes + grad._indices().nbytes})
        world = self._model.world
        grad.div_(world.size())
        arrived.work = keep(dist.all_reduce(grad, group=world, async_op=True))

    def _add_together(self, plan: BucketPlan, request: DenseRequest) -> None:
        """Let gradients be all-reduced on their device, together with those of other buckets."""
        self._together.setdefault(plan.dtype, []).append(request)
        self._together_bytes += request.nbytes
        if self._together_bytes >= FUSED_BYTES:
            self._start_together()

    def _start_together(self) -> None:
        """Start the all-reduces on the device, one for each dtype."""
        for requests in self._together.values():
            label = label_of([name for request in requests for name in request.sizes])
            known = self._sums.get(label)
            if known is None or not same(known.requests, requests):
                known = self._sums[label] = _Together(requests)
            self.pipeline.count_dense(known.sizes)
            names = list(known.sizes)
            self._driver.start(names[0], known.sum.round(label), names, beside=self._beside)
        self._together.clear()
        self._together_bytes = 0

    def _route(self, name: str, grad: torch.Tensor) -> tuple[Resolved, Route]:
        resolved = self._collector.resolve(name, self._model.shapes[name])
        if self._model.is_complex(name) or grad.is_sparse:
            _check_uncompressed(resolved, "sparse" if grad.is_sparse else "complex")
            return resolved, Route.DENSE
        summable = grad.dtype in SUMMABLE_DTYPES or (
            grad.dtype == torch.bfloat16 and self._devices.direct is not None
        )
        return resolved, self._collector.route(resolved, sums_dtype=summable)

    def _launch(self, arrived: _Arrived, plan: BucketPlan, device: TensorDevice | None) -> None:
        """Start the work of a GPU on a bucket: kernels, and copies of the other gradients.

        Rounds start in the same order as on ranks without a GPU.
        """
        copies = arrived.copies = plan.copies()
        for request in plan.dense:
            if self._devices.direct is not None:
                self._add_together(plan, request)
                continue
            assert copies is not None  # of these gradients, too
            pieces = [copies.part(*each).numpy() for each in request.ranges]
            self._start_dense(request, pieces, request.in_place, copies.wait)
        arrays: Mapping[str, FloatArray] = {}
        if plan.there:
            assert device is not None  # else all are copied
            arrays = plan.arrays(device, self._floats, beside=self._beside)
        grads, arrives = arrays, {}
        if copies is not None and len(arrays) < len(plan.collected):
            grads = {}
            for name, resolved in plan.collected.items():
                if name in arrays:
                    grads[name] = arrays[name]
                else:
                    floats, arrives[name] = copies.floats(name)
                    grads[name] = floats.numpy().reshape(resolved.key.shape)
        self._collector.add_all(plan.collected, grads.values(), plan.nbytes, arrives, self._beside)

    def _finish(self, gloo: GlooEngine) -> None:
        """Run all exchanges to their ends and give DDP the averages."""
        self._collector.check()
        if self._unused is not None:
            self.stats.count("allreduce", self._unused.nbytes)
            self._unused.ask(self._driver)
        plans = [arrived.plan for arrived in self._arrived]
        names = [name for plan in plans if isinstance(plan, BucketPlan) for name in plan.grads]
        averages = iter(self._collector.averages(names))
        for arrived, plan in zip(self._arrived, plans, strict=True):
            if isinstance(plan, BucketPlan):
                plan.give(list(islice(averages, len(plan.grads))), arrived.copies)
            else:
                with gloo.answered(plan):
                    arrived.work.wait()
            arrived.future.set_result(arrived.buffer)
        if self._unused is not None:
            self.pipeline.last_step.put_back(self._unused.dropped(self._driver))
        self._arrived.clear()
        self._collector.end_step()

    def _check_complete(self) -> None:
        if self._arrived:
            raise ProtocolError(
                "the backward pass has not given all gradients: call discard_step() after backward()"
            )


class _Together:
    """Gradients that are all-reduced together on their device, of one or several buckets.

    Attributes:
        sizes: in bytes, by name.
    """

    def __init__(self, requests: list[DenseRequest]) -> None:
        self.requests = requests
        self.sizes = {name: size for request in requests for name, size in request.sizes.items()}
        self.sum = TogetherSum([grad for request in requests for grad in request.grads])


def _check_uncompressed(resolved: Resolved, kind: str) -> None:
    """Refuse a sparse or complex gradient, which travels uncompressed, of a spec that would compress it."""
    if resolved.group is not None or not resolved.aggregator.linear:
        raise ConfigError(
            f"the gradient of '{resolved.key.name}' is {kind} and cannot take '{resolved.spec}' here: it "
            "travels uncompressed, without policy: auto, with `identity` and specs with payloads that can be "
            "added: give it a rule with `use: identity`, or make it dense and real, as "
            "nn.Embedding(sparse=False) and torch.view_as_complex do"
        )


def _fills(parameter: torch.Tensor) -> bool:
    """Whether its elements fill consecutive memory in some order, as with channels_last."""
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
