"""torch.compile with Horovod's optimizer and with gossip: bits, names and states are an eager model's."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from workers import harness
from workers.ddp_model import join
from workers.harness import Cases, check_equal, optimizer, refused
from workers.ranks import Compression, hvd

from gradcomp import ConfigError
from support.pipelines import configured
from torch_compressors import GossipDataParallel

cases = Cases()
with_horovod = Cases()
"""Those that need Horovod's ranks."""


@with_horovod
def compile_with_horovod() -> None:
    """The averages and states of an eager model: rules and random numbers depend on names."""
    rule = {"match": {"name": "last.weight"}, "use": "residual|randomk(k=300)"}
    config = configured("residual|topk(k=100)", rules=[rule])
    expected: Any = None
    for where in ("nowhere", "around", "inside"):
        torch._dynamo.reset()
        torch.manual_seed(2)
        model: Any = torch.nn.Sequential()
        for name in ("first", "last"):
            layer = torch.nn.Linear(80, 80)
            inside = where == "inside"
            model.add_module(name, torch.compile(layer, backend="aot_eager") if inside else layer)
        if where == "around":
            model = torch.compile(model, backend="aot_eager")
        compression = Compression(config, model.named_parameters())
        opt = optimizer(dict(model.named_parameters()), compression)
        found = []
        for step in range(3):
            seed = 10 * step + hvd.rank()
            x = torch.randn(4, 80, generator=torch.Generator().manual_seed(seed))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about PyTorch's own code
                model(x).square().mean().backward()
            opt.step()
            found.append([p.grad.clone() for p in model.parameters()])
            opt.zero_grad()
        state = compression.state_dict()
        found.append([one for _, one in sorted(state["residual"].items())])
        expected = expected or (found, state["specs"])
        assert state["specs"] == expected[1], where
        for ours, eager in zip(found, expected[0], strict=True):
            for one, other in zip(ours, eager, strict=True):
                check_equal(one, other, where)
    assert "|randomk(" in expected[1]["last.weight"]
    twice = [("w", model.first.weight), ("_orig_mod.w", model.last.weight)]
    refused(lambda: Compression("int8", twice), ConfigError, "must be unique; repeated: ['w']")


@cases
def compile_with_gossip() -> None:
    """The bits of an eager model, its names, and checkpoints that either can load."""
    states: dict[str, Any] = {}
    for where in ("nowhere", "inside", "around"):
        join()
        torch.manual_seed(3)
        torch._dynamo.reset()
        inner: Any = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        if where == "inside":
            inner = torch.compile(inner, backend="eager")
        model: Any = GossipDataParallel(inner, algorithm="powergossip", compression_rank=2)
        optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        called = torch.compile(model, backend="eager") if where == "around" else model
        for at in range(3):
            optimizer.zero_grad()
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * at + hvd.rank()))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about PyTorch's own code
                called(x).square().sum().backward()
            optimizer.step()
        folder = harness.shared / f"compiled-{where}"
        model.save(folder, 3)
        states[where] = model.gossip_state_dict(), list(model.parameters())
        _check_states(states[where], states["nowhere"])
        assert model.load(folder.with_name("compiled-nowhere")) == 3
        _check_states(states[where], states["nowhere"])


def _check_states(one: Any, other: Any) -> None:
    """Compare numbers and tensors in nested lists and mappings, bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        _check_states(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        for each, its in zip(one, other, strict=True):
            _check_states(each, its)
    else:
        assert one == other
