"""Compression objects for stock Horovod's tape and optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from gradcomp import Config
from gradcomp.adapter_api import (
    AllReduce,
    Collector,
    FloatArray,
    RankGroup,
    Resolved,
    Round,
    as_float32,
    exchange_pattern,
)
from gradcomp.errors import ConfigError, ProtocolError
from horovod_compressors.compression import BaseCompression
from horovod_compressors.tensorflow.engine import HorovodEngine, gather_bytes
from horovod_compressors.tensorflow.horovod_call import (
    Call,
    VariableNames,
    calling_allreduce,
    keras_2_loss_scale,
    keras_3_under_construction,
)
from horovod_compressors.tensorflow.reinit import in_branch, life, telling_lost_ranks

__all__ = ["Compression"]

SUMMABLE_DTYPES = frozenset({tf.float16, tf.float32, tf.float64})
"""Dtypes of gradients that Horovod can all-reduce; it does not know bfloat16."""

PARTS = 4
"""Operations that take the gradients of a large model: what one sends travels during the computation of the
next. Each takes ``bucket_bytes`` or more, as every request costs time."""

# Graphs that run in several threads take turns.
_lock = threading.Lock()

# The collection of a graph's operations; each waits for the one before it.
_OPERATIONS = "gradcomp"


# A complex gradient, which Horovod averages as pairs of real numbers.
_PAIRS = object()


@dataclass(frozen=True)
class _Averaged:
    """The tensor of a graph that holds the average of a gradient."""

    average: Any
    ranks: Any  # factor from the average to the sum; None if averages are wanted

    def restore(self, dtype: Any) -> Any:
        average = tf.cast(self.average, dtype)
        return average if self.ranks is None else average * tf.cast(self.ranks, dtype)


class _ByHand(NamedTuple):
    """The linear round of a tensor that is all-reduced outside of graphs."""

    round: Round
    shape: tuple[int, ...]
    factor: float  # of the payload before the sum

    def restore(self, payload: Any, dtype: Any) -> Any:
        try:
            self.round.send(payload.numpy())
        except StopIteration as stop:
            average = stop.value.reshape(self.shape) * np.float32(1 / self.factor)
            return tf.cast(average, dtype)
        raise ProtocolError("the linear round of a tensor has a second phase")


class _Tensor(NamedTuple):
    """One gradient of a graph."""

    name: str
    shape: tuple[int, ...]
    nbytes: int


class _Step(NamedTuple):
    """A step of a graph.

    Attributes:
        shapes: of all variables; see `VariableNames.shapes`.
        names: of the variables with gradients.
        setters: take settings of the step.
        dense: gradients that Horovod averages.
        compressed: gradients that the graph's operations average, in the order of their averages.
    """

    shapes: Mapping[str, tuple[int, ...]]
    names: Collection[str]
    setters: Sequence[Callable[[float], None]]
    dense: Sequence[_Tensor]
    compressed: Sequence[_Tensor]


class _Collecting(NamedTuple):
    collector: Collector
    engine: HorovodEngine


def _parts(tensors: Sequence[_Tensor], least: int) -> list[list[int]]:
    """Places of tensors in parts of about as many bytes, last tensors first, as in a backward pass.

    Args:
        least: bytes of a part.
    """
    share = max(sum(tensor.nbytes for tensor in tensors) / PARTS, least)
    parts: list[list[int]] = [[]]
    total = 0
    for place in reversed(range(len(tensors))):
        if parts[-1] and total >= share * len(parts):
            parts.append([])
        parts[-1].append(place)
        total += tensors[place].nbytes
    return parts


class Compression(BaseCompression):
    """A compressor for the ``compression`` argument of the stock ``hvd.DistributedGradientTape``,
    and of the stock ``hvd.DistributedOptimizer`` of Keras 2.

    Horovod all-reduces lists of gradients. In the graph of each list, a few operations take the
    compressed gradients, part after part, and Horovod all-reduces the others. Averages equal those of
    ``horovod_compressors.torch``.

    Args:
        config: a spec such as ``"residual|topk(ratio=0.01)"`` for all tensors, ``"auto"`` for the
            preset of docs/which-compressor.md, or a `gradcomp.Config` with its own rules. With a
            spec, tensors with at most one dimension or under 4096 elements travel uncompressed. The
            same on every rank; a difference is an error on all ranks.
        variables: all that may have gradients, such as ``model.trainable_variables`` of a model
            that is built. State is kept by their names; a repeated name gets a number. Without this
            argument variables are named in the order of their first use.
        process_set: the process set of the tape or the optimizer.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: the policy ``auto`` without ``variables``.

    Example::

        compression = Compression(variables=model.trainable_variables)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
    """

    HOROVOD = hvd
    OPTIONS = ("variables", "process_set")
    OVERWRITE = False  # arrays of TensorFlow's tensors must not change
    BLOCKING = True

    def __init__(
        self,
        config: str | Config = "auto",
        variables: Iterable[Any] | None = None,
        process_set: Any = hvd.global_process_set,
    ) -> None:
        super().__init__(config, process_set)
        if variables is None and self.config.compress.policy == "auto":
            raise ConfigError(
                "the policy 'auto' decides about all variables together: pass "
                "variables=model.trainable_variables to Compression"
            )
        self._names = VariableNames(variables)
        self._begin()

    _rate: Callable[[], Any] | None = None
    _scale: Callable[[], Any] | None = None

    def _begin(self) -> None:
        self._collecting: dict[tuple[str, ...], _Collecting] = {}
        self._collectors_life = self._life()
        self._unfinished = False  # a part of a step's gradients has been sent
        # The averages of each graph's gradients, by the ids of their tensors, which live as long as
        # the graph; None for gradients that Horovod averages, `_PAIRS` for complex ones.
        self._traced: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, for its checkpoint: plain numbers, strings and numpy arrays.

        Every rank has its own and must save its own; `Pipeline.state_dict` names the keys.
        """
        if self._scale is not None:  # the last step may have been skipped
            self.set_loss_scale(float(tf.cast(self._scale(), tf.float32)))
        return self.pipeline.state_dict()

    def _state_to_save(self) -> Mapping[str, Any]:
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state: this rank's own, or the list of all ranks' states.

        See `Pipeline.load_state_dict`.

        Raises:
            StateError: the state does not fit.
        """
        self.pipeline.load_state_dict(state)

    def read_rate(self, rate: Callable[[], Any]) -> None:
        """Take the learning rate of each step from ``rate``, instead of calls of `set_lr`.

        Args:
            rate: gives a scalar tensor, in the graph or step of the gradients. `DistributedOptimizer`
                passes that of its optimizer.
        """
        self._rate = rate

    def read_scale(self, scale: Callable[[], Any]) -> None:
        """Take the loss scale of each step from ``scale``, instead of calls of `set_loss_scale`.

        Args:
            scale: as ``rate`` of `read_rate`.
        """
        self._scale = scale

    # The interface that Horovod calls.

    def __hash__(self) -> int:
        # Horovod looks its functions up by the compressor, and while it makes an optimizer of
        # Keras 3 this is the only call of any method: `compress` would never be called.
        if keras_3_under_construction():
            raise ConfigError(
                "Horovod's own DistributedOptimizer never averages the gradients of Keras 3: use "
                "horovod_compressors.tensorflow.DistributedOptimizer(optimizer, compression), or "
                "Keras 2 (pip install --no-deps tf-keras, and set TF_USE_LEGACY_KERAS=1)"
            )
        return id(self)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Start averaging a gradient; Horovod all-reduces the returned tensor.

        Integers and booleans, which are no gradients, are returned as they are, with any spec. Outside
        of graphs, as in a call of ``hvd.allreduce``, it works with ``identity`` and ``fp16``.

        Raises:
            ConfigError: Horovod's tape or optimizer is not the caller, or does not fit.
            TypeError: a gradient is complex, and of a spec with payloads that cannot be added.
        """
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return tensor, None
        if not self.process_set.included():
            return tensor, None  # Horovod does not all-reduce it
        if tf.executing_eagerly():
            return self._compress_by_hand(tensor)
        if self.process_set.size() == 1 and not self._elastic:
            return tensor, None  # Horovod does not all-reduce it, either
        of_graph = self._traced.setdefault(tensor.graph, {})
        if id(tensor) not in of_graph:
            call = calling_allreduce()
            if call is None or not any(grad is tensor for grad in call.grads):
                raise _misplaced()
            of_graph.update(self._trace(call, tensor.graph))
        averaged = of_graph[id(tensor)]
        if averaged is None:
            return tensor, None
        if averaged is _PAIRS:
            return tf.bitcast(tensor, tensor.dtype.real_dtype), (_PAIRS, tensor.dtype)
        return tf.ones(1), (averaged, tensor.dtype)

    def _compress_by_hand(self, tensor: Any) -> tuple[Any, Any]:
        """Compress a tensor without a variable, which only one all-reduce by Horovod can average."""
        resolved = self.pipeline.resolve("", tuple(tensor.shape), self._default_rules_by_hand)
        if resolved.dense or tensor.dtype.is_complex:
            return tensor, None
        if not resolved.aggregator.linear:
            raise _misplaced()
        array = as_float32(np.asarray(tensor.numpy()))
        round_ = self.pipeline.round("", array, array.nbytes, resolved)
        request = next(round_)
        assert isinstance(request, AllReduce)  # ensured by `Aggregator.linear`
        factor = AllReduce.headroom(request.array.dtype, self.process_set.size())
        payload = request.array * request.array.dtype.type(factor)
        return tf.constant(payload), (_ByHand(round_, array.shape, factor), tensor.dtype)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """The averaged gradient; ``tensor`` is the all-reduced result of `compress`."""
        if ctx is None:
            return tensor
        averaged, dtype = ctx
        if averaged is _PAIRS:
            return tf.bitcast(tensor, dtype)
        if isinstance(averaged, _ByHand):
            return averaged.restore(tensor, dtype)
        return averaged.restore(dtype)

    def _trace(self, call: Call, graph: Any) -> dict[int, Any]:
        """Put the averages of all gradients of a call into its graph."""
        self._check_call(call)
        scaling = keras_2_loss_scale()
        if scaling is not None:
            self.read_scale(lambda: scaling.loss_scale)
        names = self._names.find(call.variables)
        shapes = self._names.shapes(names)
        # All ranks trace the same graphs, except in elastic jobs: there the graph's operation agrees.
        if not self._elastic:
            with tf.init_scope():
                self._collector_of(shapes)
        grads = zip(names, call.grads, strict=True)
        used = frozenset(name for name, grad in grads if grad is not None)
        dense, compressed, inputs = [], [], []
        result: dict[int, Any] = {}
        for name, variable, grad in zip(names, call.variables, call.grads, strict=True):
            if grad is None:
                continue
            shape = tuple(variable.shape)
            if isinstance(grad, tf.IndexedSlices):
                self._check_sparse(name, shape)
                continue
            tensor = _Tensor(name, shape, grad.dtype.size * int(np.prod(shape, dtype=np.int64)))
            resolved = self.pipeline.resolve(name, shape)
            if grad.dtype.is_complex:
                _check_complex(name, grad.dtype, resolved)
                dense.append(tensor)
                result[id(grad)] = _PAIRS
            elif grad.dtype in SUMMABLE_DTYPES and self.pipeline.always_dense(resolved):
                dense.append(tensor)
                result[id(grad)] = None
            else:
                compressed.append(tensor)
                inputs.append(grad)
        with graph.as_default(), tf.name_scope("gradcomp"), tf.device("CPU:0"):
            settings: list[tuple[Callable[[float], None], Any]] = []
            if self._rate is not None and self.config.scales_lr:
                settings.append((self.set_lr, tf.cast(self._rate(), tf.float32)))
            if self._scale is not None:
                settings.append((self.set_loss_scale, tf.cast(self._scale(), tf.float32)))
            setters = [setter for setter, _ in settings]
            step = _Step(shapes, used, setters, dense, compressed)
            averages = self._put(step, [value for _, value in settings], inputs, graph)
            ranks = None if call.op == hvd.Average else self._size()
            for tensor, grad, average in zip(compressed, inputs, averages, strict=True):
                average.set_shape(tensor.shape)
                result[id(grad)] = _Averaged(average, ranks)
        return result

    def _put(
        self, step: _Step, settings: Sequence[Any], inputs: Sequence[Any], graph: Any
    ) -> Sequence[Any]:
        """Put the operations of a step into the current graph; the averages of its inputs.

        Each operation takes a part of the gradients, once the backward pass has computed them. Operations
        follow one another, also those of other steps: so all ranks have one order.
        """
        # Parts of a profiled step add up, without overlap; a reset of an elastic job does not cut a step.
        if self._elastic or self.stats.profile is not None:
            parts = [list(range(len(inputs)))]
        else:
            parts = _parts(step.compressed, self.config.compress.bucket_bytes)
        operations = graph.get_collection_ref(_OPERATIONS)
        averages: Sequence[Any] = []
        for number, places in enumerate(parts):
            begins, ends = number == 0, number == len(parts) - 1
            values = [*(settings if begins else ()), *(inputs[place] for place in places)]
            results = [tf.float32] * len(inputs) if ends else []
            # Not those of a graph around it.
            before = [earlier for earlier in operations if earlier.graph is graph]
            with tf.control_dependencies(before):
                take = partial(self._take, step, places, begins, ends)
                operation = partial(tf.numpy_function, take, values, results)
                if self._elastic and results:
                    done = in_branch(operation, lambda: [tf.cast(x, tf.float32) for x in inputs])
                else:
                    done = operation()
            if results:
                averages, done = done, done[0].op
            operations[:] = [done]
        return averages

    def _take(
        self, step: _Step, places: Sequence[int], begins: bool, ends: bool, *values: Any
    ) -> list[FloatArray]:
        """An operation in the graph: takes values of the step's settings, then gradients.

        The first begins the step. The last one waits for all averages, and returns them.
        """
        with _lock, telling_lost_ranks() if self._elastic else nullcontext():
            collector, engine = self._collector_of(step.shapes)
            unfinished, self._unfinished = self._unfinished, False
            grads = values
            if begins:
                if unfinished:
                    raise ProtocolError(
                        "the last backward pass has failed after a part of its gradients was sent: start the job "
                        "again from its newest checkpoint"
                    )
                for setter, value in zip(step.setters, values, strict=False):
                    setter(float(value))
                grads = values[len(step.setters) :]
                self._report(collector.begin_step(step.names))
                for tensor in step.dense:
                    self.pipeline.count_dense({tensor.name: tensor.nbytes})
            for place, grad in zip(places, grads, strict=True):
                tensor = step.compressed[place]
                resolved = collector.resolve(tensor.name, tensor.shape)
                collector.add(resolved, as_float32(np.asarray(grad)), tensor.nbytes)
            engine.send()
            if not ends:
                self._unfinished = True
                return []
            collector.check()
            averages = [
                collector.finish(tensor.name).reshape(tensor.shape) for tensor in step.compressed
            ]
            collector.end_step()
            return averages

    def _collector_of(self, shapes: Mapping[str, tuple[int, ...]]) -> _Collecting:
        if self._collectors_life is not self._life():
            self._begin()  # the ranks have changed
        collecting = self._collecting.get(tuple(shapes))
        if collecting is None:
            collector = self.agree(shapes, self._names.kinds(shapes))
            collecting = self._collecting[tuple(shapes)] = _Collecting(collector, self._newest)
        return collecting

    def _meet(self, call: str) -> None:
        # Ranks make the same collectors in the same order.
        collecting = next(iter(self._collecting.values()), None)
        if collecting is None or self._elastic:
            super()._meet(call)
        else:
            collecting.collector.meet(call)

    def _check_complete(self) -> None:
        if tf.inside_function():
            raise ConfigError(
                "discard_step() in a tf.function would run once, when its graph is made: call it outside "
                "of tf.function, between steps"
            )

    def _life(self) -> object:
        """See `BaseCompression`."""
        return life() if self._elastic else None

    def _size(self) -> Any:
        """The number of ranks, in elastic jobs a tensor of the graph."""
        return hvd.size_op() if self._elastic else self.process_set.size()

    def _check_call(self, call: Call) -> None:
        """Refuse options that would give wrong averages."""
        self._check_process_set(call.process_set.process_set_id)
        if call.op not in (hvd.Average, hvd.Sum):
            self._check_exotic_op()
        if self._elastic and call.grouped:
            raise ConfigError(
                "groups does not work in elastic jobs: hvd.elastic.run takes a rank that is lost during a "
                "grouped all-reduce for the end of training; leave groups out"
            )

    def _check_sparse(self, name: str, shape: tuple[int, ...]) -> None:
        resolution = self.config.resolve(name, shape)
        for spec in resolution.schedule.specs:
            if exchange_pattern(spec, resolution.exchange) != "dense":
                raise TypeError(
                    f"the gradient of '{name}' is an IndexedSlices, which '{spec}' cannot compress: "
                    "give the variable a rule with `use: identity`, or pass sparse_as_dense=True to "
                    "Horovod's tape or optimizer"
                )

    def _parameters(self) -> Iterable[tuple[str, Any]]:
        for name, variable in self._names.variables():
            yield name, np.ascontiguousarray(variable.numpy())

    def _collectives(self, prefix: str, process_sets: Mapping[RankGroup, Any]) -> HorovodEngine:
        self._newest = HorovodEngine(process_sets)
        return self._newest

    def _gather_text(self, text: bytearray, name: str) -> bytes:
        return gather_bytes(text, self.process_set)


def _check_complex(name: str, dtype: Any, resolved: Resolved) -> None:
    """Refuse a complex gradient of a spec with payloads that cannot be added."""
    if resolved.group is not None or not (resolved.lasting and resolved.aggregator.linear):
        raise TypeError(
            f"the gradient of '{name}' is of {dtype.name} and cannot take '{resolved.spec}' here: codecs work "
            "on real numbers, so complex gradients travel uncompressed, without policy: auto and schedules, "
            "and with `identity` or specs with payloads that can be added: give the variable a rule with "
            "`use: identity`, or make it real and use tf.complex on its parts"
        )


def _misplaced() -> ConfigError:
    return ConfigError(
        "Compression works in hvd.DistributedGradientTape and hvd.DistributedOptimizer only: from "
        "hvd.allreduce it cannot learn the variable of a gradient, which all specs but identity and fp16 "
        "need, and within a tf.function these, too"
    )
