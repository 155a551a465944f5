"""Scatter-reduce-allgather and the majority vote on real Horovod, as in the loopback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from workers import harness
from workers.harness import Cases
from workers.ranks import Compression, hvd

from gradcomp import Config, Loopback
from gradcomp.errors import ProtocolError
from support.pipelines import configured, rules_of

cases = Cases()

STEPS = 4

SPECS = {
    "topk": "residual|topk(ratio=0.02)",
    "int8": "int8",
    "qsgd": "residual(beta=0.9)|qsgd(levels=7)",
    "polar_b": "residual|polar_b(rate=0.5)",
    "fp16": "residual|fp16",
    "rotated": "rotate|uniform(bits=4)",
    "signum": "signum|sign",
}
VOTES = {"vote": "signsgd_mv", "signum_vote": "signum|signsgd_mv(ties=plus)"}

SHAPES = {"matrix": (70, 81), "vector": (5000,), "few": (40,), "one": (1,), "empty": (0,)}


def check(
    config: Config,
    names: Iterable[str] = (*SPECS, *VOTES, "auto"),
    of_each: Mapping[str, tuple[int, ...]] = SHAPES,
) -> dict[str, int]:
    """Averages equal the loopback's in any order of arrival; returns the bytes by kind of request."""
    shapes = {f"{name}.{shape}": of_each[shape] for name in names for shape in of_each}
    params = harness.parameters(shapes)
    compression = Compression(config, params.items())
    opt = harness.optimizer(params, compression)
    loopback = Loopback(config, hvd.size())
    order = np.random.default_rng(hvd.rank())
    for step in range(STEPS):
        averages = harness.check_step(opt, params, loopback, step, order)
    everything = torch.cat([average.reshape(-1) for average in averages.values()])
    harness.check_same_on_all_ranks(everything, "averages")
    own = loopback.ranks[hvd.rank()].state_dict()
    for kind in ("residual", "momentum"):
        for name, array in compression.state_dict()[kind].items():
            harness.check_equal(array, own[kind][name], f"{kind} of {name}")
    return dict(compression.stats.sent_bytes)


def config_of(**others: object) -> Config:
    rules = [
        *({"match": {"name": f"*.{name}.*"}, "use": spec} for name, spec in SPECS.items()),
        *(
            {"match": {"name": f"*.{name}.*"}, "use": spec, "exchange": "auto"}
            for name, spec in VOTES.items()
        ),
        {"match": {"name": "*.auto.*"}, "use": "residual|topk(ratio=0.02)", "exchange": "auto"},
    ]
    compress = {"default": "identity", "exchange": "sra", "rules": rules, **others}
    return configured(**compress, seed=3)


@cases
def chunks_of_buckets() -> dict[str, int]:
    """All specs, with small and empty tensors, in one bucket and next to gathered tensors."""
    sent = check(config_of())
    assert {"alltoall", "allgather", "token"} <= set(sent)
    return sent


@cases
def chunks_of_single_tensors() -> dict[str, int]:
    """Tensors that are each a bucket of their own; the smallest are gathered."""
    return check(config_of(bucket_bytes=0))


@cases
def sums_of_chosen_elements() -> dict[str, int]:
    specs = {
        "topk": "residual|topk(ratio=0.02)",
        "sampled": "residual(beta=0.9)|sampled_topk(ratio=0.05)",
        "half": "topk(ratio=0.02,values=fp16)",
        "random": "signum|randomk(ratio=0.05)",
    }
    rules = rules_of(specs)
    sent = check(config_of(exchange="sparse_allreduce", rules=rules), specs)
    assert {"alltoall", "allgather", "token"} <= set(sent)
    return sent


@cases
def codecs_that_choose_among_all_elements() -> dict[str, int]:
    """Each owner's chunk has its own share of the bytes."""
    specs = {
        "adaptive": "residual|adaptive(rate=0.5)",
        "plain": "adaptive(rate=1.0)",
        "globaltopk": "residual|globaltopk(ratio=0.05)",
    }
    sent = check(config_of(rules=rules_of(specs)), specs)
    assert {"alltoall", "allgather", "token"} <= set(sent)
    return sent


@cases
def the_pattern_follows_the_ranks() -> None:
    """`auto` takes sra for 16 bits an element from four ranks on, which know it of each other."""
    config = configured("residual|bf16")
    params = harness.parameters({"w": harness.MATRIX})
    compression = Compression(config, params.items())
    opt, loopback = harness.optimizer(params, compression), Loopback(config, hvd.size())
    for step in range(STEPS):
        harness.check_step(opt, params, loopback, step, np.random.default_rng(0))
    kinds = {"alltoall", "allgather"} if hvd.size() >= 4 else {"allgather"}
    assert set(compression.stats.sent_bytes) - {"check", "token"} == kinds


@cases
def summable_codecs_that_are_not_added() -> None:
    """fp16 by sra and by gather: no float16 sum overflows."""
    for exchange in ("gather", "sra"):
        config = configured("fp16", exchange=exchange)
        params = harness.parameters({"w": harness.MATRIX})
        opt = harness.optimizer(params, Compression(config, params.items()))
        grads = {name: torch.full(p.shape, 60000.0) for name, p in params.items()}
        for average in harness.averages(opt, params, grads).values():
            torch.testing.assert_close(average, torch.full(average.shape, 60000.0))


@cases
def sums_of_float16_do_not_overflow() -> None:
    """The engine's, those of Horovod's optimizer with all of its options, and by hand."""
    largest = 65504.0
    for spec, options, scale in (
        ("fp16", {}, 1),
        ("residual|fp16", {}, 1),
        ("fp16", {"op": hvd.Sum}, hvd.size()),
        ("fp16", {"groups": 1}, 1),
        ("powersgd(rank=1,start_step=0,values=fp16)", {}, 1),
        ("chunk_allreduce(ratio=1.0,values=fp16)", {}, 1),
    ):
        params = harness.parameters({"w": harness.MATRIX})
        opt = harness.optimizer(params, Compression(spec, params.items()), **options)
        value = 100.0 if "powersgd" in spec else largest
        grads = {name: torch.full(p.shape, value) for name, p in params.items()}
        for average in harness.averages(opt, params, grads).values():
            wanted = torch.full(average.shape, value * scale)
            torch.testing.assert_close(
                average, wanted, rtol=2e-3, atol=0, msg=f"{spec} {options}".format
            )
    values = torch.full((5,), largest)
    # Numbers of calls without a name differ between ranks after refusals.
    by_hand = hvd.allreduce(values, name="by.hand", compression=Compression("fp16"))
    torch.testing.assert_close(by_hand, torch.full((5,), largest), rtol=2e-3, atol=0)


@cases
def ranks_of_other_exchanges_are_refused() -> None:
    """Refusals before the first gradient."""
    exchange = "gather" if hvd.rank() else "sra"
    config = configured("int8", exchange=exchange)
    params = harness.parameters({"w": harness.MATRIX})
    opt = harness.optimizer(params, Compression(config, params.items()))
    harness.refused(
        lambda: harness.averages(opt, params, harness.gradients(params, 0)),
        ProtocolError,
        "the ranks run different compression",
        '"exchange":"sra"',
    )
