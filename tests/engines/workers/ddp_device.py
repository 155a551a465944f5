"""The hook for DDP with gradients on a device on some ranks; the device's kernels are the core's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers an engine for memory of GPUs
from workers import harness
from workers.ddp import MIXED, mixed
from workers.ddp_model import Given, Training, join
from workers.harness import Cases
from workers.ranks import hvd

from gradcomp import Config, Loopback, Pipeline
from gradcomp_torch.gpu import device_lookup as finding
from gradcomp_torch.host_copies import HostCopies
from support.core_tensors import CoreTensors, found
from support.pipelines import configured, rules_of
from torch_compressors import ddp, ddp_hook
from torch_compressors.gloo.device_engine import connect_devices
from torch_compressors.gloo.engine import GlooEngine
from torch_compressors.gloo.nodes import exchange_groups

cases = Cases()

DIRECT = {
    "a": "residual|topk(ratio=0.05)|raw32",
    "b": "residual|int8(rounding=stochastic)",
    "c": "residual|rotate|uniform(bits=4)",
    "d": "residual|rotate|uniform(bits=4)",
    "e": "residual|fp16",
}
"""Specs with frames of one size on all ranks."""

MIXED_PRECISION = "residual|topk(ratio=0.05)"


def on_device(ranks: set[int], least: int = 0) -> AbstractContextManager[CoreTensors]:
    """Let the hook of these ranks find a device that takes tensors of at least ``least`` elements."""
    return found(hvd.rank() in ranks, least)


@cases
def ranks_with_and_without_a_device() -> None:
    """Averages and states are those of the loopback, whatever the ranks' devices and DDP's buckets."""
    for ranks, least, bucket_mb in (({0}, 0, 0.05), ({1}, 5000, 0.005), ({0, 1}, 5000, 25)):
        with on_device(ranks, least) as device:
            training = Training(mixed(device="auto"), MIXED, bucket_mb=bucket_mb)
            training.check_steps(Loopback(mixed(device="auto"), hvd.size()), range(4))
            training.check_replicas()
        launched = [line for line in device.log if line.startswith("launch")]
        assert bool(launched) is (hvd.rank() in ranks)


@cases
def a_device_is_turned_off() -> None:
    """Without `compress.device: auto` nothing is launched, and the first rank says once what that costs."""
    config = mixed()
    with (
        on_device({0, 1}) as device,
        mock.patch.object(finding, "_told", set()),
        mock.patch.object(finding, "_log") as log,
    ):
        training = Training(config, MIXED)
        training.check_steps(Loopback(config, hvd.size()), range(2))
        Training(config, MIXED)
    assert device.log == []
    texts = [call.args[0] % call.args[1:] for call in log.warning.call_args_list]
    elements = sum(math.prod(shape) for shape in MIXED.values())
    assert len(texts) == int(hvd.rank() == 0), texts
    for text in texts:
        assert f"the CPU compresses {elements:,} elements" in text
        assert f"about {1.1e-6 * elements:.1f} ms more" in text


@cases
def the_loss_is_told_where_ranks_have_an_engine_between_gpus() -> None:
    """With `compress.device: host` the first rank says once in a process what it costs, and only where another setting
    would avoid it."""
    join()
    hosts = dist.new_group(backend="gloo")
    gpus = dist.new_group(backend="cpu:gloo,cuda:fake")
    with FakeTensorMode():
        parameters = [torch.empty(shape, device="cuda") for shape in ((5000, 5000), (33,))]

    def texts(world: dist.ProcessGroup, device: str = "host") -> list[str]:
        pipeline = Pipeline(configured("int8", device=device), hvd.rank(), hvd.size())
        gloo = GlooEngine(exchange_groups(world, 1, None), 2**20)
        with mock.patch.object(finding, "_log") as log:
            connect_devices(pipeline, gloo, world, parameters, None)
        return [call.args[0] % call.args[1:] for call in log.warning.call_args_list]

    with mock.patch.object(finding, "_told", set()):
        with on_device(set()):
            without_kernels = texts(gpus)
        with on_device({0, 1}):
            without_engine, other_setting = texts(hosts), texts(gpus, "auto")
            first, second = texts(gpus), texts(gpus)
    assert without_kernels == [], without_kernels
    assert without_engine == [], "Gloo does not read memory of GPUs"
    assert other_setting == [], other_setting
    assert len(first) == int(hvd.rank() == 0), first
    for text in first:
        assert "compresses 25,000,033 elements of gradients on 'cuda:0'" in text
        assert "about 27.5 ms more in each step than with compress.device: direct" in text
    assert second == [], "it was told already"


@cases
def a_device_without_memory_for_residuals() -> None:
    """Its gradients are compressed on the host, a line says so, and with `direct` no rank sends from its device."""
    full = hvd.rank() == 1
    shapes = {"a": (50, 90)}
    for setting in ("auto", "direct"):
        config = configured("residual|topk(ratio=0.05)|raw32", device=setting)
        free = 2 * 4 * 4500 - int(full)
        with (
            on_device({0, 1}) as device,
            mock.patch.object(finding, "_free_bytes", return_value=free),
            mock.patch.object(finding, "_log") as log,
        ):
            training = Training(config, shapes)
            training.check_steps(Loopback(config, hvd.size()), range(2))
        assert bool(device.log) is not full, device.log
        assert not [line for line in device.log if line.startswith("begin")], "sent from a device"
        texts = [call.args[0] % call.args[1:] for call in log.warning.call_args_list]
        assert any("residuals would take 0.0 GB" in text for text in texts) is full, texts


@cases
def other_dtypes_and_clipping_on_a_device() -> None:
    """As without a device: bfloat16, memory layouts, and gradients that are clipped together."""
    for options in ({"dtype": torch.bfloat16}, {"clip_norm": 0.5}):
        results = []
        for ranks in (set(), {0, 1}):
            with on_device(ranks):
                training = Training(mixed(device="auto"), MIXED, **options)
                results.append(
                    [
                        training.averages(harness.gradients(training.params, step))
                        for step in range(3)
                    ]
                )
        for with_none, with_one in zip(*results, strict=True):
            for name, average in with_none.items():
                harness.check_equal(with_one[name], average, f"{options}: {name}")


@cases
def a_loss_scale_on_a_device() -> None:
    """Averages are those of the loopback; gradients and their residuals stay on the device."""
    for device, spec in (("auto", MIXED_PRECISION), ("direct", f"{MIXED_PRECISION}|raw32")):
        config = configured(spec, device=device)
        with on_device({0, 1}) as there:
            training = Training(config, {"a": (50, 90), "b": (64, 80)})
            loopback = Loopback(config, hvd.size())
            for step, scale in enumerate((4.0, 4.0, 2.0, 8.0)):
                for one in (training.state, loopback):
                    one.set_loss_scale(scale)
                training.check_steps(loopback, range(step, step + 1))
        assert {"poison 1", "poison 2"} & set(there.log), there.log


@cases
def messages_from_device_to_device() -> None:
    """Averages are those of the loopback, also where a rank has no device or not the option, so that none is sent."""
    shapes: dict[str, tuple[int, ...]]
    shapes = {f"{name}.{i}": (50 + i, 40) for name in DIRECT for i in range(3)}
    shapes |= {"dense": (33,), "others": (5, 7)}
    rules = rules_of(DIRECT, "{}.*")

    def config_of(device: str, thread: str, exchange: str) -> Config:
        options = {"bucket_bytes": 20000, "exchange": exchange, "encoder_thread": thread}
        return configured("identity", rules=rules, device=device, seed=3, **options)

    first = hvd.rank() == 0
    for ranks, device, exchange, thread, warning in (
        ({0, 1}, "direct", "gather", "never", None),
        ({0, 1}, "direct", "sra", "never", None),
        ({0, 1}, "direct", "auto", "never", None),
        ({0, 1}, "direct", "gather", "always", None),
        ({0}, "direct", "sra", "never", "rank 1: there are no kernels for gradients on 'cpu'"),
        (
            {0, 1},
            "direct" if first else "auto",
            "gather",
            "never",
            "rank 1: compress.device is not direct",
        ),
    ):
        config = config_of(device, thread, exchange)
        with on_device(ranks) as device_, mock.patch.object(finding, "_log") as log:
            training = Training(config, shapes)
            training.check_steps(Loopback(config, hvd.size()), range(3))
            training.check_replicas()
        direct = {line for line in device_.log if line.startswith(("begin", "add"))}
        assert (direct == set()) is (warning is not None), device_.log
        assert ("decode numbers" in device_.log) is (exchange == "auto"), device_.log
        warnings = [str(call.args[0] % call.args[1:]) for call in log.warning.call_args_list]
        assert len(warnings) == int(first and warning is not None)
        for text in warnings:
            assert str(warning) in text
        if warning is None:
            # Messages travel in the model's group, unless a thread sends them.
            assert bool(training.state._gloo.lent.on_devices) is (thread == "always")


@cases
def bfloat16_from_device_to_device() -> None:
    """Nothing goes through the host, and kernels find gradients where they were in the last step."""
    config = configured("residual|topk(ratio=0.05)|raw32", device="direct")
    with (
        on_device({0, 1}) as device,
        mock.patch.object(ddp, "HostCopies", wraps=HostCopies) as copies,
        mock.patch.object(device, "array", wraps=device.array) as arrays,
    ):
        training = Training(
            config, {"a": (50, 90), "b": (64, 80), "c": (33,)}, dtype=torch.bfloat16
        )
        places = []
        for step in range(3):
            of_ranks = [
                harness.gradients(training.params, step, rank) for rank in range(hvd.size())
            ]
            arrays.reset_mock()
            found = training.averages(of_ranks[hvd.rank()])["c"]
            mean = sum(grads["c"].float() for grads in of_ranks) / hvd.size()
            torch.testing.assert_close(found.float(), mean, rtol=2**-7, atol=0)
            given = [call.args[0] for call in arrays.call_args_list if len(call.args) > 1]
            places.append({tensor.data_ptr() for tensor in given})
        training.check_replicas()
    assert [dict(call.args[0]) for call in copies.call_args_list] == [{}] * copies.call_count
    assert len(places[0]) == 2, places
    assert places[0] == places[1], "gradients of 16 bits are elsewhere in each step"
    assert not places[2], "gradients of 16 bits have new arrays, though DDP's buckets stay"


@cases
def factors_from_device_to_device() -> None:
    """Averages and states of powersgd are those of the loopback, and factors never come to the host."""
    shapes = {"a": (50, 40), "b": (30, 4, 9), "c": (64, 65), "bias": (33,)}
    for spec, names in (
        ("powersgd(rank=2,start_step=1,variant=library)", 1),
        ("powersgd(rank=2,start_step=0,variant=paper)", 2),
        ("powersgd(rank=2,start_step=0,iters_per_step=2,lr=scale)", 4),
        ("powersgd(rank=2,start_step=0,values=fp16)", 2),
    ):
        config = configured(spec, rules=rules_of({"*": spec}, "[abc]"), device="direct", seed=3)
        with on_device({0, 1}) as device:
            training = Training(config, shapes)
            loopback = Loopback(config, hvd.size())
            for one in (training.state, loopback):
                one.set_lr(0.1)
            training.check_steps(loopback, range(4))
            training.check_replicas()
        calls = [line for line in device.log if line.startswith(("begin", "multiply"))]
        assert set(calls) == {"begin 3 products"}, device.log
        assert len(calls) == names * (4 - int("start_step=1" in spec)), device.log
        ours, wanted = training.state.state_dict(), loopback.ranks[hvd.rank()].state_dict()
        for kind in ("residual", "powersgd_p", "powersgd_q"):
            assert set(ours[kind]) == set(wanted[kind])
            for name, array in wanted[kind].items():
                harness.check_equal(ours[kind][name], array, f"{spec}: {kind} of {name}")


KINDS = {"allreduce": "all-reduce", "_allgather_base": "gather", "alltoall_base": "all-to-all"}
"""Messages from device to device, by the methods of process groups that send them."""


@contextmanager
def messages_of(kinds: list[tuple[dist.ProcessGroup, str]]) -> Iterator[None]:
    """Note the group and the kind of each message of `KINDS`."""

    def noted(method: str) -> Any:
        send = getattr(dist.ProcessGroup, method)

        def call(group: dist.ProcessGroup, *given: Any) -> Any:
            kinds.append((group, KINDS[method]))
            return send(group, *given)

        return call

    with ExitStack() as patches:
        for method in KINDS:
            patches.enter_context(mock.patch.object(dist.ProcessGroup, method, noted(method)))
        yield


@cases
def ranks_are_connected_before_the_first_step() -> None:
    """An engine such as NCCL makes a communicator at the first message of each kind: never in a backward pass.

    Messages travel in the model's group. Groups that a hook makes for them are made with the hook, and the next
    hook has them.
    """
    join()
    shapes = {"a": (50, 90), "b": (64, 80), "c": (33,)}
    specs = rules_of({"a": "residual|topk(ratio=0.05)|raw32", "b": "fp16"}, "{}")
    world = dist.new_group()  # later cases use the groups of compressions in the job's group

    def of_group(found: list[tuple[dist.ProcessGroup, str]], group: dist.ProcessGroup) -> set[str]:
        return {kind for each, kind in found if each is group}

    for own, thread in ((None, "never"), (timedelta(seconds=60), "never"), (None, "always")):
        sent: set[str] = set()
        group: dist.ProcessGroup | None = None
        for exchange in ("auto", "sra"):
            params = {n: torch.nn.Parameter(torch.zeros(shape)) for n, shape in shapes.items()}
            model = DistributedDataParallel(Given(params), bucket_cap_mb=0.005, process_group=world)
            config = configured(
                "identity", rules=specs, device="direct", exchange=exchange, encoder_thread=thread
            )
            before = len(dist.distributed_c10d._world.pg_map)
            with on_device({0, 1}):
                connecting: list[tuple[dist.ProcessGroup, str]] = []
                with messages_of(connecting):
                    state, hook = ddp_hook(config, model, timeout=own)
                model.register_comm_hook(state, hook)
                made = [*state._gloo.lent.on_devices.values()]
                assert bool(made) is (own is not None or thread == "always")
                (found,) = made or [model.process_group]
                if group is not None:
                    assert found is group, "a second hook has a group of its own"
                    assert len(dist.distributed_c10d._world.pg_map) == before
                group = found
                groups = len(dist.distributed_c10d._world.pg_map)
                stepping: list[tuple[dist.ProcessGroup, str]] = []
                with messages_of(stepping):
                    for step in range(3):
                        model(harness.gradients(params, step)).backward()
                state.close()
            assert len(dist.distributed_c10d._world.pg_map) == groups, "a step has made a group"
            late = of_group(stepping, group) - of_group(connecting, group)
            assert not late, f"the first {late} is in a backward pass"
            sent |= of_group(stepping, group)
        assert sent == set(KINDS.values()), sent
