"""Base class of the compression objects of all frameworks."""

from __future__ import annotations

import itertools
import logging
import os
import reprlib
from abc import ABCMeta, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from gradcomp import Config, list_algorithms, list_codecs, load_config
from gradcomp.adapter_api import (
    Collector,
    Controls,
    Driver,
    Engine,
    Pipeline,
    RankGroup,
    agreement_line,
    check_agreement,
    common_state,
    exchange_pattern,
    moved,
    pack_state,
    resized,
    take_common_state,
    unpack_state,
    use_processors,
)
from gradcomp.errors import ConfigError, GradcompError, SpecError
from horovod_compressors.liveness import job_marks
from horovod_compressors.nodes import group_sets, node_problem, ranks_per_node

__all__ = ["BaseCompression", "is_elastic"]


_log = logging.getLogger(__name__)


class _Instances:
    """Numbers the instances of each process set in the order of their first use.

    This order is the same on every rank of the set. Numbers begin again when a job changes its ranks.
    """

    def __init__(self) -> None:
        self._life: object = None
        self._numbers: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)

    def next(self, life: object, process_set: int) -> int:
        """The next number in a life of Horovod."""
        if life is not self._life:
            self._life = life
            self._numbers.clear()
        return next(self._numbers[process_set])


_instances = _Instances()

_calls: defaultdict[tuple[int, str], Iterator[int]] = defaultdict(itertools.count)
"""Numbers of calls by process set, which are equal on its ranks."""


# Attributes of a compression that a copy has, too.
_COPIED = frozenset({"config", "process_set", "_pipeline", "_names", "_uneven"})


def is_elastic() -> bool:
    """Whether ranks of this job may come and go."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


class _Constructor:
    """``Compression.<codec>``, which works called and uncalled.

    Called with the codec's parameters it makes a `Compression`. Uncalled, like the stock
    ``hvd.Compression.fp16``, it acts as a `Compression` with default parameters.
    """

    def __init__(self, kind: Any, codec: str) -> None:
        self._kind = kind
        self._codec = codec

    def __call__(self, **params: Any) -> Any:
        options = {name: params.pop(name) for name in self._kind.OPTIONS if name in params}
        values = ",".join(f"{key}={_spec_value(value)}" for key, value in params.items())
        spec = f"{self._codec}({values})" if values else self._codec
        return self._kind(spec, **options)

    @cached_property
    def _default(self) -> Any:
        return self()

    def __hash__(self) -> int:  # the compression's own may raise ConfigError
        return hash(self._default)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._default, name)


def _spec_value(value: float | int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problem(name: str) -> str:
    """Why a name is no spec, in one line."""
    try:
        Config.from_spec(name)
    except SpecError as error:
        return str(error).partition("\n")[0]
    return "it is not a codec or an algorithm alone"


def _casts(config: Config) -> bool:
    """Whether tensors of the default are added as float16 in every step, as by the stock ``fp16``."""
    default, *_ = config.compress.resolutions
    return all(
        [stage.name for stage in phase.use.stages] == ["fp16"]
        and (phase.exchange or default.exchange) in ("auto", "reduce")
        for phase in default.schedule.phases
    )


class _Codecs(ABCMeta):
    """Gives a class of compressions one constructor per registered codec and algorithm."""

    def __getattr__(cls, name: str) -> _Constructor:
        codec = "identity" if name == "none" else name
        if codec not in (*list_codecs(), *list_algorithms()):
            raise AttributeError(
                f"Compression has no codec '{name}': {_problem(name)}; Compression.none compresses nothing"
            )
        return _Constructor(cls, codec)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), "none", *list_codecs(), *list_algorithms()]


class BaseCompression(Controls, metaclass=_Codecs):
    """One rank's compression in Horovod; a subclass for each framework.

    Args:
        config: a spec, or a `gradcomp.Config`.
        process_set: the ranks over which gradients are averaged.
    """

    HOROVOD: ClassVar[Any]
    """Horovod's module for the framework."""

    OPTIONS: ClassVar[tuple[str, ...]]
    """The constructor's arguments after ``config``."""

    OVERWRITE: ClassVar[bool]
    """Whether averages may overwrite gradients."""

    BLOCKING: ClassVar[bool] = False
    """Whether the engine runs requests in groups; see `Collector`."""

    def __init__(self, config: str | Config, process_set: Any) -> None:
        self.config = Config.of(config)
        self.process_set = process_set
        self._pipeline: Pipeline | None = None
        self._pipeline_life: object = None
        self._elastic = is_elastic()
        self._unset = False

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: configuration and state. The engine is made again at first use."""
        return {name: value for name, value in vars(self).items() if name in _COPIED}

    def __setstate__(self, copied: dict[str, Any]) -> None:
        vars(self).update(copied)
        self._elastic = is_elastic()
        self._pipeline_life = self._life()
        self._unset = False
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Set the attributes that belong to this process and its engine, before their first use."""

    @classmethod
    def from_config(
        cls,
        paths: Config | str | Path | Sequence[str | Path],
        overrides: Sequence[str] = (),
        *args: Any,
        **options: Any,
    ) -> Self:
        """From YAML files, composed left to right, and overrides such as ``"seed=1"``.

        Args:
            paths: one file or several, or a `gradcomp.Config`, which takes no overrides.
            args, options: the constructor's other arguments.

        Raises:
            ConfigError: a file or an override is wrong.
        """
        if isinstance(paths, Config):
            if overrides:
                raise ConfigError(
                    f"overrides are {list(overrides)}, and change files only: give them to load_config, "
                    "which makes the Config"
                )
            return cls(paths, *args, **options)
        if isinstance(paths, str | Path):
            paths = [paths]
        elif not isinstance(paths, Sequence) or not all(isinstance(p, str | Path) for p in paths):
            raise ConfigError(
                f"paths is {reprlib.repr(paths)}; it must be the path of a YAML file, a list of paths, or "
                "a gradcomp.Config"
            )
        return cls(load_config(paths, overrides), *args, **options)

    @classmethod
    def from_env(cls, *args: Any, **options: Any) -> Self:
        """From ``GRADCOMP_COMPRESSION`` (a spec) or ``GRADCOMP_CONFIG`` (files, ``:`` between).

        Without either, nothing is compressed, and rank 0 says so.

        Args:
            args, options: the constructor's other arguments.

        Raises:
            ConfigError: both variables are set, or a file is wrong.
            SpecError: the spec is wrong.
        """
        spec = os.environ.get("GRADCOMP_COMPRESSION", "")
        files = os.environ.get("GRADCOMP_CONFIG", "")
        if spec and files:
            raise ConfigError(
                f"GRADCOMP_COMPRESSION is '{spec}' and GRADCOMP_CONFIG is '{files}': "
                "set one of them"
            )
        if files:
            return cls.from_config(files.split(os.pathsep), (), *args, **options)
        result = cls(spec or "identity", *args, **options)
        result._unset = not spec
        return result

    @property
    def pipeline(self) -> Pipeline:
        """This rank's compression state, made at its first use, and again when the ranks change.

        Raises:
            GradcompError: Horovod is not initialized.
            ConfigError: it is elastic, and that is not possible here.
        """
        life = self._life()
        if self._pipeline is not None and life is self._pipeline_life:
            return self._pipeline
        if not self.HOROVOD.is_initialized():
            raise GradcompError("Horovod is not initialized: call hvd.init() first")
        if self._elastic:
            self._check_elastic()
        rank, size = self.process_set.rank(), self.process_set.size()
        before = self._pipeline
        if before is None:
            nodes = ranks_per_node(self.HOROVOD, self.config)
            self._pipeline = Pipeline(self.config, rank, size, nodes, elastic=self._elastic)
        else:
            self._pipeline = moved(before, resized(before.state_dict(), rank, size), before.epoch)
        self._pipeline_life = life
        return self._pipeline

    def _life(self) -> object:
        """A value that changes with each ``hvd.init()`` of an elastic job; None in other jobs."""
        return None

    @cached_property
    def _default_rules_by_hand(self) -> bool:
        """Whether small tensors of calls by hand, which have no name, travel uncompressed.

        The stock ``Compression.fp16`` takes tensors of any size.
        """
        return not _casts(self.config)

    def _compared_options(self) -> str:
        """Options that must be equal on all ranks; see `agreement_line`."""
        return ""

    def _check_elastic(self) -> None:
        if self.process_set.process_set_id != 0:
            raise ConfigError(
                "elastic Horovod forgets process sets when ranks change: leave process_set out"
            )
        if self.config.compress.two_level:
            raise ConfigError(
                "compress.exchange: two_level needs fixed nodes, and the job is elastic: choose "
                "another exchange"
            )

    def snapshot(self) -> tuple[dict[str, Any], int | None]:
        """A copy of this rank's state, for `roll_back`."""
        return dict(self._state_to_save()), self.pipeline.epoch

    def roll_back(self, saved: tuple[dict[str, Any], int | None]) -> None:
        """Take back a `snapshot` of this process, made at any number of ranks."""
        state, epoch = saved
        pipeline = self.pipeline
        self._pipeline = moved(pipeline, resized(state, pipeline.rank, pipeline.world_size), epoch)
        self._begin()

    def _give_common_state(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give all ranks the state that must be equal on them: that of rank 0, a survivor."""
        gives = self.pipeline.rank == 0
        data = bytearray(pack_state(common_state(self.pipeline)) if gives else b" ")
        texts = self._gather_text(data, "gradcomp.common")
        of_first = texts[: len(texts) - (self.pipeline.world_size - 1)]
        take_common_state(self.pipeline, unpack_state(of_first), shapes)

    def _engine(self, prefix: str, process_sets: Mapping[RankGroup, Any]) -> Engine:
        return self.pipeline.profiled(self._collectives(prefix, process_sets), "Horovod")

    @abstractmethod
    def _collectives(self, prefix: str, process_sets: Mapping[RankGroup, Any]) -> Engine:
        """The collectives of the framework."""

    @abstractmethod
    def _gather_text(self, text: bytearray, name: str) -> bytes:
        """The texts of all ranks, one after the other in rank order."""

    def gather(self, data: bytes) -> Sequence[bytes]:
        """The bytes of all ranks in rank order, without line breaks; every rank must call it."""
        if self.process_set.size() == 1:
            return [data]
        # One line of text per rank; a ragged gather delivers them one after the other.
        name = f"gradcomp.texts.{self.process_set.process_set_id}"
        return self._gather_text(bytearray(data + b"\n"), name).splitlines()

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        return self.gather(data)

    def _attended(self, call: str) -> AbstractContextManager[None]:
        ranks = self.process_set.ranks
        number = next(_calls[self.process_set.process_set_id, call])
        marks = job_marks(f"{call.strip('()')}.{self.process_set.process_set_id}.{number}")
        return super()._attended(call) if marks is None else marks.attended(call, ranks)

    def _meet(self, call: str) -> None:
        if self._elastic:  # its collector may be one of earlier ranks
            self._checkpoints.together(lambda: None)
        else:
            super()._meet(call)

    def _check_process_set(self, theirs: int) -> None:
        if theirs != self.process_set.process_set_id:
            raise ConfigError(
                f"the optimizer averages over process set {theirs} and Compression over "
                f"{self.process_set.process_set_id}: pass the same process_set to both"
            )

    def _check_exotic_op(self) -> None:
        """Refuse an operation that is neither Average nor Sum, unless nothing is compressed."""
        for _, spec, exchange in self.config.compress.choices:
            if exchange_pattern(spec, exchange) != "dense":
                raise ConfigError(
                    f"'{spec}' does not work with this optimizer's op: compressed gradients can be "
                    "averaged or added; use op=hvd.Average, op=hvd.Sum, or Compression.none"
                )

    def _connect_devices(self) -> None:
        """Let messages travel from device to device, if all ranks can; called when they agree."""

    @abstractmethod
    def _parameters(self) -> Iterable[tuple[str, Any]]:
        """Names and buffers of all parameters; see `Collector`."""

    def agree(self, shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str]) -> Collector:
        """Check that all ranks agree, before any rank sends a gradient; make the collector.

        Every rank must call it with its first gradients.

        Args:
            shapes: of all parameters, in the order of the model.
            kinds: of the same, see `agreement_line`.

        Raises:
            ProtocolError: the ranks' configurations or models differ.
            ConfigError: a rank cannot take part in the exchange ``two_level``.
        """
        if self._unset and self.pipeline.rank == 0:
            self._unset = False
            _log.warning(
                "gradcomp: nothing is compressed, because neither GRADCOMP_COMPRESSION nor GRADCOMP_CONFIG "
                "is set on rank 0; GRADCOMP_COMPRESSION=identity says that this is meant"
            )
        number = _instances.next(self._life(), self.process_set.process_set_id)
        prefix = f"gradcomp.{number}"
        process_set = self.process_set
        problem = node_problem(self.HOROVOD, self.config, process_set) or self.pipeline.mismatch(
            process_set.rank(), process_set.size(), ranks_per_node(self.HOROVOD, self.config)
        )
        own_line = agreement_line(self.config, shapes, problem, self._compared_options(), kinds)
        lines = self.gather(own_line.encode())
        check_agreement([line.decode(errors="replace") for line in lines])
        use_processors(self.HOROVOD.local_size())
        self._connect_devices()
        if self._elastic and self.pipeline.world_size > 1:
            self._give_common_state(shapes)
        sets = group_sets(self.HOROVOD, self.process_set, self.pipeline.ranks_per_node)
        driver = Driver(self._engine(prefix, sets), one_behind=True)
        return Collector(
            driver,
            self.pipeline,
            shapes,
            overwrite=self.OVERWRITE,
            parameters=self._parameters,
            blocking=self.BLOCKING,
        )
