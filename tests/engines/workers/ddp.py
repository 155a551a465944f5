"""Our communication hook in DistributedDataParallel, on real processes and Gloo."""

from __future__ import annotations

import copy
import io
import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from inspect import signature
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from workers import exchange, harness, mixed_precision, profiles, replicas, schedules
from workers.ddp_model import Given, Training, check_sum, join
from workers.harness import MATRIX, Cases, check_equal, check_same_on_all_ranks, refused
from workers.ranks import Compression, hvd

from gradcomp import Config, ConfigError, Loopback
from gradcomp.errors import ProtocolError, SpecError, StateError
from gradcomp.runtime.policy import auto as policies
from support.pipelines import configured, rules_of
from support.plugins import register_python
from support.scope import by_scope
from torch_compressors import DGCSGD, Dion, ddp_hook, dion_groups
from torch_compressors.gloo.engine import GlooEngine

cases = Cases()
with_horovod = Cases()
"""Those that need Horovod's ranks."""
three = Cases()
"""Cases that test more on three ranks than on two."""
four = Cases()
"""Cases that need four ranks."""

SHAPES = {"first": MATRIX, "bias": (64,), "second": (90, 50)}

SPECS = {
    "topk": "residual|topk(ratio=0.02)",
    "fp16": "fp16",
    "random": "residual(beta=0.9)|randomk(ratio=0.1)",
    "low_rank": "powersgd(rank=2,start_step=2)",
    "coded": "residual|threshold(tau=1.0)|rice",
    "together": "residual|globaltopk(ratio=0.01)",
    "vote": "signum|signsgd_mv",
    "singular": "atomo(rank=1)",
    "chunks": "residual|chunk_allreduce(ratio=0.05,chunk=16)",
    "differences": "ef21(momentum=0.9)|topk(ratio=0.02)",
    "plugin": "ef21(momentum=0.9)|bf8",
    "dense": "identity",
}

GATHERED = {"topk", "coded", "together", "vote", "singular", "differences", "plugin"}
"""Specs with frames that every rank gathers and adds itself."""


def mixed(**others: object) -> Config:
    """A configuration with a spec for each prefix of names."""
    register_python()
    rules = rules_of(SPECS, "{}.*")
    compress = {"default": "identity", "rules": rules, "bucket_bytes": 20000, **others}
    return configured(**compress, seed=3)


MIXED = {f"{name}.{shape}": size for name in SPECS for shape, size in SHAPES.items()}


def replicas_of_ddp(steps: int) -> Any:
    def averager(params: replicas.Parameters, config: Config) -> replicas.Averager:
        join()
        model = torch.nn.parallel.DistributedDataParallel(Given(params), bucket_cap_mb=0.1)
        model.register_comm_hook(*ddp_hook(config, model))

        def average(grads: Mapping[str, torch.Tensor]) -> None:
            model.zero_grad()
            model(grads).backward()

        return average

    return replicas.train(averager, steps)


@cases
@three
def ddp_replicas() -> Any:
    """All codecs with all memories, and algorithms: as the loopback, and equal on all ranks."""
    return replicas_of_ddp(12 if hvd.size() == 2 else 4)


@cases
def uncompressed_gradients_of_a_bucket_are_one_request() -> None:
    config = configured("residual|topk(ratio=0.02)")
    shapes = {**SHAPES, "norm": (90,), "scale": ()}
    started: list[Any] = []
    start = GlooEngine.start

    def recorded(engine: GlooEngine, request: Any) -> Any:
        started.append(request)
        return start(engine, request)

    with mock.patch.object(GlooEngine, "start", recorded):
        training = Training(config, shapes, bucket_mb=25)
        training.check_steps(Loopback(config, hvd.size()), range(3))
    sums = [
        request.nbytes
        for request in started
        if request.kind == "allreduce" and request.name != "step.check"
    ]
    assert sums == [4 * (64 + 90 + 1)] * 3, sums


@with_horovod
@three
def as_horovod() -> None:
    """The same parameters after many steps, to the last bit."""
    training = Training(mixed(), MIXED, bucket_mb=0.05)
    params = harness.parameters(MIXED)
    theirs = dict(zip(MIXED, params.values(), strict=True))
    opt = hvd.DistributedOptimizer(
        torch.optim.SGD(theirs.values(), lr=0.1, momentum=0.9),
        named_parameters=theirs.items(),
        compression=Compression(mixed(), theirs.items()),
    )
    own = torch.optim.SGD(training.params.values(), lr=0.1, momentum=0.9)
    for step in range(by_scope(25, 100) if hvd.size() == 2 else by_scope(10, 20)):
        grads = harness.gradients(theirs, step)
        training.averages(grads)
        own.step()
        harness.averages(opt, theirs, grads)
    training.check_replicas()
    for name, p in training.params.items():
        # With three or more ranks, the order of sums in an all-reduce depends on the engine.
        if hvd.size() == 2 or (name.split(".")[0] in GATHERED and p.dim() == 2):
            check_equal(p.detach(), theirs[name].detach(), name)


@cases
def buckets_and_views() -> None:
    """Any buckets and memory layouts of DDP; the first step has other buckets."""
    for bucket_mb, options in (
        (0.005, {}),
        (25, {}),
        (0.05, {"gradient_as_bucket_view": True}),
        (0.05, {"static_graph": True}),
    ):
        training = Training(mixed(), MIXED, bucket_mb=bucket_mb, **options)
        training.check_steps(Loopback(mixed(), hvd.size()), range(3))
        training.check_replicas()


@cases
def other_defaults_of_torch() -> None:
    """Scripts set a default dtype or device for their model; helper tensors of the exchange keep theirs."""
    with harness.defaults(torch.bfloat16, "cpu"):
        training = Training(mixed(), MIXED, bucket_mb=0.05)
    loopback = Loopback(mixed(), hvd.size())
    for step, device in enumerate(("cpu", "cpu", "meta")):  # DDP's own first two make tensors
        with harness.defaults(torch.bfloat16, device):
            training.check_steps(loopback, range(step, step + 1))


@cases
@three
def exchanges() -> None:
    """The exchanges sra and sparse_allreduce, as in the loopback."""
    sums = {"default": "residual|topk(ratio=0.02)", "exchange": "sparse_allreduce"}
    for config, shapes in (
        (exchange.config_of(), _named(exchange)),
        (configured(**sums), dict.fromkeys("ab", (70, 81))),
    ):
        Training(config, shapes).check_steps(Loopback(config, hvd.size()), range(4))


def _named(module: Any) -> dict[str, tuple[int, ...]]:
    names = [*module.SPECS, *getattr(module, "VOTES", ()), "auto"]
    return {f"x.{name}.{shape}": size for name in names for shape, size in exchange.SHAPES.items()}


@cases
@three
def sums_of_float16_do_not_overflow() -> None:
    shape = (70, 80)
    for spec in ("fp16", "residual|fp16", "chunk_allreduce(ratio=1.0,values=fp16)"):
        training = Training(spec, {"w": shape})
        average = training.averages({"w": torch.full(shape, 65504.0)})["w"]
        torch.testing.assert_close(average, torch.full(shape, 65504.0), rtol=2e-3, atol=0)
        harness.check_same_on_all_ranks(average)


@cases
@three
def frames_that_grow_and_shrink() -> None:
    """Messages from small to larger than the receiver's buffer, and back."""
    ratios = [0.01, 0.9, 0.02, 0.5]
    for pattern in ("gather", "sra"):
        config = configured(f"topk(ratio=steps({ratios},every=1))", exchange=pattern)
        training = Training(config, {"w": (400, 300)})
        training.check_steps(Loopback(config, hvd.size()), range(len(ratios)))


@cases
def specs_follow_one_another() -> None:
    """The state passes through a checkpoint before every step."""
    shapes = {f"m{name}.{n}": (30, 32 + n) for n in range(3) for name in schedules.PLANS}
    training = Training(schedules.config(), shapes)
    loopback = Loopback(schedules.config(), hvd.size())
    for step in range(6):
        for one in (training.state, loopback):
            one.set_epoch(step // 2)
        file = io.BytesIO()
        torch.save(training.state.state_dict(), file)
        file.seek(0)
        training.state.load_state_dict(torch.load(file, weights_only=True))
        training.check_steps(loopback, range(step, step + 1))


@cases
def states() -> None:
    """A checkpoint resumes to the last bit in a new model; another rank's is refused."""
    straight = Training(mixed(), MIXED)
    for step in range(3):
        straight.averages(harness.gradients(straight.params, step))
    file = io.BytesIO()
    torch.save(straight.state.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = Training(mixed(), MIXED)
    refused(
        lambda: resumed.state.load_state_dict({**state, "rank": (hvd.rank() + 1) % hvd.size()}),
        StateError,
        "load each rank's own state",
    )
    resumed.state.load_state_dict(state)
    for step in range(3, 6):
        grads = harness.gradients(straight.params, step)
        wanted = straight.averages(grads)
        for name, average in resumed.averages(grads).items():
            check_sum(average, wanted[name], f"{step}: {name}")
    assert resumed.state.stats.steps == 6
    assert 0 < resumed.state.stats.total_bytes < straight.state.stats.total_bytes


@cases
def profile() -> None:
    """A profile adds up, and its errors equal the loopback's."""
    training = Training(profiles.config(harness.shared / "profile-ddp"), profiles.SHAPES)
    loopback = profiles.loopback(hvd.size())
    began = time.perf_counter()
    training.check_steps(loopback, range(profiles.STEPS))
    seconds = time.perf_counter() - began
    profiles.check(training.state.stats, loopback.stats[0], seconds)


@cases
def low_precision() -> None:
    """Gradients in float16 and bfloat16 are averaged in float32 and rounded once. Dense float16 and
    float64 gradients are averaged in their own dtype."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        shapes = {"w": MATRIX, "bias": (9,)}
        training = Training("residual|topk(ratio=0.05)", shapes, dtype=dtype)
        loopback = Loopback("residual|topk(ratio=0.05)", hvd.size())
        for step in range(3):
            of_ranks = [
                harness.gradients(training.params, step, rank) for rank in range(hvd.size())
            ]
            found = training.averages(of_ranks[hvd.rank()])
            named = {name: [grads[name].float() for grads in of_ranks] for name in shapes}
            expected = {n: torch.from_numpy(a[0]) for n, a in loopback.step(named).items()}
            check_equal(found["w"], expected["w"].to(dtype), f"{dtype} {step}")
            torch.testing.assert_close(
                found["bias"], expected["bias"].to(dtype), rtol=1e-2, atol=1e-2
            )
            check_same_on_all_ranks(found["bias"])
            if dtype == torch.float64:
                exact = sum(grads["bias"] for grads in of_ranks) / hvd.size()
                torch.testing.assert_close(found["bias"], exact, rtol=1e-14, atol=1e-14)


@cases
def channels_last() -> None:
    """Elements are in the order of the tensor's shape, not of its memory."""
    join()
    shape = (16, 24, 3, 5)
    for spec in ("powersgd(rank=2,start_step=0)", "residual|topk(ratio=0.02)"):
        results = []
        for memory_format in (torch.contiguous_format, torch.channels_last):
            p = torch.nn.Parameter(torch.zeros(shape).contiguous(memory_format=memory_format))
            model = torch.nn.parallel.DistributedDataParallel(Given({"w": p}))
            model.register_comm_hook(*ddp_hook(spec, model))
            for step in range(3):
                model.zero_grad()
                model(harness.gradients({"w": p}, step)).backward()
            results.append(p.grad)
        assert results[1].is_contiguous(memory_format=torch.channels_last)
        check_equal(results[1], results[0], spec)


@cases
def accumulated_gradients() -> None:
    """Under no_sync nothing is sent; the next step averages the sum."""
    training = Training("residual|topk(ratio=0.05)", {"w": MATRIX, "v": (64, 64)})
    loopback = Loopback("residual|topk(ratio=0.05)", hvd.size())
    for step in range(3):
        parts = [[harness.gradients(training.params, 2 * step + n, r) for n in range(2)]
                 for r in range(hvd.size())]  # fmt: skip
        training.model.zero_grad()
        mine = parts[hvd.rank()]
        with training.model.no_sync():
            training.model(mine[0]).backward()
        training.model(mine[1]).backward()
        sums = {n: [one[0][n] + one[1][n] for one in parts] for n in training.params}
        for name, averages in loopback.step(sums).items():
            check_equal(training.params[name].grad, averages[hvd.rank()], name)
    assert training.state.stats.steps == 3


@cases
def parameters_without_a_gradient() -> None:
    """One rank's unused parameter counts as zero; a parameter that no rank uses has no gradient."""
    spec = "residual|topk(ratio=0.05)"
    training = Training(spec, dict.fromkeys("abc", MATRIX), find_unused_parameters=True)
    loopback = Loopback(spec, hvd.size())
    for step in range(3):
        of_ranks = [harness.gradients(training.params, step, rank) for rank in range(hvd.size())]
        for rank, grads in enumerate(of_ranks):
            for name in "abc":
                if name == "c" or (name == "b" and rank == 0):
                    grads[name] = torch.zeros(MATRIX)
        used = "a" if hvd.rank() == 0 else "ab"
        found = training.averages({name: of_ranks[hvd.rank()][name] for name in used})
        assert sorted(found) == ["a", "b"]
        expected = loopback.step({name: [grads[name] for grads in of_ranks] for name in "abc"})
        for name, average in found.items():
            check_equal(average, expected[name][hvd.rank()], name)


@cases
def frozen_and_tied_parameters() -> None:
    join()
    model = torch.nn.Sequential(*(torch.nn.Linear(70, 70) for _ in range(3)))
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p)
    model[2].weight = model[0].weight
    model[1].requires_grad_(False)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state, hook = ddp_hook("residual|topk(ratio=0.05)", ddp)
    ddp.register_comm_hook(state, hook)
    ddp(torch.full((2, 70), float(hvd.rank() + 1))).square().mean().backward()
    assert sorted(state.state_dict()["rounds"]) == ["0.bias", "0.weight", "2.bias"]
    check_same_on_all_ranks(model[0].weight.grad)


@cases
@three
def some_of_the_ranks() -> None:
    """Two groups, one of them of a single rank, average apart."""
    join()
    last = hvd.size() - 1
    groups = [dist.new_group(ranks) for ranks in (range(last), [last])]
    inside = hvd.rank() < last
    spec = "powersgd(rank=2,start_step=1)" if inside else "residual|topk(ratio=0.1)"
    training = Training(
        spec, {"a": MATRIX, "b": (5,)}, process_group=groups[0] if inside else groups[1]
    )
    members = range(last) if inside else [last]
    assert training.state.pipeline.world_size == len(members)
    loopback = Loopback(spec, len(members))
    for step in range(3):
        of_ranks = [harness.gradients(training.params, step, rank) for rank in members]
        found = training.averages(of_ranks[members.index(hvd.rank())])
        for name, averages in loopback.step({n: [g[n] for g in of_ranks] for n in found}).items():
            check_equal(found[name], averages[0], name)


@cases
def momentum_correction() -> None:
    """DGC with its warm-up, and the optimizers that it takes."""
    config = Config.from_spec("dgc(ratio=0.01,warmup_epochs=2)")
    training = Training(config, SHAPES, optimizer=partial(DGCSGD, lr=0.1))
    refused(
        lambda: training.averages(harness.gradients(training.params, 0)),
        ConfigError,
        "call set_epoch(epoch)",
    )
    training = Training(config, SHAPES, optimizer=partial(DGCSGD, lr=0.1))
    loopback = Loopback(config, hvd.size())
    for step in range(4):
        for one in (training.state, loopback):
            one.set_epoch(step)
        training.check_steps(loopback, range(step, step + 1))
    for optimizer, part in (
        (partial(torch.optim.SGD, lr=1.0, momentum=0.9), "SGD has momentum=0.9"),
        (partial(DGCSGD, lr=1.0, momentum=0.8), "DGCSGD has momentum 0.8"),
        (None, "pass optimizer=..."),
    ):
        refused(lambda o=optimizer: Training(config, SHAPES, optimizer=o), ConfigError, part)


@cases
def clipping_by_the_norm_of_the_model() -> None:
    """Each rank's whole gradient is clipped before it is compressed, in several buckets."""
    spec, limit = "momentum_correction|topk(ratio=0.05)", 5.0
    training = Training(spec, SHAPES, optimizer=partial(DGCSGD, lr=0.1), clip_norm=limit)
    loopback = Loopback(spec, hvd.size())
    for step in range(3):
        of_ranks = [harness.gradients(training.params, step, rank) for rank in range(hvd.size())]
        norms = [torch.cat([g.flatten() for g in grads.values()]).norm() for grads in of_ranks]
        assert all(norm > 2 * limit for norm in norms)
        clipped = [
            {name: grad * (limit / norm) for name, grad in grads.items()}
            for grads, norm in zip(of_ranks, norms, strict=True)
        ]
        found = training.averages(of_ranks[hvd.rank()])
        named = {name: [grads[name] for grads in clipped] for name in SHAPES}
        for name, averages in loopback.step(named).items():
            wanted = torch.from_numpy(averages[0]).view(found[name].shape)
            torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-6)
    for wrong in (0.0, -1.0, float("nan")):
        refused(
            lambda w=wrong: ddp_hook("fp16", training.model, clip_norm=w), ConfigError, "clip_norm"
        )


@cases
def steps_of_dion() -> None:
    """Steps of Dion, Dion2 and DeMo as in the loopback, and the optimizers that take them."""
    for spec in ("dion(rank_fraction=0.1)", "dion2(fraction=0.1,values=fp16)", "demo(k=64)"):
        training = Training(spec, SHAPES, optimizer=dion)
        training.check_steps(Loopback(spec, hvd.size()), range(4))
    for optimizer, part in ((partial(torch.optim.SGD, lr=1.0), "SGD"), (None, "optimizer=...")):
        refused(lambda o=optimizer: Training(spec, SHAPES, optimizer=o), ConfigError, part)


def dion(params: Iterable[torch.nn.Parameter]) -> Dion:
    return Dion(dion_groups([(str(i), p) for i, p in enumerate(params)], "dion"))


@three
def averages_over_senders() -> None:
    """Also clipped; ranks that differ about it stop."""
    spec = "residual(beta=0.95)|blocktopk(k=64,values=2bit)"
    config = configured(spec, average="senders", clip="median_norm")
    training = Training(config, SHAPES)
    training.check_steps(Loopback(config, hvd.size()), range(3))
    training.check_replicas()
    other = configured(spec, average="ranks" if hvd.rank() == 1 else "senders")
    refused(
        lambda: Training(other, SHAPES), ProtocolError, "the ranks run different compression",
        '"average":"senders"',
    )  # fmt: skip


def dtypes_that_differ() -> None:
    """PyTorch itself compares shapes; Gloo ends processes with sums of different sizes."""
    dtype = torch.float64 if hvd.rank() else torch.float32
    for spec in ("identity", "residual|topk(k=100)"):
        refused(
            lambda spec=spec: Training(spec, SHAPES, dtype=dtype, init_sync=False),
            ProtocolError,
            "dtypes",
            "of float32, digest",
            "of float64, digest",
        )


if "init_sync" in signature(DistributedDataParallel).parameters:  # from PyTorch 2.6 on
    cases(dtypes_that_differ)


@with_horovod
@three
def what_is_refused() -> None:
    """Refusals on every rank, before a gradient is sent."""
    other = "fp16" if hvd.rank() else "residual|topk(k=100)"
    refused(
        lambda: Training(other, SHAPES), ProtocolError, "the ranks run different compression",
        '"default":"fp16(', "topk(k=100",
    )  # fmt: skip
    refused(lambda: ddp_hook("fp16", torch.nn.Linear(2, 2)), ConfigError, "DistributedDataParallel")
    refused(lambda: Training("topk(k=", SHAPES), SpecError, "topk")
    for nodes in (None, 2):
        if nodes and hvd.size() % nodes == 0:
            continue
        config = configured("int8", exchange="two_level", ranks_per_node=nodes)
        with mock.patch.dict(os.environ):
            del os.environ["HOROVOD_LOCAL_RANK"]  # a launcher without information about nodes
            refused(lambda c=config: Training(c, SHAPES), ConfigError, "compress.ranks_per_node")


@cases
def an_epoch_that_differs() -> None:
    """An error in the middle of an exchange is raised on every rank, from backward()."""
    config = Config.from_spec("residual|topk(ratio=epochs([0.5,0.1]))")
    training = Training(config, SHAPES)
    training.state.set_epoch(hvd.rank())
    refused(
        lambda: training.averages(harness.gradients(training.params, 0)),
        ProtocolError,
        "epoch: 0 on rank 0; 1 on rank 1",
    )


@cases
def an_older_state_on_one_rank() -> None:
    for spec in ("randomk(ratio=0.1)", "powersgd(rank=2,start_step=0)", "residual|topk(ratio=0.1)"):
        training = Training(spec, SHAPES)
        for step in range(3):
            training.averages(harness.gradients(training.params, step))
            if step == 1:
                older = training.state.state_dict()
        if hvd.rank() == 1:
            training.state.load_state_dict(older)
        refused(
            lambda one=training: one.averages(harness.gradients(one.params, 3)),
            ProtocolError,
            "step: 3 on rank 0; 2 on rank 1",
        )


@cases
def a_save_on_one_rank() -> None:
    for spec in ("powersgd(rank=2,start_step=0)", "residual|topk(ratio=0.1)"):
        training = Training(spec, SHAPES)
        for step in range(2):  # DDP has an exchange of its own before the second one
            training.averages(harness.gradients(training.params, step))

        def act(training: Training = training) -> None:
            if hvd.rank() == 0:
                training.state.save(harness.shared / "never", 2)
            else:
                training.averages(harness.gradients(training.params, 2))

        refused(
            act, ProtocolError, "every rank must call save()", "save() on rank 0; a step on rank 1"
        )
    assert not (harness.shared / "never").exists()


@cases
def a_rank_that_is_late_in_a_save() -> None:
    """With a spec without comparisons of steps; it is named, and the save succeeds."""
    training = Training("fp16", SHAPES)
    training.averages(harness.gradients(training.params, 0))
    with (
        mock.patch("gradcomp.runtime.state.attendance.SECONDS", 0.2),
        mock.patch("gradcomp.runtime.state.attendance._log.warning") as warning,
    ):
        if hvd.rank() == 1:
            time.sleep(1)
        training.state.save(harness.shared / "late", 1)
    if hvd.rank() == 0:
        (call,) = warning.call_args_list
        said = call.args[0] % call.args[1:]
        assert said.endswith(
            "every rank must call it, between the same two steps, and rank 1 does not"
        )
        assert "waits in save() for 0.2 s" in said
    else:
        warning.assert_not_called()


@cases
def models_that_drift_apart() -> None:
    config = Config.from_spec("residual|topk(ratio=0.1)")
    config = config.model_copy(update={"check_replicas_every": 2})
    training = Training(config, SHAPES)
    for step in range(3):
        training.averages(harness.gradients(training.params, step))
    name = list(training.params)[-1]
    if hvd.rank() == 1:
        training.params[name].data.view(-1)[0] += 1
    training.averages(harness.gradients(training.params, 3))
    training.averages(harness.gradients(training.params, 4))
    refused(
        lambda: training.averages(harness.gradients(training.params, 5)),
        ProtocolError,
        f"parameters differ before step 4, first '{name}'",
        "on rank 1",
    )


@with_horovod
def policy() -> None:
    """The policy auto: all ranks decide alike."""
    from workers import policy as horovod_policy

    training = Training("auto", {"first": (300, 200), "second": (100, 90), "bias": (9,)})
    assert training.state.config == ddp_hook(model=training.model)[0].config
    for step in range(horovod_policy.STEPS):
        found = training.averages(harness.gradients(training.params, step))
    assert training.state.stats.decisions
    of_ranks: list[Any] = [None] * hvd.size()
    dist.all_gather_object(of_ranks, [str(one) for one in training.state.stats.decisions])
    assert of_ranks == of_ranks[:1] * hvd.size()
    for name, average in found.items():
        check_same_on_all_ranks(average, name)
    training.state.decide_again()
    assert not training.state.stats.decisions


@with_horovod
def policy_looks_again() -> None:
    """Steps of another length are measured again, on all ranks at once."""
    from workers import policy as horovod_policy

    config = configured("residual|topk(ratio=0.01)", policy="auto")
    with mock.patch.object(policies, "_WINDOW", 10):
        training = Training(config, {"first": (100, 90), "bias": (9,)})
        grads = harness.gradients(training.params, 0)

        def train() -> str:
            for name, average in training.averages(grads).items():
                check_same_on_all_ranks(average, name)
            return ""

        horovod_policy.second_look(
            train,
            lambda: training.state.stats.decisions,
            horovod_policy.late(GlooEngine, "start"),
        )
    of_ranks: list[Any] = [None] * hvd.size()
    dist.all_gather_object(of_ranks, [str(one) for one in training.state.stats.decisions])
    assert of_ranks == of_ranks[:1] * hvd.size()


@four
def two_level_exchanges() -> None:
    """Two nodes of two ranks, as the configuration says."""
    from workers import two_level

    config = two_level.mixed()
    shapes = _named(two_level)
    Training(config, shapes)  # its process groups precede those of the next
    training = Training(config, shapes)
    training.check_steps(Loopback(config, hvd.size()), range(by_scope(2, 3)))
    sent = training.state.stats.sent_bytes
    assert {"node allreduce", "node broadcast", "alltoall"} <= set(sent)
    training.check_replicas()


@four
def shards() -> None:
    """Two nodes of two ranks: shards inside each node, and compression between them."""
    # Not at the top: PyTorch has them from 2.6 on.
    from torch.distributed.fsdp import fully_shard

    from torch_compressors.fsdp import fsdp_hook

    join()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    group = mesh.get_group("replicate")
    torch.manual_seed(2)
    first = torch.nn.Sequential(torch.nn.Linear(100, 90), torch.nn.ReLU(), torch.nn.Linear(90, 95))
    second = copy.deepcopy(first)
    spec = "residual|topk(ratio=0.1)"
    for model in (first, second):
        fully_shard(model[0], mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])
    state = fsdp_hook(spec, first, group)
    config = Config.from_spec(spec)
    loopback = Loopback(config, 2)

    def expected(name: str, shard: torch.Tensor) -> None:
        both = [torch.empty_like(shard) for _ in range(2)]
        dist.all_gather(both, shard, group=group)
        found = loopback.step({name: [one.reshape(1, -1).numpy() for one in both]})
        shard.copy_(torch.from_numpy(found[name][group.rank()]).view_as(shard))

    second.set_all_reduce_hook(partial(expected, "model"))
    second[0].set_all_reduce_hook(partial(expected, "0"))
    for step in range(4):
        inputs = torch.randn(7, 100, generator=torch.Generator().manual_seed(4 * step + hvd.rank()))
        for model in (first, second):
            model.zero_grad()
            model(inputs).square().sum().backward()
        for one, other in zip(first.parameters(), second.parameters(), strict=True):
            check_equal(one.grad.to_local(), other.grad.to_local(), str(step))
    assert state.stats.ratio > 3
    saved = state.state_dict()
    home = harness.shared / "shards"
    state.save(home, 4)
    first(torch.ones(7, 100)).square().sum().backward()
    changed = state.state_dict()["residual"]["model"]
    assert not torch.equal(changed, saved["residual"]["model"])
    assert state.load(home) == 4
    again = state.state_dict()
    assert set(saved["residual"]) == {"model", "0"}
    for name, residual in saved["residual"].items():
        check_equal(again["residual"][name], residual, name)
    refused(lambda: fsdp_hook("fp16", torch.nn.Linear(2, 2), group), ConfigError, "fully_shard")
    refused(lambda: fsdp_hook("dgc(ratio=0.1)", first, group), ConfigError, "to fsdp_hook")
    compress = {"default": "fp16"}
    for settings, word in (
        ({"compress": {**compress, "exchange": "two_level"}}, "two_level is for ddp_hook"),
        ({"compress": compress, "stats": {"profile": "x"}}, "profile is for ddp_hook"),
        ({"compress": compress, "check_replicas_every": 9}, "check_replicas_every is for ddp_hook"),
    ):
        wanted = Config.from_mapping({"version": 1, **settings})
        refused(partial(fsdp_hook, wanted, first, group), ConfigError, word)
    turn = fully_shard(torch.nn.Linear(8, 8, dtype=torch.complex64), mesh=mesh["shard"])
    refused(lambda: fsdp_hook("fp16", turn, group), ConfigError, "'weight' is of torch.complex64")
    other = "fp16" if hvd.rank() < 2 else "int8"
    refused(lambda: fsdp_hook(other, first, group), ProtocolError, "different compression")
    converted = first.double() if hvd.rank() < 2 else first
    refused(lambda: fsdp_hook("fp16", converted, group), ProtocolError, "of float64, digest")


@cases
def mixed_precision_of_ddp() -> None:
    """GradScaler, an overflow on one rank, and a learning rate that falls."""
    for follows in (False, True):
        mixed_precision.ddp_job(follows)


@cases
def accumulation_of_ddp() -> None:
    mixed_precision.accumulation_job("ddp")


@with_horovod
def accumulation_of_horovod() -> None:
    mixed_precision.accumulation_job("horovod")


@with_horovod
def mixed_precision_of_horovod() -> None:
    """The same with Horovod's stock recipe."""
    mixed_precision.horovod_job()
