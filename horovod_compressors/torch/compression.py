"""Compression objects for the stock ``hvd.DistributedOptimizer``."""

from __future__ import annotations

import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from gradcomp import Config, list_algorithms, list_codecs, load_config
from gradcomp.aggregators import exchange_pattern
from gradcomp.errors import ConfigError, GradcompError, ProtocolError
from gradcomp.memory import STATE_KINDS
from gradcomp.pipeline import Pipeline
from gradcomp.policy import Decision
from gradcomp.rounds import AllReduce, Round
from gradcomp.stats import Stats
from horovod_compressors.driver import Collector, Driver
from horovod_compressors.torch.engine import SUMMABLE_DTYPES, HorovodEngine
from horovod_compressors.torch.names import ParameterNames, calling_optimizer
from horovod_compressors.torch.nodes import group_sets, node_problem, ranks_per_node
from torch_compressors.dgc_sgd import check_momentum
from torch_compressors.state import with_arrays

__all__ = ["Compression"]

NamedParameters = Iterable[tuple[str, torch.Tensor]]

# The context of a gradient that Horovod all-reduces as it is.
_DENSE = object()

# Numbers the instances of each process set in the order of their first use, which is the same on
# every rank of the set.
_instances: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)


@dataclass
class _Context:
    """What decompress needs to know of a compressed gradient."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    round: Round | None  # of a linear round; the driver has the others

    def restore(self, average: Any) -> torch.Tensor:
        """The average as a tensor like the gradient was."""
        tensor = torch.from_numpy(average).view(self.shape)
        return tensor.to(device=self.device, dtype=self.dtype)


class _Constructor:
    """``Compression.<codec>``, which works called and uncalled.

    Called with the codec's parameters it makes a `Compression`; used as it is, like the stock
    ``hvd.Compression.fp16``, it is one with default parameters.
    """

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def __call__(
        self,
        *,
        named_parameters: NamedParameters | None = None,
        process_set: Any = hvd.global_process_set,
        **params: float | int | bool | str,
    ) -> Compression:
        values = ",".join(f"{key}={_spec_value(value)}" for key, value in params.items())
        spec = f"{self._codec}({values})" if values else self._codec
        return Compression(spec, named_parameters, process_set)

    @cached_property
    def _default(self) -> Compression:
        return self()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._default, name)


def _spec_value(value: float | int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_nameless(config: Config) -> None:
    """Refuse what cannot do without the names of parameters."""
    if config.stateful:
        spec = next(spec for spec in config.specs if spec.stateful)
        reason = f"'{spec}' keeps state between steps, by parameter name"
    elif config.switches:
        plan = next(plan for _, plan, _ in config.compress.plans if plan.switches)
        reason = f"'{plan}' counts steps by parameter name"
    elif config.compress.policy == "auto":
        reason = "the policy 'auto' decides by parameter name"
    else:
        return
    raise ConfigError(f"{reason}: pass named_parameters=model.named_parameters() to Compression")


class _Codecs(type):
    """Gives `Compression` one constructor per registered codec and algorithm."""

    def __getattr__(cls, name: str) -> _Constructor:
        codec = "identity" if name == "none" else name
        known = [*list_codecs(), *list_algorithms()]
        if codec not in known:
            raise AttributeError(
                f"Compression has no codec '{name}'; it has none, {', '.join(known)}"
            )
        return _Constructor(codec)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), "none", *list_codecs(), *list_algorithms()]


class Compression(metaclass=_Codecs):
    """A compressor for the ``compression`` argument of the stock ``hvd.DistributedOptimizer``.

    Summable payloads are all-reduced by Horovod itself. For any other spec ``compress`` starts the
    exchange at once, in the background, and hands Horovod a one-element token; ``decompress``
    finishes the exchange, and the token's reduced value tells ``op=Average`` from ``op=Sum``.

    Args:
        config: a spec such as ``"residual|topk(ratio=0.01)"`` for all tensors (tensors with at most
            one dimension or under 4096 elements travel uncompressed), or a `gradcomp.Config` with
            rules of its own. The same on every rank; a difference is an error on all ranks.
        named_parameters: ``model.named_parameters()``. Required when a spec keeps state between
            steps (a memory, an algorithm), by name. Otherwise the optimizer's own names serve.
        process_set: that of the optimizer.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: a spec that keeps state without ``named_parameters``.

    Example::

        compression = Compression("residual|topk(ratio=0.01)", model.named_parameters())
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression)
    """

    def __init__(
        self,
        config: str | Config,
        named_parameters: NamedParameters | None = None,
        process_set: Any = hvd.global_process_set,
    ) -> None:
        self.config = Config.from_spec(config) if isinstance(config, str) else config
        if named_parameters is None:
            _check_nameless(self.config)
        self.process_set = process_set
        self._names = ParameterNames(named_parameters)
        self._collector: Collector | None = None
        # From a step's first gradient until the optimizer wants averages.
        self._in_step = False

    @classmethod
    def from_config(
        cls,
        paths: str | Path | Sequence[str | Path],
        overrides: Sequence[str] = (),
        named_parameters: NamedParameters | None = None,
        process_set: Any = hvd.global_process_set,
    ) -> Compression:
        """From YAML files, composed left to right, and overrides such as ``"seed=1"``."""
        files = [paths] if isinstance(paths, str | Path) else list(paths)
        return cls(load_config(files, overrides), named_parameters, process_set)

    @classmethod
    def from_env(
        cls,
        named_parameters: NamedParameters | None = None,
        process_set: Any = hvd.global_process_set,
    ) -> Compression:
        """From ``GRADCOMP_COMPRESSION`` (a spec) or ``GRADCOMP_CONFIG`` (files, ``:`` between).

        Without either, nothing is compressed; both at once are an error.
        """
        spec = os.environ.get("GRADCOMP_COMPRESSION", "")
        files = os.environ.get("GRADCOMP_CONFIG", "")
        if spec and files:
            raise ConfigError(
                f"GRADCOMP_COMPRESSION is '{spec}' and GRADCOMP_CONFIG is '{files}': "
                "set one of them"
            )
        if files:
            return cls.from_config(files.split(os.pathsep), (), named_parameters, process_set)
        return cls(spec or "identity", named_parameters, process_set)

    @cached_property
    def pipeline(self) -> Pipeline:
        """This rank's compression state. Made at first use, as it needs an initialized Horovod."""
        if not hvd.is_initialized():
            raise GradcompError("Horovod is not initialized: call hvd.init() first")
        if os.environ.get("HOROVOD_ELASTIC") == "1":
            raise GradcompError(
                "elastic Horovod is not supported: ranks that join later would not know what the "
                "others have agreed on; run with a fixed number of ranks"
            )
        return Pipeline(
            self.config,
            self.process_set.rank(),
            self.process_set.size(),
            ranks_per_node(self.config),
        )

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, counted from 0; every rank must, before its first step.

        Only schedules that count epochs need it, such as the warm-up of ``dgc``.
        """
        self.pipeline.set_epoch(epoch)

    @property
    def stats(self) -> Stats:
        """Bytes that this rank handed to collectives: headers, indices and tokens included."""
        return self.pipeline.stats

    def decide_again(self) -> None:
        """Forget what the policy ``auto`` has decided, and measure anew; on all ranks at once."""
        self.pipeline.decide_again()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, for its checkpoint: plain numbers, strings and CPU tensors.

        Every rank has its own and must save its own; `Pipeline.state_dict` names the keys.
        """
        state = self.pipeline.state_dict()
        for kind in STATE_KINDS:
            state[kind] = {name: torch.from_numpy(value) for name, value in state[kind].items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take up a saved state: this rank's own, or the list of all ranks' states.

        See `Pipeline.load_state_dict`.
        """
        if isinstance(state, Mapping):
            self.pipeline.load_state_dict(with_arrays(state))
        else:
            self.pipeline.load_state_dict([with_arrays(one) for one in state])

    # The interface that Horovod calls.

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start averaging a gradient; Horovod all-reduces the tensor that is returned."""
        if tensor.is_sparse:
            raise TypeError(
                "a sparse gradient cannot be compressed: pass sparse_as_dense=True, which works "
                "without groups only, to hvd.DistributedOptimizer, or make the layer's gradient "
                "dense (sparse=False)"
            )
        if tensor.is_complex():
            raise TypeError(
                f"a gradient of dtype {tensor.dtype} cannot be averaged: Horovod and the codecs "
                "take real numbers; make the parameter real and use torch.view_as_complex on it"
            )
        collector = self._collector or self._first_use()
        if not self._in_step:
            self._in_step = True
            self._report(collector.begin_step())
        name = self._names.find(tensor)
        shape = tuple(tensor.shape)
        aggregator = self.pipeline.aggregator(name or "", shape)
        if tensor.requires_grad:  # it is the parameter itself
            plan = self.config.resolve(name or "", shape).plan
            if self.pipeline.measures:
                raise TypeError(
                    "op=Adasum does not work with `compress.policy: auto`, which averages while it "
                    "measures: use op=Average, or set compress.policy to always"
                )
            if plan.stateful or not aggregator.linear:
                raise TypeError(
                    f"op=Adasum does not work with '{plan}' here: Adasum combines parameter "
                    "changes by their angles, which needs payloads that can be added, no memory, "
                    "and an all-reduce; use op=Average, or a spec such as fp16 with exchange: auto"
                )
        if name is None and not aggregator.linear:
            raise ConfigError(
                f"'{self.config.spec_for('', shape)}' needs the parameter's name: use it in "
                "hvd.DistributedOptimizer, or pass named_parameters to Compression"
            )
        measured = name is not None and self.pipeline.measured(name, shape) is not None
        if (
            not measured
            and self.pipeline.sends_dense(name or "", shape)
            and tensor.dtype in SUMMABLE_DTYPES
        ):
            self.pipeline.count_dense(name or "", tensor.nbytes)
            return tensor.contiguous(), _DENSE
        gradient = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()
        context = _Context(name or "", tensor.shape, tensor.dtype, tensor.device, None)
        if aggregator.linear and not measured:
            context.round = self.pipeline.round(context.name, gradient, tensor.nbytes)
            request = next(context.round)
            assert isinstance(request, AllReduce)  # as linear rounds are
            return torch.from_numpy(request.array).to(tensor.device), context
        collector.add(context.name, gradient, tensor.nbytes)
        token = torch.ones(1, device=tensor.device)
        self.stats.count("token", token.nbytes)
        return token, context

    def _report(self, decisions: Sequence[Decision]) -> None:
        if self.pipeline.rank == 0:
            for one in decisions:
                print(f"gradcomp: policy auto: {one}", file=sys.stderr, flush=True)

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The reduced gradient, from what Horovod made of `compress`'s tensor."""
        average = self._average(tensor, ctx)
        self._in_step = False
        if self._collector is not None:
            self._collector.end_step()
        return average

    def _average(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        if ctx is _DENSE:
            return tensor
        if ctx is None:
            return self._pass_sparse(tensor)
        assert isinstance(ctx, _Context)
        if ctx.round is not None:
            try:
                ctx.round.send(tensor.cpu().numpy())
            except StopIteration as stop:
                return ctx.restore(stop.value)
            raise ProtocolError(f"the linear round of '{ctx.name}' has a second phase")
        assert self._collector is not None  # compress made it
        scale = self._token_scale(tensor)
        average = ctx.restore(self._collector.finish(ctx.name))
        return average if scale == 1 else average * scale

    def _token_scale(self, token: torch.Tensor) -> int:
        """1 for op=Average, the number of ranks for op=Sum."""
        scale = float(token)
        size = self.pipeline.world_size
        for known in (1, size):
            if abs(scale - known) < 1e-3:
                return known
        raise ProtocolError(
            f"the token of a compressed gradient was reduced to {scale}; op=Average gives 1 and "
            f"op=Sum {size}: other operations, and ranks that are in hvd.join(), do not work with "
            "a spec whose payloads cannot be added"
        )

    def _pass_sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """A sparse gradient, which Horovod has gathered without calling `compress`."""
        for _, spec, exchange in self.config.compress.choices:
            if exchange_pattern(spec, exchange) not in ("dense", "reduce"):
                raise TypeError(
                    f"a sparse gradient cannot take '{spec}': pass sparse_as_dense=True to "
                    "hvd.DistributedOptimizer, or make the layer's gradient dense (sparse=False)"
                )
        return tensor

    def _first_use(self) -> Collector:
        """Make sure that all ranks mean the same, before any of them sends a gradient.

        Blocking is safe here: every rank comes here with its first gradient of the first step, as
        Horovod submits every parameter on every rank.
        """
        optimizer = calling_optimizer()
        if optimizer is not None:
            self._check_optimizer(optimizer)
        prefix = f"gradcomp.{next(_instances[self.process_set.process_set_id])}"
        shapes = self._names.shapes()
        digest = blake2b(repr(list(shapes.items())).encode(), digest_size=8).hexdigest()
        # One line of text per rank; a ragged gather delivers them one after the other.
        problem = node_problem(self.config, self.process_set) or ""
        line = bytearray(f"{self.config.digest_text()}\t{digest}\t{problem}\n".encode())
        lines = hvd.allgather(
            torch.frombuffer(line, dtype=torch.uint8),
            name=f"{prefix}.spec",
            process_set=self.process_set,
        )
        texts, models, problems = zip(
            *(one.split("\t") for one in bytes(lines.numpy()).decode().splitlines()), strict=True
        )
        if len(set(texts)) > 1:
            listed = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(texts))
            raise ProtocolError(f"the ranks run different compression:\n{listed}")
        if len(set(models)) > 1:
            raise ProtocolError(
                "the ranks' parameters differ in names, shapes or order, so their gradients cannot "
                "be averaged: build the same model on every rank, and pass named_parameters in the "
                "same order"
            )
        if any(problems):
            listed = "\n".join(f"  rank {n}: {text}" for n, text in enumerate(problems) if text)
            raise ConfigError(f"the exchange two_level cannot be:\n{listed}")
        sets = group_sets(self.process_set, self.pipeline.ranks_per_node)
        driver = Driver(HorovodEngine(prefix, sets))
        self._collector = Collector(driver, self.pipeline, shapes)
        return self._collector

    def _check_optimizer(self, optimizer: Any) -> None:
        """Refuse what would give wrong averages.

        The optimizer that the stock factory makes for op=Adasum has neither attribute.
        """
        check_momentum(self.config, optimizer)
        theirs = getattr(optimizer, "process_set", hvd.global_process_set).process_set_id
        if theirs != self.process_set.process_set_id:
            raise ConfigError(
                f"the optimizer averages over process set {theirs} and Compression over "
                f"{self.process_set.process_set_id}: pass the same process_set to both"
            )
        if getattr(optimizer, "op", hvd.Average) in (hvd.Average, hvd.Sum, hvd.Adasum):
            return
        for _, spec, exchange in self.config.compress.choices:
            if exchange_pattern(spec, exchange) != "dense":
                raise ConfigError(
                    f"'{spec}' cannot take this optimizer's op: compressed gradients can be "
                    "averaged or added; use op=hvd.Average, op=hvd.Sum, or Compression.none"
                )
