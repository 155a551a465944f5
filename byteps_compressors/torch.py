"""Gradient compression for PyTorch on stock BytePS.

::

    import byteps.torch as bps
    from byteps_compressors.torch import DistributedOptimizer

    bps.init()
    optimizer = DistributedOptimizer(
        optimizer, model.named_parameters(), compression="residual|topk(ratio=0.01)")

BytePS' own workers and servers compress the gradients with gradcomp's plug-in library;
``python -m byteps_compressors.launch`` starts a cluster that loads it. Import this module before
``bps.init()``. `Compression` works without the plug-in, for codecs whose payloads can be added.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gradcomp.errors import ConfigError, GradcompError, StateError, missing_package

try:
    import byteps.torch as bps
    import byteps.torch.ops as ops
    import torch
except ModuleNotFoundError as error:
    raise missing_package(error) from None

from byteps_compressors import native, process
from byteps_compressors.agreement import WORKER, check_equal, check_replicas, to_text
from byteps_compressors.build import plugin
from byteps_compressors.gather import gather
from gradcomp import Config, get_codec, list_codecs
from gradcomp.adapter_api import (
    AllReduce,
    Checkpointed,
    Checkpoints,
    FloatArray,
    Pipeline,
    Rates,
    Round,
    Spec,
    StartReport,
    Stats,
    build_text,
    check_scale,
    digest_parameters,
    model_digest,
    read_object,
)
from gradcomp_torch.optimizers import check_optimizer
from gradcomp_torch.parameters import parameter_bytes, uncompiled
from gradcomp_torch.rates import rates_of
from gradcomp_torch.state import as_array, with_arrays

__all__ = ["Attached", "Compression", "DistributedOptimizer", "attach", "declare"]

_log = logging.getLogger(__name__)

NamedParameters = Iterable[tuple[str, torch.Tensor]]
ServerFeedback = Literal["auto", "on", "off"]

DTYPES = (torch.float32, torch.float64, torch.float16)
"""Gradient types that the plug-in compresses."""

# BytePS reads these in bps.init(). It aborts without the first. The second turns off BytePS' own
# limit of 64 KiB: the rules of a Config decide which tensors are compressed.
_DEFAULTS = {"BYTEPS_THREADPOOL_SIZE": "4", "BYTEPS_MIN_COMPRESS_BYTES": "0"}

# BytePS' own flag; its rank and size are no test, as they have values before bps.init(), too.
_FLAG = "_ZN6byteps6common12BytePSGlobal12_initializedE"


def _initialized() -> bool:
    return ctypes.c_bool.in_dll(ops._basics.C_LIB_CTYPES, _FLAG).value


_late = sorted(set(_DEFAULTS) - set(os.environ)) if _initialized() else []
for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)

_attached: set[str] = set()

# byteps_compressors.run replaces it in BytePS' module.
_stock_optimizer = bps.DistributedOptimizer

process.end_at_once()
process.resolve_scheduler()


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
        self._fed_back = dict(fed_back)  # dtypes of the tensors with feedback on servers

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
        """Begin a step of mixed precision, whose loss is multiplied by ``scale``.

        See `gradcomp.Pipeline.set_loss_scale`. All workers must call it between steps, before every
        step, with the same value. Residuals on servers follow with the next gradient.

        Raises:
            ConfigError: ``scale`` is not a positive number.
        """
        check_scale(scale)
        native.load().set_loss_scale(self._tensors.values(), scale)

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
        pushed, _, dense = native.load().totals()
        stats = Stats(steps=self._steps(), ranks=bps.size())
        stats.count_gradients(dense)
        stats.count("push", pushed)
        return stats

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
        state = self._pipeline().state_dict()
        servers: dict[str, torch.Tensor] = {}
        for name in self._fed_back:
            kept = self._tensors[name].read_servers(self._push_pull(name))
            if bps.rank() == 0 and kept.any():
                servers[name] = torch.from_numpy(kept)
        state["servers"] = servers
        for name, tensor in self._tensors.items():
            now = tensor.progress
            state["rounds"][name] = now.steps
            state["loss_scale"] = now.loss_scale
            if now.lr:
                state["residual_lr"][name] = torch.tensor([now.lr])
            for kind in ("residual", "momentum"):
                array = None if now.fresh and kind == "momentum" else tensor.array(kind)
                if array is not None:
                    state[kind][name] = torch.from_numpy(array.copy())
        return state

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
        error = None
        loaded: dict[str, Any] = {}
        try:
            loaded = self._loaded(state)
            kept = self._kept_by_servers([state] if isinstance(state, Mapping) else list(state))
        except StateError as raised:
            error = raised
        self._compare_loaded(error, loaded)
        for name, tensor in self._tensors.items():
            for kind in ("residual", "momentum"):
                own = tensor.array(kind)
                if own is not None:
                    own[:] = loaded[kind].get(name, 0)
            (rate,) = loaded["residual_lr"].get(name, [0.0])
            tensor.progress = native.Progress(
                loaded["rounds"].get(name, 0),
                loaded["loss_scale"],
                float(rate),
                name not in loaded["momentum"],
            )
        for name in self._fed_back:
            self._tensors[name].write_servers(kept.get(name), self._push_pull(name))

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

    def _compare_loaded(self, error: StateError | None, loaded: Mapping[str, Any]) -> None:
        """Raise on all workers if one could not load its state, or the steps or epochs differ."""
        rounds = loaded.get("rounds", {})
        values = {
            "epoch": native.load().epoch,
            "loss scale": loaded.get("loss_scale"),
            **{f"steps of '{name}'": rounds.get(name, 0) for name in self._tensors},
        }
        row = {"error": None if error is None else str(error), "values": values}
        texts = gather(to_text(row), "call load_state_dict between the same steps")
        if error is not None:
            raise error
        rows = [read_object(text, other, WORKER) for other, text in enumerate(texts)]
        for rank, one in enumerate(rows):
            if one["error"] is not None:
                raise StateError(
                    f"another worker could not load its state: worker {rank}: {one['error']}"
                )
        check_equal(
            [one["values"] for one in rows],
            "the workers loaded states of different steps",
            "load states that were saved in one step, on all workers",
        )

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
        texts = gather(to_text({"digests": digests}), "call check_replicas between the same steps")
        check_replicas(texts, self._steps())

    def _steps(self) -> int:
        """Number of steps so far."""
        return max((tensor.steps for tensor in self._tensors.values()), default=0)

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

    def _kept_by_servers(self, states: Sequence[Mapping[str, Any]]) -> dict[str, FloatArray]:
        """Return the servers' new residuals by tensor name, as worker 0 sends them."""
        (own,) = [one for one in states if one["rank"] == 0] or [{}]
        scale = np.float32(bps.size() / own.get("world_size", bps.size()))
        saved = own.get("servers", {})
        if not isinstance(saved, Mapping):
            raise StateError(
                f"'servers' of a compressor state is a {type(saved).__name__}; it must be a "
                "mapping of tensors by name"
            )
        kept = {}
        for name, value in saved.items():
            tensor, array = self._tensors.get(name), as_array(value)
            right = isinstance(array, np.ndarray) and array.dtype == np.float32
            if tensor is None or not right or array.shape != (tensor.numel,):
                kind = getattr(array, "dtype", type(array).__name__)
                raise StateError(
                    f"the servers' state of '{name}' has {np.size(array)} elements of {kind}, and "
                    f"this model has {'none' if tensor is None else tensor.numel} of "
                    "float32: this is the state of another model"
                )
            if not np.isfinite(array).all():
                raise StateError(
                    f"the servers' state of '{name}' has NaN or Inf; all elements must be finite: "
                    "load a checkpoint from before the step in which training diverged"
                )
            kept[name] = array * scale
        return kept

    def _push_pull(self, name: str) -> Callable[[], None]:
        """Return a function that pushes and pulls zeros under the name of this gradient."""
        values = torch.zeros(self._tensors[name].numel, dtype=self._fed_back[name])

        def push_pull() -> None:
            ops.synchronize(
                ops.push_pull_async_inplace(values, average=False, name=f"Gradient.{name}")
            )

        return push_pull

    def _loaded(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """This worker's part of saved states, checked against its tensors."""
        pipeline = self._pipeline()
        pipeline.load_state_dict(with_arrays(state))
        loaded = pipeline.state_dict()
        for name, tensor in self._tensors.items():
            for kind in ("residual", "momentum"):
                own, saved = tensor.array(kind), loaded[kind].get(name)
                if own is not None and saved is not None and saved.size != own.size:
                    raise StateError(
                        f"the {kind} of '{name}' has {saved.size} elements and the parameter "
                        f"{own.size}: this is the state of another model"
                    )
        return loaded

    def _pipeline(self) -> Pipeline:
        """Make a pipeline, used only to check, read and write states."""
        return Pipeline(self.config, bps.rank(), bps.size())


def attach(
    named_parameters: NamedParameters,
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
    config = Config.from_spec(compression) if isinstance(compression, str) else compression
    _check_config(config)
    _check_environment()
    parameters = dict(named_parameters)
    shapes = {name: tuple(parameters[name].shape) for name in sorted(parameters)}
    specs = {name: _spec_for(config, name, parameters[name]) for name in sorted(parameters)}
    for name in specs:
        if name in _attached:
            raise GradcompError(
                f"the gradient of '{name}' is already attached: attach each model once, and give the "
                "parameters of several models different prefixes"
            )
    _check_agreement(config, shapes, server_feedback)
    _report(config, shapes)
    sharing = {
        one.name
        for one in map(get_codec, {spec.first_codec for spec in specs.values()})
        if "shares" in one.caps
    }
    for name in sorted(sharing):
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
    _attached.update(specs)
    return Attached(config, specs, tensors, fed_back, parameters)


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters,
    compression: str | Config = "identity",
    backward_passes_per_step: int = 1,
    *,
    server_feedback: ServerFeedback = "auto",
) -> Any:
    """Call `attach`, and wrap the optimizer in the stock ``bps.DistributedOptimizer``.

    The result has an additional attribute ``compression``, an `Attached`.

    Args:
        optimizer: a local optimizer.
        named_parameters: as for `attach`.
        compression: as for `attach`.
        backward_passes_per_step: as for ``bps.DistributedOptimizer``.
        server_feedback: as for `attach`.

    Raises:
        ConfigError: both the spec and the optimizer apply momentum; or as for `attach`.
        ProtocolError: as for `attach`.
    """
    config = Config.from_spec(compression) if isinstance(compression, str) else compression
    named = uncompiled(named_parameters)
    check_optimizer(config, optimizer)
    attached = attach(named, config, server_feedback=server_feedback)
    wrapped = _stock_optimizer(
        optimizer,
        named_parameters=named,
        backward_passes_per_step=backward_passes_per_step,
    )
    wrapped.compression = attached
    attached.read_rates(wrapped)
    attached.check_after_steps(wrapped)
    return wrapped


def declare(name: str, **arguments: str | int | float) -> None:
    """Declare a tensor to BytePS with keyword arguments of a compressor.

    This makes BytePS' own compressors available, which its PyTorch interface does not offer::

        declare("Gradient.fc.weight", compressor_type="onebit", compressor_onebit_scaling="true")

    Call it on every worker before the tensor's first push_pull, with equal arguments. BytePS' own
    error feedback needs a file ``lr.s`` in the working directory; gradcomp's specs do not.
    """
    _check_environment()
    native.load().declare(name, {key: str(value) for key, value in arguments.items()})


def _check_environment() -> None:
    if not _initialized():
        raise GradcompError("BytePS is not initialized: call bps.init() first")
    if _late:
        raise GradcompError(
            f"BytePS was initialized without {', '.join(_late)}, which it reads in bps.init(): "
            "import byteps_compressors.torch before bps.init()"
        )
    for name, reason in (
        ("BYTEPS_ENABLE_ASYNC", "asynchronous servers add"),
        ("BYTEPS_SERVER_ENGINE_BLOCKING", "the blocking engine of servers adds"),
    ):
        if os.environ.get(name, "0") != "0":
            raise ConfigError(
                f"{name}={os.environ[name]}: {reason} up messages without decompressing them; unset "
                "it, or use the stock bps.DistributedOptimizer"
            )


def _report(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Say on worker 0 how much is compressed."""
    pipeline = Pipeline(config, bps.rank(), bps.size())
    pipeline.set_epoch(0)
    StartReport(pipeline).begin(pipeline.resolve_all(shapes))


def _check_config(config: Config) -> None:
    """Raise ConfigError if the configuration needs exchanges between workers.

    BytePS' workers communicate with servers only.
    """
    for rule, schedule, exchange, averaging in config.compress.resolutions:
        if averaging.changes:
            raise ConfigError(
                f"{rule} has {averaging}, which needs each rank's tensor, and BytePS' servers add them "
                "up; leave it out"
            )
        if exchange != "auto":
            raise ConfigError(
                f"{rule} has exchange: {exchange}, which is an exchange between workers, and BytePS "
                "has servers instead; leave it out"
            )
        if schedule.switches:
            raise ConfigError(
                f"{rule} has specs that follow one another, '{schedule}', and BytePS keeps the "
                "compressor that a tensor was declared with: give it one spec; parameters may have "
                "schedules, such as topk(ratio=ramp(from=0.25,to=0.01,steps=1000))"
            )
    if config.stats.profile is not None:
        raise ConfigError(
            "stats.profile measures exchanges between workers, and BytePS has servers instead, and "
            "a profile of its own (BYTEPS_TRACE_ON): leave it out"
        )
    if config.compress.policy != "always":
        raise ConfigError(
            f"compress.policy is {config.compress.policy}, which measures exchanges between "
            "workers, and BytePS has servers instead; leave it out"
        )


def _spec_for(config: Config, name: str, parameter: torch.Tensor) -> Spec:
    """Return the spec of a parameter.

    Raises:
        ConfigError: BytePS cannot run the spec.
    """
    choice = config.resolve(name, tuple(parameter.shape))
    if choice.spec.algorithm is not None:
        raise ConfigError(
            f"{choice.rule} gives '{name}' the spec '{choice.spec}', which takes several exchanges "
            "a step, and BytePS has one: its servers add and send back. Use Horovod for it "
            "(horovod_compressors), or a spec with a codec, such as 'residual|topk(ratio=0.01)'"
        )
    for row in choice.spec.plugins:
        if row.origin == "python":
            raise ConfigError(
                f"{choice.rule} gives '{name}' the codec '{row.name}', a plug-in in Python, and "
                "BytePS' servers decode without Python: use Horovod for it (horovod_compressors), "
                "or make the plug-in a shared library (docs/plugins.md)"
            )
    compresses = choice.spec.codec != "identity" or choice.spec.stateful
    if compresses and parameter.dtype not in DTYPES:
        known = ", ".join(str(dtype) for dtype in DTYPES)
        raise ConfigError(
            f"'{name}' is of {parameter.dtype}, and the plug-in compresses {known}: give it a rule "
            "with `use: identity`"
        )
    return choice.spec


def _check_agreement(config: Config, shapes: Mapping[str, tuple[int, ...]], feedback: str) -> None:
    """Compare versions, configuration, parameters and options of all workers.

    Raises:
        ProtocolError: the workers differ.
    """
    values = {
        "version": build_text(),
        "plug-in library": plugin().parent.name,
        "configuration": config.digest_text(),
        "digest of parameters' names and shapes": model_digest(shapes),
        "number of parameters": len(shapes),
        "server_feedback": feedback,
        "check_replicas_every": config.check_replicas_every,
        "epoch": native.load().epoch,
    }
    texts = gather(to_text(values), "call attach with equal arguments")
    check_equal(
        [read_object(text, rank, WORKER) for rank, text in enumerate(texts)],
        "the workers were given different parameters, configurations or options",
        "give all of them the same, and install one version of gradcomp on all machines",
    )


# ------------------------------------------------- summable payloads, without the plug-in


@dataclass
class _Context:
    """A compressed gradient between compress() and decompress()."""

    payload: torch.Tensor
    round: Round
    shape: torch.Size
    dtype: torch.dtype


class _ByName(type):
    """Codecs as attributes: ``Compression.randomk(model.named_parameters(), ratio=0.1)``."""

    def __getattr__(cls, name: str) -> Callable[..., Compression]:
        if name not in list_codecs():
            raise AttributeError(f"Compression has no codec '{name}': see gradcomp list")
        return functools.partial(_by_name, name)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *list_codecs()]


def _by_name(
    codec: str, named_parameters: NamedParameters, **params: float | int | bool | str
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

    def __init__(self, config: str | Config, named_parameters: NamedParameters) -> None:
        self.config = Config.from_spec(config) if isinstance(config, str) else config
        _check_config(self.config)
        for spec in self.config.specs:
            _check_summable(spec)
        self._parameters = uncompiled(named_parameters)
        self._names: dict[int, str] = {}
        self._running: dict[int, _Context] = {}

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """This worker's compression state, made at first use: it needs an initialized BytePS."""
        if not _initialized():
            raise GradcompError("BytePS is not initialized: call bps.init() first")
        return Pipeline(self.config, bps.rank(), bps.size())

    def set_lr(self, lr: float | Mapping[str, float]) -> None:
        """Set the learning rate of the coming step; see `gradcomp.Pipeline.set_lr`."""
        self.pipeline.set_lr(lr)

    def set_loss_scale(self, scale: float) -> None:
        """Begin a step of mixed precision; see `gradcomp.Pipeline.set_loss_scale`."""
        self.pipeline.set_loss_scale(scale)

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
        values = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()
        running = self.pipeline.round(self._name_of(tensor), values)
        try:
            request = next(running)
        except StopIteration:  # pragma: no cover
            raise AssertionError("a summable payload takes one exchange") from None
        assert isinstance(request, AllReduce)  # _check_summable made sure
        # A copy: BytePS averages in place, and dense payloads are views of the gradient.
        payload = torch.from_numpy(np.array(request.array)).to(tensor.device)
        # The key is the payload, not a context: BytePS' optimizer passes decompress() the context of
        # the last gradient for all gradients, but the same tensor object that compress() returned.
        self._running[id(payload)] = _Context(payload, running, tensor.shape, tensor.dtype)
        return payload, None

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Decode an averaged payload into the average of the gradients; ignores ``context``."""
        context = self._running.pop(id(tensor))
        try:
            context.round.send(tensor.cpu().numpy())
        except StopIteration as stop:
            average = torch.from_numpy(stop.value).view(context.shape)
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
            f"'{spec}' has payloads whose size changes, and BytePS wants one size: {instead}"
        )
