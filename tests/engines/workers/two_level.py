"""Averages inside nodes, then an exchange between nodes, on real Horovod; needs four ranks.

If the configuration says so, the ranks are two nodes of two, whatever their hosts.
"""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import torch
from workers import exchange, harness
from workers.harness import Cases, refused

from gradcomp import Config, Loopback
from gradcomp.errors import ConfigError, StateError
from horovod_compressors.nodes import process_set_of
from horovod_compressors.torch import Compression
from support.pipelines import configured

cases = Cases()
basic = Cases()
"""Cases that suffice for another controller of Horovod."""

# Exchanges and specs, by the data between nodes.
SPECS = {
    "topk": ("two_level", "residual|topk(ratio=0.02)"),
    "int8": ("two_level(sra)", "residual|int8"),
    "sums": ("two_level(sparse_allreduce)", "residual|topk(ratio=0.1)"),
    "qsgd": ("two_level(gather)", "residual(beta=0.9)|qsgd(levels=7)"),
    "fp16": ("two_level", "residual|fp16"),
    "randomk": ("two_level(reduce)", "randomk(ratio=0.1)"),
    "sketch": ("two_level", "residual|sketch(ratio=0.3)"),
    "vote": ("two_level", "signsgd_mv"),
    "flat": ("sra", "residual|topk(ratio=0.02)"),
}


def config_of(spec: str = "identity", exchange: str = "two_level", **others: object) -> Config:
    compress = {"default": spec, "exchange": exchange, "ranks_per_node": 2, **others}
    return configured(**compress, seed=3)


def mixed(**others: object) -> Config:
    rules = [
        {"match": {"name": f"*.{name}.*"}, "use": spec, "exchange": pattern}
        for name, (pattern, spec) in SPECS.items()
    ]
    return config_of(rules=rules, **others)


@cases
@basic
def all_patterns_between_nodes() -> None:
    sent = exchange.check(mixed(), SPECS)
    exchange.check(
        config_of("powersgd(start_step=0)"), ["low_rank"], {"a": (70, 81), "b": (9, 600)}
    )
    leads = hvd.rank() % 2 == 0
    assert {"node allreduce", "node broadcast", "alltoall", "token"} <= set(sent)
    assert (sent["allreduce"] > 0) == leads, sent


@cases
def unnamed_collectives_of_the_script() -> None:
    """Leaders make more exchanges than others, and Horovod names by the number of exchanges."""
    params = harness.parameters({"weight": harness.MATRIX})
    opt = harness.optimizer(params, Compression(config_of("int8"), params.items()))
    for step in range(3):
        harness.averages(opt, params, harness.gradients(params, step))
        assert hvd.allreduce(torch.tensor(float(hvd.rank()))) == 1.5


@cases
def single_tensors() -> None:
    exchange.check(mixed(bucket_bytes=0), ["topk", "int8", "sketch"])


@cases
def momentum_correction() -> None:
    """DGC, dense inside nodes and compressed between them."""
    for between in ("two_level", "two_level(sra)"):
        spec = "dgc(ratio=0.02,warmup_epochs=0)"
        rules = [{"match": {}, "use": spec}]
        exchange.check(config_of(spec, between, rules=rules), ["dgc"])


@cases
def one_node_and_single_ranks() -> None:
    """Nodes of one rank each: the pattern itself. One node of all ranks: nothing between nodes."""
    # Horovod forms sums of four in another order than the loopback.
    sent = exchange.check(mixed(ranks_per_node=1), ["topk", "int8", "qsgd", "vote"])
    assert not {"node allreduce", "node broadcast"} & set(sent)
    params = harness.parameters({"w": harness.MATRIX})
    compression = Compression(config_of("residual|int8", ranks_per_node=4), params.items())
    opt = harness.optimizer(params, compression)
    of_ranks = [harness.gradients(params, 0, rank) for rank in range(hvd.size())]
    averages = harness.averages(opt, params, of_ranks[hvd.rank()])
    for name, average in averages.items():
        exact = sum(grads[name] for grads in of_ranks) / hvd.size()
        residual = compression.state_dict()["residual"][name].view(average.shape)
        torch.testing.assert_close(average + residual, exact, rtol=0, atol=1e-5)
        harness.check_same_on_all_ranks(average)
        harness.check_same_on_all_ranks(residual)
    assert set(compression.stats.sent_bytes) == {"node allreduce", "token", "check"}


@cases
@basic
def nodes_are_those_of_horovod() -> list[int]:
    config = config_of("residual|topk(ratio=0.02)", ranks_per_node=None)
    params = harness.parameters({"w": harness.MATRIX})
    compression = Compression(config, params.items())
    opt = harness.optimizer(params, compression)
    nodes = config_of("residual|topk(ratio=0.02)", ranks_per_node=hvd.local_size())
    loopback = Loopback(nodes, hvd.size())
    for step in range(3):
        of_ranks = [harness.gradients(params, step, rank) for rank in range(hvd.size())]
        averages = harness.averages(opt, params, of_ranks[hvd.rank()])
        expected = loopback.step({name: [grads[name] for grads in of_ranks] for name in params})
        for name, average in averages.items():
            torch.testing.assert_close(average, torch.from_numpy(expected[name][0]))
            harness.check_same_on_all_ranks(average)
    node = compression.pipeline.node
    assert node == loopback.ranks[hvd.rank()].node
    assert (node.index, node.local_rank) == (hvd.cross_rank(), hvd.local_rank())
    return [node.index, node.size]


@cases
def checkpoints() -> None:
    """Own states resume. With other nodes they are refused, and the list of all keeps the mean."""
    config = config_of("residual|topk(ratio=0.02)")
    params = harness.parameters({"w": harness.MATRIX})
    compression = Compression(config, params.items())
    opt = harness.optimizer(params, compression)
    for step in range(2):
        harness.averages(opt, params, harness.gradients(params, step))
    state = compression.state_dict()
    straight = harness.averages(opt, params, harness.gradients(params, 2))
    (name,) = params
    other = harness.parameters({"w": harness.MATRIX})
    (new,) = other
    state["residual"] = {new: state["residual"][name]}
    state["rounds"] = {new: state["rounds"][name]}
    resumed = Compression(config_of("residual|topk(ratio=0.02)"), other.items())
    resumed.load_state_dict(state)
    opt = harness.optimizer(other, resumed)
    again = harness.averages(opt, other, harness.gradients(other, 2))
    harness.check_equal(again[new], straight[name])
    flat = Compression(config_of("residual|topk(ratio=0.02)", "gather"), other.items())
    refused(lambda: flat.load_state_dict(state), StateError, "saved with 2 ranks in a node")
    states = hvd.allgather_object(state)
    flat.load_state_dict(states)
    mean = np.mean([one["residual"][new].numpy() for one in states[::2]], axis=0)
    np.testing.assert_allclose(flat.state_dict()["residual"][new].numpy(), mean, atol=1e-6)


@cases
def ranks_that_fill_no_nodes_are_refused() -> None:
    params = harness.parameters({"w": harness.MATRIX})
    compression = Compression(config_of("topk(k=9)", ranks_per_node=3), params.items())
    opt = harness.optimizer(params, compression)
    refused(
        lambda: harness.averages(opt, params, harness.gradients(params, 0)),
        ConfigError,
        "the exchange two_level is impossible",
        "rank 3: compress.ranks_per_node is 3; it must be a divisor of 4 ranks",
    )


@cases
def other_process_sets_are_refused() -> None:
    members = process_set_of(hvd, [1, 3])  # Gloo hangs if hosts have unequal shares
    params = harness.parameters({"w": harness.MATRIX})
    compression = Compression(config_of("topk(k=9)"), params.items(), members)
    opt = harness.optimizer(params, compression, process_set=members)
    if hvd.rank() in (1, 3):
        refused(
            lambda: harness.averages(opt, params, harness.gradients(params, 0)),
            ConfigError,
            "leave process_set out",
        )


@cases
def bits_stay_the_same() -> None:
    config = config_of("residual|topk(ratio=0.05)", "two_level(sra)")
    params = harness.parameters({"a": (64, 80), "b": (40, 200), "bias": (30,)})
    opt = harness.optimizer(params, Compression(config, params.items()))
    for step in range(10):
        harness.averages(opt, params, harness.gradients(params, step))
    for name, p in params.items():
        assert p.detach().abs().max() > 0
        harness.check_same_on_all_ranks(p, name)
    assert Loopback(config, 4).ranks[3].node.index == 1
