"""Compression as a communication hook of ``DistributedDataParallel``.

::

    from torch.nn.parallel import DistributedDataParallel
    from torch_compressors import ddp_hook

    model = DistributedDataParallel(model)
    state, hook = ddp_hook("residual|topk(ratio=0.01)", model)
    model.register_comm_hook(state, hook)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config
from gradcomp.adapter_api import (
    AllReduce,
    Collector,
    Driver,
    Pipeline,
    ProfiledEngine,
    Route,
    profile_as_configured,
)
from gradcomp.errors import ConfigError
from torch_compressors.gather import gather_bytes
from torch_compressors.gloo import GlooEngine, message_limit
from torch_compressors.nodes import agreed_ranks_per_node, exchange_groups, node_size
from torch_compressors.registered import WrappedModel, registered_with
from torch_compressors.roll_call import naming_the_absent
from torch_compressors.scaler import ScalerControls
from torch_compressors.shared.optimizers import check_optional
from torch_compressors.shared.parameters import parameter_bytes
from torch_compressors.shared.rates import rates_of

__all__ = ["DDPCompression", "ddp_hook"]

Hook = Callable[["DDPCompression", GradBucket], torch.futures.Future[torch.Tensor]]

# Dtypes of dense gradients that are all-reduced in their own dtype; others travel as float32.
_OWN_DTYPES = frozenset({torch.float16, torch.float32, torch.float64})


def ddp_hook(
    config: str | Config,
    model: DistributedDataParallel | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    timeout: timedelta | None = None,
    clip_norm: float | None = None,
) -> tuple["DDPCompression", Hook]:
    """The two arguments of ``model.register_comm_hook``.

    Every rank must call it, in the same order as other collectives. Each model needs its own.

    Args:
        config: a spec such as ``"residual|topk(ratio=0.01)"`` for all tensors, or a
            `gradcomp.Config` with rules of its own. With a spec, tensors with at most one dimension
            or under 4096 elements travel uncompressed. The same on every rank; a difference is an
            error on all ranks.
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
        ConfigError: the model is no DistributedDataParallel, the optimizer applies the momentum,
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
    """A bucket of DDP; ``host`` has its elements after a call of ``ready``, if there is one."""

    future: torch.futures.Future[torch.Tensor]
    buffer: torch.Tensor
    host: torch.Tensor
    grads: dict[str, torch.Tensor]
    ready: Callable[[], None] | None = None
    dense: dict[str, Any] = field(default_factory=dict)
    """The engine's handles of dense gradients, by name."""

    def wait(self) -> None:
        """Wait for the elements of ``host``."""
        if self.ready is not None:
            self.ready()


class DDPCompression(ScalerControls):
    """The compression of one model's gradients on this rank; made by `ddp_hook`.

    Gradients arrive in DDP's buckets, but each parameter is compressed by its own name and shape,
    as in every other engine. The first phase of each exchange starts during the backward pass. When
    the last bucket has arrived, the other phases run and gradients are decoded.
    """

    def __init__(
        self,
        config: str | Config,
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
        self.config = Config.from_spec(config) if isinstance(config, str) else config
        check_optional(self.config, optimizer, "ddp_hook")
        self._optimizer = optimizer
        self._timeout = timeout
        self._clip_norm = clip_norm
        self._begin()
        if model is not None:
            self._model = WrappedModel.of(model)
            self._connect()

    def _begin(self) -> None:
        self._gloo: GlooEngine | None = None
        self._arrived: list[_Arrived] = []
        self._begun = 0  # number of arrived buckets whose exchanges have started

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

    def _connect(self) -> GlooEngine:
        """Agree with the other ranks, and make the process groups; all ranks call it together."""
        world, shapes = self._model.world, self._model.shapes
        copied = vars(self).get("pipeline")
        limit = message_limit(map(math.prod, shapes.values()), self.config.compress.bucket_bytes)
        with naming_the_absent(world, "ddp_hook"):
            size = agreed_ranks_per_node(self.config, world, shapes, copied)
            self._gloo = GlooEngine(exchange_groups(world, size, self._timeout), limit)
        self._engine = ProfiledEngine(self._gloo, profile_as_configured(self.pipeline).stats)
        return self._gloo

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        return gather_bytes(data, self._model.world)

    @cached_property
    def _collector(self) -> Collector:
        """Made with the first bucket, because the resolution of tensors may depend on the epoch."""
        driver = Driver(self._engine)
        return Collector(
            driver,
            self.pipeline,
            self._model.shapes,
            overwrite=True,
            parameters=lambda: parameter_bytes(
                (name, one) for one, name in self._model.names.items()
            ),
        )

    def average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start averaging the gradients of a bucket; returns a future of the bucket's buffer.

        The last bucket of a step completes all futures. DDP calls this for the same buckets in the
        same order on every rank.

        Raises:
            ConfigError: a gradient is sparse.
            ProtocolError: another rank does not answer, or a gradient came twice.
        """
        gloo = self._gloo or self._connect()
        if bucket.index() == 0:
            self._arrived.clear()
            self._begun = 0
            self._follow_scale()
            if self._optimizer is not None and self.config.scales_lr:
                self.set_lr(rates_of(self._optimizer, self._model.names))
            self._report(self._collector.begin_step())
        arrived = self._take(bucket)
        self._arrived.append(arrived)
        if self._clip_norm is None:
            # A copy from a device takes time: the next bucket's call starts this bucket's exchanges.
            complete = arrived.ready is None or bucket.is_last()
            end = len(self._arrived) - (not complete)
        elif bucket.is_last():
            self._clip(self._clip_norm)
            end = len(self._arrived)
        else:
            end = 0
        for pending in self._arrived[self._begun : end]:
            self._start(pending)
        self._begun = end
        gloo.flush()
        if bucket.is_last():
            self._finish()
        return arrived.future

    def _take(self, bucket: GradBucket) -> _Arrived:
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise ConfigError(
                f"a gradient of layout {buffer.layout} cannot be compressed: make the layer's gradient "
                "dense, as nn.Embedding(sparse=False) does"
            )
        ready = None
        if buffer.device.type == "cpu":
            future = torch.futures.Future[torch.Tensor]()
            host = buffer
        else:
            future = torch.futures.Future[torch.Tensor](devices=[buffer.device])
            host = torch.empty_like(buffer, device="cpu", pin_memory=True)
            host.copy_(buffer, non_blocking=True)
            copied = torch.Event(buffer.device)
            copied.record()
            ready = copied.synchronize
        grads = {}
        first = buffer.storage_offset()
        for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            # A gradient has the memory layout of its parameter; DDP's view is contiguous instead.
            begin = view.storage_offset() - first
            flat = host[begin : begin + view.numel()]
            stride = parameter.stride() if _fills(parameter) else view.stride()
            grads[self._model.name(parameter)] = flat.as_strided(parameter.shape, stride)
        return _Arrived(future, buffer, host, grads, ready)

    @torch.no_grad()
    def _clip(self, limit: float) -> None:
        """Scale the gradients of all buckets to an L2 norm of at most ``limit``."""
        for arrived in self._arrived:
            arrived.wait()
        norms = [torch.linalg.vector_norm(one.host.double()) for one in self._arrived]
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        if limit < norm < math.inf:
            for arrived in self._arrived:
                arrived.host.mul_(limit / norm)

    def _start(self, arrived: _Arrived) -> None:
        """Start the exchanges of a bucket's gradients."""
        arrived.wait()
        for name, grad in arrived.grads.items():
            resolved = self._collector.resolve(name, tuple(grad.shape))
            route = self._collector.route(resolved, sums_dtype=grad.dtype in _OWN_DTYPES)
            if route is Route.DENSE:
                self.pipeline.count_dense(name, grad.nbytes)
                flat = grad.detach().reshape(-1).numpy()
                arrived.dense[name] = self._engine.start(AllReduce(name, flat))
            else:
                flat = grad.detach().to(torch.float32).contiguous().numpy()
                self._collector.add(resolved, flat, grad.nbytes)

    def _finish(self) -> None:
        """Run all exchanges to their ends and give DDP the averages."""
        self._collector.check()
        for arrived in self._arrived:
            for name, grad in arrived.grads.items():
                if name in arrived.dense:
                    average = self._engine.finish(arrived.dense[name])
                else:
                    average = self._collector.finish(name)
                result = torch.from_numpy(average)
                if result.data_ptr() != grad.data_ptr():  # else already in place
                    grad.copy_(result.view(grad.shape))
            if arrived.host is not arrived.buffer:
                arrived.buffer.copy_(arrived.host, non_blocking=True)
            arrived.future.set_result(arrived.buffer)
        self._arrived.clear()
        self._collector.end_step()


def _fills(parameter: torch.Tensor) -> bool:
    """Whether its elements fill consecutive memory in some order, as with channels_last."""
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
