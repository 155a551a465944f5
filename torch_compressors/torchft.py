"""Compression for torchft's LocalSGD and DiLoCo.

::

    manager = CompressedManager("int4", [model], state_dict=save, load_state_dict=load,
                                min_replica_size=2, use_async_quorum=False)
    with DiLoCo(manager, [model], inner, outer, sync_every=30):
        for batch in loader: ...

torchft's own ``should_quantize`` sends float32 without a word where Triton is missing, as on CPUs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ReduceOp,
    Work,
)

from gradcomp import Config
from gradcomp.adapter_api import (
    Broadcast,
    Collector,
    Pipeline,
    Stats,
    agreement_line,
    check_agreement,
    common_state,
    placed,
    take_common_state,
)
from gradcomp.errors import ConfigError, GradcompError, PeerError, missing_package
from gradcomp_torch.parameters import check_unsharded, kinds_of
from torch_compressors.elastic.members import check_only_residuals, join_members

try:
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo as TorchftGloo
except ModuleNotFoundError as error:
    raise missing_package(error) from None

__all__ = ["CompressedManager"]


class CompressedManager(Manager):  # type: ignore[misc]
    """torchft's Manager with compressed averages of parameters, on Gloo.

    Residuals belong to this process and outlast quorums. A step that is not committed leaves them as
    they were before. A replica that takes its parameters from another one starts with residuals of 0.

    Args:
        config: a spec or a `gradcomp.Config`; of specs with state only those with ``residual``.
        fragments: the modules of DiLoCo's ``model_fragments``, in the same order; ``[model]`` for
            LocalSGD. All their parameters are averaged in the order of ``parameters()``.
        timeout: of the manager, and longest wait for another replica in an exchange.
        options: the other arguments of torchft's Manager, without ``pg``.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: a spec or a fragment does not fit; see `should_commit`.
    """

    def __init__(
        self,
        config: str | Config,
        fragments: Sequence[torch.nn.Module],
        *,
        timeout: timedelta = timedelta(seconds=60),
        **options: Any,
    ) -> None:
        self.compression = _CompressedGloo(Config.of(config, measures=False), fragments, timeout)
        super().__init__(pg=self.compression, timeout=timeout, **options)
        self.compression.step = self.current_step
        # Called where this replica takes the state of another one.
        self.register_state_dict_fn("gradcomp", lambda _: self.compression.forget(), dict)

    @property
    def stats(self) -> Stats:
        """Bytes sent by this replica."""
        return self.compression.pipeline.stats

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """See torchft's Manager.

        Raises:
            ConfigError: a tensor was not compressed, as with ``use_bucketization=True``.
            ProtocolError: the replicas have different configurations or models.
        """
        self.compression.raise_fatal()
        commits: bool = super().should_commit(timeout)
        self.compression.settle(commits)
        return commits


class _CompressedGloo(TorchftGloo):  # type: ignore[misc]
    """torchft's process group; sums of parameters are compressed, others are not."""

    def __init__(
        self, config: Config, fragments: Sequence[torch.nn.Module], timeout: timedelta
    ) -> None:
        super().__init__(timeout)
        check_only_residuals(config)
        for rule in config.compress.resolutions:
            if rule.averaging.changes:
                raise ConfigError(
                    f"{rule.rule} has {rule.averaging}, and torchft adds up replicas; leave it out"
                )
        self.step: Callable[[], int] = lambda: 0  # set by the manager
        self._fragments: list[list[str]] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._kinds: dict[str, str] = {}
        for number, fragment in enumerate(fragments):
            check_unsharded(fragment.named_parameters())
            prefix = f"{number}." if len(fragments) > 1 else ""
            named = {f"{prefix}{name}": p for name, p in fragment.named_parameters()}
            shapes = {name: tuple(p.shape) for name, p in named.items()}
            self._kinds.update(kinds_of(named.items()))
            self._fragments.append([*shapes])
            self._shapes.update(shapes)
        self._config = config
        self.pipeline = Pipeline(config)
        self._collector: Collector | None = None
        self._kept: dict[str, Any] | None = None  # the state before a step that runs
        self._position = 0
        self._fatal: GradcompError | None = None

    # Quorums --------------------------------------------------------------------------------------

    def configure(self, store_addr: str, *args: Any, **kwargs: Any) -> None:
        """See torchft; all members of the new quorum call it."""
        self._collector = None
        super().configure(store_addr, *args, **kwargs)
        self._agree()

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        group = super()._create_pg(store, rank, world_size)
        self.pipeline, self._driver = join_members(
            self.pipeline,
            self._shapes,
            PrefixStore("gradcomp", store),
            rank,
            world_size,
            self._timeout,
            "CompressedManager",
        )
        return group

    def _agree(self) -> None:
        """Compare configurations; members that are behind take the counters of the others."""
        own_member = {
            "agreement": agreement_line(self._config, self._shapes, None, kinds=self._kinds),
            "common": common_state(self.pipeline),
        }
        line = np.frombuffer(bytearray(json.dumps(own_member).encode() + b"\n"), np.uint8)
        lines = self._driver.reply(self._driver.post(Broadcast("torchft.members", line)))
        members = [json.loads(text) for text in lines.tobytes().splitlines()]
        try:
            check_agreement([member["agreement"] for member in members])
        except GradcompError as error:  # other errors end with the quorum
            self._fatal = error
            raise
        newest = max((member["common"] for member in members), key=_steps)
        if newest != own_member["common"]:
            take_common_state(self.pipeline, newest, self._shapes)
        self._collector = Collector(self._driver, self.pipeline, self._shapes, overwrite=True)

    def forget(self) -> None:
        """Take parameters from another replica: nothing of this one's changes is left to send."""
        self._kept = None
        state = self.pipeline.state_dict()
        zeros = {name: np.zeros_like(residual) for name, residual in state["residual"].items()}
        self.pipeline.load_state_dict({**state, "residual": zeros})

    # Steps ----------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """See torchft; the sum over all replicas of the next parameter."""
        op = getattr(opts, "reduceOp", opts)
        (tensor,) = tensors
        is_sum = op == ReduceOp.SUM and tensor.is_floating_point()
        name = self._next_name(tensor) if is_sum else None
        if name is None:
            exact: Work = super().allreduce(tensors, opts)
            return exact
        if self._collector is None:
            raise PeerError("the replicas are apart: the exchange goes on with the next quorum")
        if self._kept is None:
            self._kept = self.pipeline.state_dict()
            self._collector.begin_step()
        gradient = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
        resolved = self._collector.resolve(name, gradient.shape)
        self._collector.add(resolved, gradient, tensor.nbytes)
        return _Sum(self, name, tensor)

    def _next_name(self, tensor: torch.Tensor) -> str | None:
        """Name of the next parameter; None for a number of torchft's own."""
        names = self._fragments[self.step() % len(self._fragments)]
        if (
            self._position < len(names)
            and tuple(tensor.shape) == self._shapes[names[self._position]]
        ):
            self._position += 1
            return names[self._position - 1]
        if tensor.numel() == 1:
            return None
        self._fatal = ConfigError(
            f"a tensor of shape {tuple(tensor.shape)} is not the next parameter of the fragments that "
            "CompressedManager got: give it DiLoCo's model_fragments, or [model] for LocalSGD, and leave "
            "out use_bucketization"
        )
        raise self._fatal

    def finish(self, name: str, tensor: torch.Tensor) -> None:
        """Wait for a sum and put it into its tensor."""
        if self._collector is None:
            raise PeerError("another exchange of this step has failed")
        try:
            average = torch.from_numpy(self._collector.finish(name)).view(tensor.shape)
        except BaseException:
            self._collector = None
            raise
        tensor.copy_(average * self.pipeline.world_size)

    def settle(self, commits: bool) -> None:
        """End a step; without a commit the residuals are those before it."""
        kept, self._kept, self._position = self._kept, None, 0
        if self._collector is not None:
            self._collector.end_step()
        if kept is not None and not commits:
            self._take(kept)
            self._collector = None  # until the next quorum, which a rejected step always brings

    def raise_fatal(self) -> None:
        """Raise an error that a new quorum cannot fix; torchft only logs it."""
        if self._fatal is not None:
            raise self._fatal

    # Checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """This replica's residuals and counters, for its checkpoint."""
        return self.pipeline.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this replica's own `state_dict`, before the first quorum.

        Raises:
            StateError: the state does not fit.
        """
        self._take(state)

    def _take(self, state: dict[str, Any]) -> None:
        pipeline = self.pipeline
        pipeline.load_state_dict(placed(state, pipeline.rank, pipeline.world_size))


class _Sum(Work):
    """A sum that is under way."""

    def __init__(self, group: _CompressedGloo, name: str, tensor: torch.Tensor) -> None:
        super().__init__()
        self._group, self._name, self._tensor = group, name, tensor
        self._done = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the sum."""
        if not self._done:
            self._group.finish(self._name, self._tensor)
            self._done = True
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is complete, with the sum."""
        self.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([self._tensor])
        return future


def _steps(common: Mapping[str, Any]) -> int:
    return max(common["rounds"].values(), default=0)
