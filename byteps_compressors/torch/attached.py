"""Compression by the plug-in library inside BytePS' workers and servers."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import byteps.torch as bps
import torch

from byteps_compressors import native
from byteps_compressors.gather import WORKER, gather, gather_values
from byteps_compressors.torch.checks import check_agreement, check_config, spec_for
from byteps_compressors.torch.environment import check_environment
from byteps_compressors.torch.states import States
from gradcomp import Config, get_codec
from gradcomp.adapter_api import (
    Checkpointed,
    Checkpoints,
    Pipeline,
    Rates,
    Spec,
    StartReport,
    Stats,
    check_digests,
    check_scale,
    digest_parameters,
    log_at_end,
)
from gradcomp.errors import GradcompError, discards_not_allowed, nothing_to_discard
from gradcomp_torch.parameters import parameter_bytes
from gradcomp_torch.rates import rates_of
from gradcomp_torch.state import as_array, with_arrays

__all__ = ["Attached", "ServerFeedback", "attach", "declare"]

_log = logging.getLogger(__name__)

ServerFeedback = Literal["auto", "on", "off"]

_attached: dict[str, native.Tensor] = {}
"""Tensors of all models of this worker, by the names of their parameters."""


class Attached(Checkpointed):
    """Handle of a model's compression in this worker; made by `attach`.

    Attributes:
        config: the rules that give each tensor its spec.
        specs: spec of each parameter, by parameter name.
    """

    def __init__(
        self,
        config: Config,
        specs: Mapping[str, Spec],
        tensors: Mapping[str, native.Tensor],
        fed_back: Mapping[str, torch.dtype],
        parameters: Mapping[str, torch.Tensor],
    ):
        self.config = config
        self.specs = dict(specs)
        self._tensors = dict(tensors)
        self._parameters = dict(parameters)
        self._scaled = [name for name, spec in self.specs.items() if spec.scales_lr]
        self._discards = False
        self._states = States(config, self._tensors, fed_back)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0. Every worker must call it before an epoch's first step.

        Only schedules that count epochs need it, such as the warm-up of ``dgc``.

        Raises:
            ValueError: the epoch is outside [0, 65536).
        """
        if not 0 <= epoch < 2**16:
            raise ValueError(f"epoch is {epoch}; it must be in [0, 65536)")
        native.load().set_epoch(epoch)

    def set_lr(self, lr: float | Mapping[str, float]) -> None:
        """Set the learning rate of the coming step, for ``residual(lr=scale)``.

        `DistributedOptimizer` reads it from the optimizer; with `attach`, every worker must call
        this before each step, with the same value. Residuals on workers and servers follow it.

        Args:
            lr: as for `gradcomp.Pipeline.set_lr`.

        Raises:
            ConfigError: a rate is not in its range.
        """
        rates = Rates()
        rates.set(lr)
        known = lr if isinstance(lr, Mapping) else self._scaled
        native.load().set_lr(
            {
                self._tensors[name]: rates.of(name) if name in known else -1.0
                for name in self._scaled
            }
        )

    def set_loss_scale(self, scale: float) -> None:
        """Begin a step of mixed precision that multiplies its loss by ``scale``.

        See `gradcomp.Pipeline.set_loss_scale`. All workers must call it between steps, before every
        step, with the same value. Residuals on servers follow with the next gradient.

        Raises:
            ConfigError: ``scale`` is not a positive number.
        """
        check_scale(scale)
        native.load().set_loss_scale(self._tensors.values(), scale)

    def allow_discard(self) -> None:
        """Keep what each step changes, for `discard_step`.

        All workers must call it between the same steps. From then on, a gradient with an element that is
        not finite makes the average not finite on all workers, as with a loss scale.
        """
        native.load().keep_steps(self._tensors.values())
        self._discards = True

    def discard_step(self) -> None:
        """Take back the last step, as its averages are not applied.

        All workers must call it when all averages of the step are there (``optimizer.synchronize()``) and
        before the next step. Residuals and momenta of workers return to their values before the step,
        and those of servers follow with the next gradient. The number of steps, which seeds random codecs
        and which schedules count, goes on.

        Raises:
            ConfigError: `allow_discard` was not called.
            StateError: there is no step to discard.
        """
        if not self._discards:
            raise discards_not_allowed()
        if not native.load().discard_step(self._tensors.values()):
            raise nothing_to_discard()

    def read_rates(self, optimizer: Any) -> None:
        """Call `set_lr` with the optimizer's rates at the first gradient of each step.

        `DistributedOptimizer` does it by itself.
        """
        if not self._scaled:
            return
        names = {parameter: name for name, parameter in self._parameters.items()}
        stock_push, stock_synchronize = optimizer._push_pull_grad_async, optimizer.synchronize
        begins = True

        def push_pull_grad_async(parameter: torch.Tensor) -> Any:
            nonlocal begins
            if begins:
                begins = False
                self.set_lr(rates_of(optimizer, names))
            return stock_push(parameter)

        def synchronize() -> None:
            nonlocal begins
            stock_synchronize()
            begins = True

        optimizer._push_pull_grad_async = push_pull_grad_async
        optimizer.synchronize = synchronize

    @property
    def stats(self) -> Stats:
        """Bytes that this worker has pushed to servers, summed over its attached tensors.

        `pulled_bytes` has the other direction. Neither counts the exchanges of `state_dict` and
        `load_state_dict`.
        """
        return _stats(self._tensors, bps.rank(), bps.size())

    @property
    def pulled_bytes(self) -> int:
        """Bytes that this worker has pulled from servers."""
        return native.load().totals()[1]

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's state for its checkpoint: plain numbers, strings and CPU tensors.

        All workers must call it between the same steps: with feedback on servers it reads the
        servers' residuals. Every worker must save its own state. The keys are those of
        `gradcomp.Pipeline.state_dict`, plus ``servers``: the servers' residuals by tensor name
        (1-D float32), in the state of worker 0 only; empty for other workers.
        """
        return self._states.save()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore a saved state: this worker's own, or the list of all workers' states.

        See `gradcomp.Pipeline.load_state_dict`. All workers must call it between the same steps:
        with feedback on servers, worker 0 sends the servers their residuals. The number of servers
        and their partitions may have changed. As servers sum gradients, their residuals are scaled
        by the ratio of new to old world size. A state without ``servers``, such as Horovod's, sets
        them to 0.

        Raises:
            StateError: the state belongs to another worker or model. All workers raise if one does.
            ProtocolError: the workers loaded states of different steps.
        """
        self._states.load(state)

    @functools.cached_property
    def _checkpoints(self) -> Checkpoints:
        together = functools.partial(gather, purpose="call save or load between the same steps")
        return Checkpoints(bps.rank(), bps.size(), 1, self.config.digest_text(), together)

    def _state_to_save(self) -> dict[str, Any]:
        state: dict[str, Any] = with_arrays(self.state_dict())
        servers = {name: as_array(residual) for name, residual in state["servers"].items()}
        return {**state, "servers": servers}

    def _take_saved(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        self.load_state_dict(states)

    def check_replicas(self) -> None:
        """Compare the parameters of all workers, which must be equal bit for bit.

        All workers must call it between the same steps. It costs a digest of all parameters, and
        an exchange of each parameter's name and 8 bytes. `DistributedOptimizer` calls it by itself; see
        `check_after_steps`.

        Raises:
            ProtocolError: parameters differ; the message names the first one, the step and the
                workers.
        """
        digests = digest_parameters(parameter_bytes(self._parameters.items()))
        purpose = "call check_replicas between the same steps"
        rows = gather_values({"digests": digests}, purpose)
        check_digests(rows, f"after step {self._steps()}", WORKER)

    def _steps(self) -> int:
        """Number of steps so far."""
        return _steps(self._tensors)

    def check_after_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Call `check_replicas` after every ``check_replicas_every``-th step of the optimizer.

        `DistributedOptimizer` does it by itself. The configuration has the number; 0 is never.
        """
        every = self.config.check_replicas_every
        if every == 0:
            return
        stock_step = optimizer.step
        calls = 0

        def step(_: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
            nonlocal calls
            result = stock_step(*args, **options)
            calls += 1
            if calls % every == 0:
                self.check_replicas()
            return result

        # A method, as schedulers of learning rates expect.
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


def attach(
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    compression: str | Config,
    *,
    server_feedback: ServerFeedback = "auto",
) -> Attached:
    """Make BytePS' workers and servers compress the gradients of a model.

    The gradients must be averaged under the names that the stock ``bps.DistributedOptimizer`` uses:
    ``Gradient.`` and the parameter's name. Call it once on every worker with equal arguments, after
    ``bps.init()`` and before the first gradient.

    Args:
        named_parameters: ``model.named_parameters()``.
        compression: a spec such as ``"residual|topk(ratio=0.01)"`` for all tensors (tensors with at
            most one dimension or under 4096 elements travel uncompressed), or a `gradcomp.Config`
            with other rules. BytePS cuts tensors into partitions (of 4,096,000 bytes, see
            BYTEPS_PARTITION_BYTES); each is compressed separately.
        server_feedback: error feedback on the servers, which compress the sum again and add the
            error to the next sum (Tang et al., "DoubleSqueeze", ICML 2019, algorithm 1). "on",
            "off", or "auto": for the specs with error feedback on the workers.

    Returns:
        The handle for checkpoints and statistics.

    Raises:
        SpecError: the spec is invalid.
        ConfigError: BytePS cannot run it; the message gives the reason and an alternative.
        ProtocolError: the workers have different versions, configurations, parameters, epochs or
            options; the message lists them by worker.
        GradcompError: BytePS is not initialized, or the plug-in cannot be built.
    """
    config = Config.of(compression, measures=False)
    check_config(config)
    check_environment()
    parameters = dict(sorted(dict(named_parameters).items()))
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    specs = {name: spec_for(config, name, parameter) for name, parameter in parameters.items()}
    for name in specs:
        if name in _attached:
            raise GradcompError(
                f"the gradient of '{name}' is already attached: attach each model once, and give the "
                "parameters of several models different prefixes"
            )
    check_agreement(config, parameters, server_feedback)
    _report(config, shapes)
    whole = {
        codec.name
        for codec in map(get_codec, {spec.first_codec for spec in specs.values()})
        if "whole_bucket" in codec.caps
    }
    for name in sorted(whole):
        _log.warning(
            "'%s' compresses the tensors of a bucket together, as matrices; BytePS compresses each "
            "partition separately, as a vector, so that the rate or ratio holds for each partition",
            name,
        )
    library = native.load()
    tensors, fed_back = {}, {}
    for name, spec in specs.items():  # sorted: BytePS numbers tensors in the order of declaration
        tensor = tensors[name] = library.tensor(spec.canonical, parameters[name].numel())
        memory = None if spec.memory is None else spec.memory.name
        feeds_back = memory in ("residual", "momentum_correction")
        feedback = server_feedback == "on" or (server_feedback == "auto" and feeds_back)
        if feedback:
            fed_back[name] = parameters[name].dtype
        library.declare(
            f"Gradient.{name}",
            {
                "compressor_type": "gradcomp",
                "gradcomp_spec": spec.canonical,
                "gradcomp_tensor": tensor.id,
                "gradcomp_seed": config.seed,
                "gradcomp_feedback": int(feedback),
            },
        )
    if not _attached and bps.rank() == 0:
        # The library lives as long as the process, and so do its counts.
        log_at_end(library, functools.partial(_stats, _attached, 0, bps.size()))
    _attached.update(tensors)
    return Attached(config, specs, tensors, fed_back, parameters)


def declare(name: str, **arguments: str | int | float) -> None:
    """Declare a tensor to BytePS with keyword arguments of a compressor.

    This makes BytePS' own compressors available, which its PyTorch interface does not offer::

        declare("Gradient.fc.weight", compressor_type="onebit", compressor_onebit_scaling="true")

    Call it on every worker before the tensor's first push_pull, with equal arguments. BytePS' own
    error feedback needs a file ``lr.s`` in the working directory; gradcomp's specs do not.
    """
    check_environment()
    native.load().declare(name, {key: str(value) for key, value in arguments.items()})


def _steps(tensors: Mapping[str, native.Tensor]) -> int:
    return max((tensor.steps for tensor in tensors.values()), default=0)


def _stats(tensors: Mapping[str, native.Tensor], rank: int, ranks: int) -> Stats:
    """The library's counts, which are of all models of this worker."""
    pushed, _, dense = native.load().totals()
    stats = Stats(steps=_steps(tensors), ranks=ranks, rank=rank, engine="BytePS")
    stats.count_gradients(dense)
    stats.count("push", pushed)
    return stats


def _report(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Say on worker 0 how much is compressed."""
    pipeline = Pipeline(config, bps.rank(), bps.size())
    pipeline.stats.engine = "BytePS"
    pipeline.set_epoch(0)
    StartReport(pipeline).begin(pipeline.resolve_all(shapes))
