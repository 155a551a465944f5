"""Options of the stock optimizer, kinds of gradients, names, and ways to make a compressor."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

import horovod.torch as hvd
import numpy as np
import pytest
import torch
from workers import harness, profiles
from workers.harness import (
    MATRIX,
    Cases,
    TopK,
    averages,
    backward,
    check_equal,
    check_same_on_all_ranks,
    check_step,
    defaults,
    gradients,
    optimizer,
    parameters,
    refused,
)

from gradcomp import Config, Loopback, _core, list_codecs
from gradcomp.codec.spec import parse, stages
from gradcomp.errors import ConfigError, SpecError
from horovod_compressors.torch import Compression
from support.pipelines import config_of, configured, rules_of

cases = Cases()

LAYER = {"weight": MATRIX, "bias": (MATRIX[0],)}


def of_all_ranks(params: dict[str, Any], step: int) -> dict[str, list[torch.Tensor]]:
    """Each parameter's gradients, by rank."""
    ranks = [gradients(params, step, rank) for rank in range(hvd.size())]
    return {name: [grads[name] for grads in ranks] for name in params}


def expected_topk(
    params: dict[str, Any], name: str, steps: int, k: int, *, memory: bool = False
) -> list[torch.Tensor]:
    """The averages of a parameter's `gradients` under top-k, in each of the first steps."""
    model = TopK(k, hvd.size(), memory=memory)
    return [model.average(of_all_ranks(params, step)[name]) for step in range(steps)]


def plain(params: dict[str, Any], step: int, **options: Any) -> dict[str, torch.Tensor]:
    """Horovod's averages of `gradients` without compression."""
    options.setdefault("compression", hvd.Compression.none)
    twins = parameters({name: p.shape for name, p in params.items()})
    result = averages(optimizer(twins, **options), twins, gradients(twins, step))
    return dict(zip(params, result.values(), strict=True))


# Options -------------------------------------------------------------------


def _linear(**options: Any) -> None:
    for ours, stock in (
        (Compression("identity"), hvd.Compression.none),
        (Compression(config_of("fp16")), hvd.Compression.fp16),
    ):
        params = parameters(LAYER)
        opt = optimizer(params, ours, **options)
        for step in range(3):
            result = averages(opt, params, gradients(params, step))
            for name, wanted in plain(params, step, compression=stock, **options).items():
                check_equal(result[name], wanted, f"{name}, {stock.__name__}, {options}")


def _top_k(scale: float = 1.0, **options: Any) -> None:
    params = parameters(LAYER)
    weight, bias = params
    opt = optimizer(
        params, Compression("residual|topk(k=100,values=fp32)", params.items()), **options
    )
    for step, wanted in enumerate(expected_topk(params, weight, 3, 100, memory=True)):
        result = averages(opt, params, gradients(params, step))
        check_equal(result[weight], scale * wanted, f"weight, step {step}, {options}")
        check_equal(result[bias], plain(params, step, **options)[bias], f"bias, {options}")


@cases
def op_average() -> None:
    _linear(op=hvd.Average)
    _top_k(op=hvd.Average)


@cases
def op_sum() -> None:
    _linear(op=hvd.Sum)
    _top_k(op=hvd.Sum, scale=hvd.size())


@cases
def gradient_predivide_factor() -> None:
    for factor in (2.0, 3.0, 0.1):
        _linear(gradient_predivide_factor=factor)
        _top_k(gradient_predivide_factor=factor)


@cases
def other_operations_work_uncompressed_only() -> None:
    params = parameters(LAYER)
    opt = optimizer(params, Compression("identity"), op=hvd.Max)
    result = averages(opt, params, gradients(params, 0))
    for name, wanted in plain(params, 0, op=hvd.Max).items():
        check_equal(result[name], wanted, name)
    for spec in ("topk(k=100,values=fp32)", "fp16"):
        params = parameters(LAYER)
        opt = optimizer(params, Compression(spec), op=hvd.Max)
        step = partial(averages, opt, params, gradients(params, 0))
        refused(step, ConfigError, spec, "op=hvd.Average")


@cases
def backward_passes_per_step() -> None:
    for spec in ("identity", "topk(k=100,values=fp32)"):
        params = parameters(LAYER)
        weight, bias = params
        compression = Compression(spec)
        opt = optimizer(params, compression, backward_passes_per_step=2)
        model = TopK(100, hvd.size(), memory=False)
        for step in range(3):
            backward(params, gradients(params, 2 * step))
            result = averages(opt, params, gradients(params, 2 * step + 1))
            first, second = (of_all_ranks(params, 2 * step + i) for i in range(2))
            of_ranks = {
                name: [a + b for a, b in zip(first[name], second[name], strict=True)]
                for name in params
            }
            check_equal(result[bias], sum(of_ranks[bias]) / hvd.size(), "bias")
            wanted = sum(of_ranks[weight]) / hvd.size()
            check_equal(
                result[weight],
                wanted if spec == "identity" else model.average(of_ranks[weight]),
                f"weight, {spec}",
            )
        assert compression.stats.steps == 3, compression.stats


@cases
def groups() -> None:
    """Groups of payloads, tokens and dense gradients give the same averages as no groups."""
    specs = ("residual|topk(k=50,values=fp32)", "fp16", "bf16", "randomk(k=7)")
    shapes = {f"of{position}": MATRIX for position in range(len(specs))} | {"bias": (9,)}
    rules = rules_of(dict(enumerate(specs)), "*.of{}")
    config = configured("fp16", rules=rules)

    def run(make_groups: Callable[[list[Any]], Any]) -> list[torch.Tensor]:
        # The same names in each run, because random-k derives its seed from them.
        values = parameters(shapes).values()
        params = {f"grouped.{name}": p for name, p in zip(shapes, values, strict=True)}
        options = make_groups(list(params.values()))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Parameter `num_groups`", DeprecationWarning)
            opt = optimizer(params, Compression(config, params.items()), **options)
        steps = [averages(opt, params, gradients(params, step)) for step in range(3)]
        return [value for step in steps for value in step.values()]

    alone = run(lambda params: {})
    for make_groups in (
        lambda params: {"groups": [params[:3], params[3:]]},
        lambda params: {"groups": [params[1:3]]},
        lambda params: {"groups": 2},
        lambda params: {"num_groups": 1},
    ):
        for actual, wanted in zip(run(make_groups), alone, strict=True):
            check_equal(actual, wanted)


@cases
def skip_synchronize() -> None:
    params = parameters(LAYER)
    (weight, _), p = params, next(iter(params.values()))
    opt = optimizer(params, Compression("residual|topk(k=100,values=fp32)", params.items()))
    for step, wanted in enumerate(expected_topk(params, weight, 3, 100, memory=True)):
        before = p.detach().clone()
        backward(params, gradients(params, step))
        opt.synchronize()
        check_equal(p.grad, wanted)
        torch.nn.utils.clip_grad_norm_(params.values(), 0.5)
        norm = torch.stack([q.grad.norm() for q in params.values()]).norm()
        assert abs(norm - 0.5) < 1e-4, norm
        with opt.skip_synchronize():
            opt.step()
        check_equal(p.detach(), before - p.grad)
        opt.zero_grad()


@cases
def broadcast_as_stock_scripts_do() -> None:
    params = parameters(LAYER)
    weight, _ = params
    with torch.no_grad():
        params[weight].fill_(hvd.rank())
    opt = optimizer(params, Compression("topk(k=100,values=fp32)", params.items()))
    hvd.broadcast_parameters(list(params.items()), root_rank=0)
    hvd.broadcast_optimizer_state(opt, root_rank=0)
    result = averages(opt, params, gradients(params, 0))
    check_equal(result[weight], expected_topk(params, weight, 1, 100)[0])
    check_equal(params[weight].detach(), -result[weight])


@cases
def ranks_that_have_joined() -> None:
    """After hvd.join() a rank takes part in sums with zeros (in gathers Horovod fails)."""
    params = parameters({"weight": MATRIX})
    opt = optimizer(params, Compression("fp16"))
    averages(opt, params, gradients(params, 0))
    if hvd.rank() == 0:
        (grad,) = gradients(params, 1).values()
        (result,) = averages(opt, params, gradients(params, 1)).values()
        check_equal(result, grad.half().float() / hvd.size())
    hvd.join()


@cases
def uneven_data() -> None:
    """A rank without data sends zeros and the rest of its residual, by a loss multiplied by 0."""
    params = parameters({"weight": MATRIX})
    (name,) = params
    opt = optimizer(params, Compression("residual|topk(k=100,values=fp32)", params.items()))
    model = TopK(100, hvd.size(), memory=True)
    for step in range(4):
        weights = [float(step < 2 + rank) for rank in range(hvd.size())]
        own = {name: gradients(params, step)[name] * weights[hvd.rank()]}
        of_ranks = of_all_ranks(params, step)[name]
        wanted = model.average([grad * w for grad, w in zip(of_ranks, weights, strict=True)])
        check_equal(averages(opt, params, own)[name], wanted, f"step {step}")


# Kinds of gradients --------------------------------------------------------


@cases
def sparse_as_dense() -> None:
    """Two embeddings of one shape: only their names distinguish their specs."""
    params = parameters({"first": (60, 80), "second": (60, 80)})
    config = configured(
        "identity",
        rules=[{"match": {"name": "*.second"}, "use": "residual|topk(k=30,values=fp32)"}],
    )
    compression = Compression(config, params.items())
    opt = optimizer(params, compression, sparse_as_dense=True)
    model = TopK(30, hvd.size(), memory=True)

    def loss(rank: int, step: int, weights: dict[str, torch.Tensor], sparse: bool) -> torch.Tensor:
        rows = torch.tensor([rank, 2, 2, 5 + step])
        generator = torch.Generator().manual_seed(10 * rank + step)
        terms = [
            torch.nn.functional.embedding(rows, weight, sparse=sparse)
            * torch.randn(4, 80, generator=generator)
            for weight in weights.values()
        ]
        return torch.stack(terms).sum()

    for step in range(3):
        of_ranks = []
        for rank in range(hvd.size()):
            copies = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
            loss(rank, step, copies, sparse=False).backward()
            of_ranks.append([copy.grad for copy in copies.values()])
        loss(hvd.rank(), step, params, sparse=True).backward()
        opt.synchronize()
        first, second = (p.grad.to_dense() for p in params.values())
        check_equal(first, sum(grads[0] for grads in of_ranks) / hvd.size(), "first")
        check_equal(second, model.average([grads[1] for grads in of_ranks]), "second")
        with opt.skip_synchronize():
            opt.step()
        opt.zero_grad()
    assert list(compression.state_dict()["residual"]) == list(params)[1:]


@cases
def sparse_gradients_travel_as_stock_with_summable_specs() -> None:
    """Also where the rule of the parameter alone says so."""
    wanted = torch.zeros(60, 80)
    for rank in range(hvd.size()):
        wanted[rank] += 1 / hvd.size()
        wanted[2] += 1 / hvd.size()
    for number, compress in enumerate(
        (
            {"default": "fp16"},
            {
                "default": "residual|topk(k=10)",
                "rules": [{"match": {"name": "*.sparse"}, "use": "identity"}],
            },
        )
    ):
        layer = torch.nn.Embedding(60, 80, sparse=True)
        dense = torch.nn.Parameter(torch.zeros(MATRIX))
        params = {f"plain{number}.sparse": layer.weight, f"plain{number}.dense": dense}
        opt = optimizer(params, Compression(configured(**compress), params.items()))
        (layer(torch.tensor([hvd.rank(), 2])).sum() + dense.sum()).backward()
        opt.synchronize()
        check_equal(layer.weight.grad.to_dense(), wanted, str(compress))


@cases
def dtypes() -> None:
    """Gradients come back in their own dtype; uncompressed, in the precision they have."""
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    for spec in (
        "identity",
        "fp16",
        "bf16",
        "topk(k=100,values=fp32)",
        "residual|topk(k=100,values=fp32)",
    ):
        for dtype in dtypes:
            params = parameters({"weight": MATRIX}, dtype)
            (name,) = params
            opt = optimizer(params, Compression(config_of(spec), params.items()))
            loopback = Loopback(config_of(spec), hvd.size())
            for step in range(2):
                result = averages(opt, params, gradients(params, step))
                grads = of_all_ranks(params, step)[name]
                if spec == "identity" and dtype != torch.bfloat16:
                    wanted = sum(grads) / hvd.size()
                else:
                    rounded = [grad.to(torch.float32) for grad in grads]
                    wanted = torch.from_numpy(loopback.step({name: rounded})[name][0]).to(dtype)
                check_equal(result[name], wanted, f"{spec}, {dtype}")


@cases
def other_defaults_of_torch() -> None:
    """Scripts set a default dtype or device for their model; helper tensors of the exchange keep theirs."""
    for spec in ("identity", "residual|topk(k=100,values=fp32)", "powersgd(rank=2,start_step=0)"):
        found = []
        for dtype, device in (
            (torch.float32, "cpu"),
            (torch.bfloat16, "meta"),
            (torch.float64, "cpu"),
        ):
            params = {"weight": torch.nn.Parameter(torch.zeros(MATRIX))}
            opt = optimizer(params, Compression(config_of(spec), params.items()))
            with defaults(dtype, device):
                found += [
                    averages(opt, params, gradients(params, step))["weight"] for step in (0, 1)
                ]
        for average, wanted in zip(found, found[:2] * 3, strict=True):
            check_equal(average, wanted, spec)


@cases
def dtypes_mixed_in_one_model() -> None:
    params = {
        **parameters({"single": MATRIX, "bias": (3,)}),
        **parameters({"double": MATRIX}, torch.float64),
        **parameters({"half": MATRIX, "scale": (5,)}, torch.float16),
        **parameters({"brain": MATRIX, "shift": (5,)}, torch.bfloat16),
    }
    opt = optimizer(params, Compression("residual|topk(k=100,values=fp32)", params.items()))
    for step in range(2):
        result = averages(opt, params, gradients(params, step))
        for name, p in params.items():
            assert result[name].dtype == p.dtype
            if p.numel() == MATRIX[0] * MATRIX[1]:
                wanted = expected_topk(params, name, step + 1, 100, memory=True)[step]
            else:
                wanted = sum(g.float() for g in of_all_ranks(params, step)[name]) / hvd.size()
            check_equal(result[name], wanted.to(p.dtype), name)


@cases
def complex_gradients_travel_uncompressed() -> None:
    """Where payloads can be added; Horovod itself averages real numbers only."""
    for spec in ("identity", "fp16", "randomk(ratio=0.5)"):
        for dtype in (torch.complex64, torch.complex128):
            params = parameters({"weight": MATRIX}, dtype)
            (weight,) = params.values()
            factor = 1 + hvd.rank() - 2j
            opt = optimizer(params, Compression(config_of(spec)))
            (weight * factor).real.sum().backward()
            opt.step()
            mean = sum(torch.full(MATRIX, 1 + rank + 2j, dtype=dtype) for rank in range(hvd.size()))
            check_equal(weight.grad, mean / hvd.size(), f"{spec} {dtype}")
    params = parameters({"weight": MATRIX}, torch.complex64)
    (weight,) = params.values()
    optimizer(params, Compression(config_of("topk(k=10,values=fp32)")))
    refused(weight.abs().sum().backward, TypeError, "complex64", "use: identity")


@cases
def integers_by_hand_travel_as_they_are() -> None:
    """Exactly, with every spec, as with the stock `Compression.fp16`."""
    for dtype in (torch.int32, torch.int64):
        numbers = torch.arange(MATRIX[0] * MATRIX[1]).view(MATRIX).to(dtype)
        for spec in ("identity", "fp16", "randomk(ratio=0.1)", "int8", "topk(k=10)"):
            label = f"integers.{spec}.{dtype}"  # ranks that have joined count nameless ones apart
            total = hvd.allreduce(
                numbers, op=hvd.Sum, compression=Compression(spec), name=f"{label}.ours"
            )
            check_equal(total, hvd.allreduce(numbers, op=hvd.Sum, name=label), label)
    # Horovod itself refuses these.
    for tensor in (
        torch.tensor([True, False]),
        torch.full((3,), 1 - 2j),
        torch.ones(3, dtype=torch.uint8),
    ):
        sent, context = Compression.fp16.compress(tensor)
        assert sent is tensor
        assert Compression.fp16.decompress(sent, context) is tensor


@cases
def fp16_in_the_place_of_the_stock_one() -> None:
    """What Horovod's own test of `hvd.Compression.fp16` checks, and empty tensors."""
    for shape in ((5, 5, 5), (20, 20, 20), (7,), (), (0, 3)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            tensor = torch.ones(shape, dtype=dtype)
            sent, context = Compression.fp16.compress(tensor)
            assert sent.dtype == torch.float16
            check_equal(Compression.fp16.decompress(sent, context), tensor, f"{shape} {dtype}")
    number = hvd.allreduce(
        torch.tensor(1.0 + hvd.rank()), compression=Compression.fp16, name="by hand.number"
    )
    check_equal(number, torch.tensor((1.0 + hvd.size()) / 2))
    few = torch.full((3,), 1 + 2**-20)
    # With others default rules still take small tensors.
    others = ("topk(k=1)", "randomk(k=1)", "bf16", configured("fp16", exchange="gather"))
    for number, config in enumerate(others):
        average = hvd.allreduce(few, compression=Compression(config), name=f"by hand.{number}")
        check_equal(average, few, str(config))


@cases
def missing_gradients() -> None:
    """A parameter that only some ranks use in a step counts as 0 on the others, and their residuals
    are still sent. The same holds for a parameter that no rank uses before step 10."""
    shapes = dict.fromkeys(("always", "rank0", "rank1", "late"), MATRIX)
    params = parameters({**shapes, "frozen": (2,)})
    always, rank0, rank1, late, frozen = params
    params[frozen].requires_grad_(False)
    opt = optimizer(params, Compression("residual|topk(k=100,values=fp32)", params.items()))
    models = {name: TopK(100, hvd.size(), memory=True) for name in (always, rank0, rank1, late)}

    def used(name: str, rank: int, step: int) -> bool:
        if name in (rank0, rank1):
            return rank == (name == rank1) or step % 4 == 3
        return step >= 10 if name == late else name == always

    for step in range(15):
        of_ranks = of_all_ranks(params, step)
        mine = {
            name: grads[hvd.rank()]
            for name, grads in of_ranks.items()
            if used(name, hvd.rank(), step)
        }
        backward(params, mine)
        opt.step()
        for name, model in models.items():
            grads = [
                grad if used(name, rank, step) else torch.zeros_like(grad)
                for rank, grad in enumerate(of_ranks[name])
            ]
            check_equal(params[name].grad, model.average(grads), f"{name}, step {step}")
        opt.zero_grad()


@cases
def synchronize_begins_with_a_wait() -> None:
    """Horovod's own wait, which keeps a processor busy, is called for complete collectives only."""
    params = parameters(LAYER)
    opt = optimizer(params, Compression("residual|topk(k=100,values=fp32)", params.items()))
    backward(params, gradients(params, 0))
    opt.step()
    late = []

    def synchronize(handle: int) -> Any:
        late.append(not hvd.poll(handle))
        return hvd.synchronize(handle)

    for clips in (False, True):
        time.sleep(0.3 * hvd.rank())
        backward(params, gradients(params, 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("horovod.torch.optimizer.synchronize", synchronize)
            if clips:
                opt.synchronize()
                with opt.skip_synchronize():
                    opt.step()
            else:
                opt.step()
        assert late == [False, False], f"clips: {clips}"
        late.clear()


@cases
def empty_and_tiny_parameters() -> None:
    shapes = {"empty": (0,), "none": (0, 5), "one": (1,), "scalar": (), "weight": MATRIX}
    for config in (
        Config.from_spec("topk(k=100,values=fp32)"),
        config_of("topk(ratio=0.01,values=fp32)"),
        config_of("fp16"),
        config_of("residual|bf16"),
    ):
        params = parameters(shapes)
        opt = optimizer(params, Compression(config, params.items()))
        loopback = Loopback(config, hvd.size())
        for step in range(2):
            result = averages(opt, params, gradients(params, step))
            wanted = loopback.step(of_all_ranks(params, step))
            for name, p in params.items():
                assert result[name].shape == p.shape
                check_equal(result[name], wanted[name][0], name)


@cases
def gradients_that_are_not_contiguous() -> None:
    for spec in ("identity", "fp16", "topk(k=100,values=fp32)"):
        turned = torch.nn.Parameter(torch.zeros(MATRIX).t())
        kernel = torch.zeros(32, 16, 3, 3).to(memory_format=torch.channels_last)
        params = {f"turned.{spec}": turned, f"kernel.{spec}": torch.nn.Parameter(kernel)}
        opt = optimizer(params, Compression(spec))
        loopback = Loopback(spec, hvd.size())
        for step in range(2):
            of_ranks = of_all_ranks(params, step)
            backward(params, {name: grads[hvd.rank()] for name, grads in of_ranks.items()})
            assert not any(p.grad.is_contiguous() for p in params.values())
            opt.step()
            for name, wanted in loopback.step(of_ranks).items():
                check_equal(params[name].grad, wanted[0], f"{name}, {spec}")
            opt.zero_grad()


@cases
def nan_and_inf() -> None:
    """NaN and Inf reach all ranks in the same step, and stay in no memory."""
    for spec in ("residual|topk(k=100,values=fp32)", "residual|fp16", "residual|bf16"):
        params = parameters({"weight": MATRIX})
        (name,) = params
        compression = Compression(config_of(spec), params.items())
        opt = optimizer(params, compression)
        loopback = Loopback(config_of(spec), hvd.size())
        for step in range(4):
            of_ranks = of_all_ranks(params, step)[name]
            if step == 1:
                of_ranks[1][0, 3] = float("nan")
                of_ranks[0][5, 7] = float("inf")
                of_ranks[1][63, 79] = -float("inf")
            result = averages(opt, params, {name: of_ranks[hvd.rank()]})[name]
            check_equal(result, loopback.step({name: of_ranks})[name][0], f"{spec}, {step}")
            check_same_on_all_ranks(result, spec)
            if step == 1:
                assert result[0, 3].isnan(), result[0, 3]
                assert result[5, 7] == float("inf"), result[5, 7]
                assert result[63, 79] == -float("inf"), result[63, 79]
                assert result.isfinite().sum() == result.numel() - 3
            else:
                assert result.isfinite().all(), step
            assert compression.state_dict()["residual"][name].isfinite().all()


# Names ---------------------------------------------------------------------


@cases
def without_named_parameters() -> None:
    params = parameters(LAYER)
    weight, _ = params
    opt = optimizer(params, Compression("topk(k=100,values=fp32)"), named_parameters=None)
    for step, wanted in enumerate(expected_topk(params, weight, 2, 100)):
        check_equal(averages(opt, params, gradients(params, step))[weight], wanted)
    refused(
        lambda: Compression("residual|topk(k=100,values=fp32)"),
        ConfigError,
        "'residual(beta=1.0,gamma=1.0)|topk(k=100,values=fp32)' keeps state between steps",
        "named_parameters=model.named_parameters()",
    )


@cases
def one_compression_for_two_optimizers() -> None:
    compression = Compression("topk(k=100,values=fp32)")
    for _ in range(2):
        params = parameters(LAYER)
        weight, _ = params
        opt = optimizer(params, compression)
        for step, wanted in enumerate(expected_topk(params, weight, 2, 100)):
            check_equal(averages(opt, params, gradients(params, step))[weight], wanted)


@cases
def named_parameters_that_lack_one() -> None:
    for spec in ("fp16", "topk(k=100,values=fp32)"):
        params = parameters({"known": MATRIX, "other": MATRIX})
        opt = optimizer(params, Compression(spec, list(params.items())[:1]))
        refused(
            partial(averages, opt, params, gradients(params, 0)),
            ConfigError,
            "shape (64, 80) belongs to none of the 1 named_parameters given to Compression",
            "named_parameters=model.named_parameters()",
        )


@cases
def wrong_named_parameters() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    refused(lambda: Compression("fp16", [p]), ConfigError, "pairs of name and parameter")
    refused(lambda: Compression("fp16", [("a", p), ("a", p)]), ConfigError, "unique", "['a']")


@cases
def a_parameter_of_two_names() -> None:
    """Tied weights, as ``named_parameters(remove_duplicate=False)`` lists them."""
    params = parameters({"weight": MATRIX, "more": MATRIX})
    (weight, p), (more, _) = params.items()
    names = [(weight, p), (more, params[more]), (f"{weight}.tied", p)]
    opt = optimizer(
        params, Compression("residual|topk(k=100,values=fp32)", names), named_parameters=names
    )
    wanted = expected_topk(params, weight, 3, 100, memory=True)
    for step in range(3):
        # Ranks look the two up in different orders.
        for name in (weight, more) if hvd.rank() == 0 else (more, weight):
            backward(params, {name: gradients(params, step)[name]})
        opt.step()
        check_equal(p.grad, wanted[step])
        opt.zero_grad()


@cases
def two_models_of_the_same_names() -> None:
    """Two optimizers, one after the other, as Horovod requires."""
    shapes = {"weight": (60, 90)}
    models = []
    for _ in range(2):
        params = dict(zip(["same.weight"], parameters(shapes).values(), strict=True))
        compression = Compression("residual|topk(k=100,values=fp32)", params.items())
        models.append((params, optimizer(params, compression), compression))
    for step in range(3):
        for offset, (params, opt, _) in enumerate(models):
            wanted = TopK(100, hvd.size(), memory=True)
            for past in range(step + 1):
                expected = wanted.average(of_all_ranks(params, 2 * past + offset)["same.weight"])
            result = averages(opt, params, gradients(params, 2 * step + offset))
            check_equal(result["same.weight"], expected)
    assert len({id(compression.pipeline) for _, _, compression in models}) == 2


@cases
def two_models_at_once() -> None:
    """Both backward passes before the first step."""
    models = []
    for _ in range(2):
        params = parameters(LAYER)
        models.append((params, optimizer(params, Compression("topk(k=100,values=fp32)"))))
    for step in range(3):
        for params, _ in models:
            backward(params, gradients(params, step))
        for params, opt in models:
            weight, _ = params
            opt.step()
            check_equal(params[weight].grad, expected_topk(params, weight, step + 1, 100)[step])
            opt.zero_grad()


# Ways to make one ----------------------------------------------------------


@cases
def constructors() -> None:
    """One constructor per codec: called and, if the codec needs no parameter, uncalled."""
    made = [(Compression.none, "identity"), (Compression.none(), "identity")]
    for codec in list_codecs():
        (stage,) = (stage for stage in stages() if stage.name == codec)
        constructor = getattr(Compression, codec)
        made.append((constructor(**parse(stage.example).stages[0].params), stage.example))
        with suppress(SpecError):
            made.append((constructor, parse(codec).canonical))
    assert len(made) > 2 + len(list_codecs())
    for compression, text in made:
        params = parameters({"weight": MATRIX})
        (weight,) = params
        opt = optimizer(params, compression)
        grads = of_all_ranks(params, 0)
        result = averages(opt, params, {weight: grads[weight][hvd.rank()]})
        check_equal(result[weight], Loopback(text, hvd.size()).step(grads)[weight][0], text)
    params = parameters({"weight": MATRIX})
    ratio = Compression.topk(ratio=0.02, named_parameters=params.items())
    assert ratio.config.compress.default.canonical == "topk(ratio=0.02,values=fp32)"
    saturating = Compression.fp16(overflow="saturate")
    assert saturating.config.compress.default.canonical == "fp16(overflow=saturate)"
    opt = optimizer(params, Compression.topk)
    refused(lambda: averages(opt, params, gradients(params, 0)), SpecError, "topk", "ratio", "k")
    refused(lambda: Compression.topq, AttributeError, "topq", "topk", "none")
    refused(lambda: Compression("topq(ratio=0.1)"), SpecError, "topq", "^")


@cases
def from_config_and_environment() -> None:
    params = parameters(LAYER)
    first = harness.shared / f"first{hvd.rank()}.yaml"
    second = harness.shared / f"second{hvd.rank()}.yaml"
    first.write_text("version: 1\ncompress: {default: 'topk(k=100,values=fp32)'}\nseed: 3\n")
    second.write_text("compress: {rules: [{match: {name: '*.bias'}, use: bf16}]}\n")
    os.environ.pop("GRADCOMP_COMPRESSION", None)
    os.environ["GRADCOMP_CONFIG"] = f"{first}:{second}"
    both = Compression.from_env(params.items())
    listed = Compression.from_config([first, second], ["seed=4"], params.items())
    alone = Compression.from_config(first)
    del os.environ["GRADCOMP_CONFIG"]
    nothing = Compression.from_env()
    os.environ["GRADCOMP_COMPRESSION"] = "residual|topk(k=5,values=fp32)"
    stateful = Compression.from_env(params.items())
    refused(
        Compression.from_env,
        ConfigError,
        "topk(k=5,values=fp32)' keeps state between steps",
        "named_parameters",
    )
    os.environ["GRADCOMP_CONFIG"] = str(first)
    refused(Compression.from_env, ConfigError, "GRADCOMP_COMPRESSION", "GRADCOMP_CONFIG")
    del os.environ["GRADCOMP_COMPRESSION"], os.environ["GRADCOMP_CONFIG"]

    weight, bias = params
    found = [
        (
            str(config.spec_for(weight, LAYER["weight"])),
            str(config.spec_for(bias, LAYER["bias"])),
            config.seed,
        )
        for config in (c.config for c in (both, listed, alone, nothing, stateful))
    ]
    assert found == [
        ("topk(k=100,values=fp32)", "bf16", 3),
        ("topk(k=100,values=fp32)", "bf16", 4),
        ("topk(k=100,values=fp32)", "identity", 3),
        ("identity", "identity", 0),
        ("residual(beta=1.0,gamma=1.0)|topk(k=5,values=fp32)", "identity", 0),
    ], found
    result = averages(optimizer(params, both), params, gradients(params, 0))
    check_equal(result[weight], expected_topk(params, weight, 1, 100)[0])


@contextmanager
def warned() -> Iterator[list[str]]:
    """The warnings of gradcomp's loggers inside."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    listener = Listener(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("gradcomp", "horovod_compressors")]
    for one in loggers:
        one.addHandler(listener)
    try:
        yield found
    finally:
        for one in loggers:
            one.removeHandler(listener)


@cases
def flat_tensors_that_are_not_compressed_are_named() -> None:
    flat = torch.arange(9000, dtype=torch.float32) * (hvd.rank() + 1)
    with warned() as found:
        for number in range(2):
            compression = Compression.topk(ratio=0.02)
            average = hvd.allreduce(flat, name=f"flat.{number}", compression=compression)
    mean = sum(range(1, hvd.size() + 1)) / hvd.size()
    torch.testing.assert_close(average, torch.arange(9000, dtype=torch.float32) * mean)
    if hvd.rank():
        assert found == []
    else:
        (text,) = found
        assert "shape (9000,) is averaged uncompressed, by default rule: ndim <= 1" in text, text


@cases
def tensors_of_the_script_do_not_change() -> None:
    """Averages take the memory of gradients, but not that of other tensors."""
    own = torch.arange(9000, dtype=torch.float32).reshape(90, 100) * (hvd.rank() + 1)
    before = own.clone()
    average = hvd.allreduce(own, name="own", compression=Compression.fp16())
    assert torch.equal(own, before)
    mean = before / (hvd.rank() + 1) * (1 + hvd.size()) / 2
    torch.testing.assert_close(average, mean, rtol=2e-3, atol=0)


@cases
def a_missing_environment_is_named() -> None:
    for name in ("GRADCOMP_COMPRESSION", "GRADCOMP_CONFIG"):
        os.environ.pop(name, None)
    params = parameters({"first": MATRIX})
    with warned() as unset:
        averages(optimizer(params, Compression.from_env()), params, gradients(params, 0))
    os.environ["GRADCOMP_COMPRESSION"] = "identity"
    try:
        # Other parameters: an optimizer's hooks stay at its own.
        params = parameters({"second": MATRIX})
        with warned() as chosen:
            averages(optimizer(params, Compression.from_env()), params, gradients(params, 0))
    finally:
        del os.environ["GRADCOMP_COMPRESSION"]
    assert chosen == []
    if hvd.rank() == 0:
        (text,) = unset
        assert text.startswith("gradcomp: nothing is compressed"), text
        assert "GRADCOMP_CONFIG" in text, text


@cases
def statistics() -> dict[str, Any]:
    """Counted bytes equal the bytes handed to the collectives."""
    params = parameters(LAYER)
    compression = Compression("topk(k=100)|raw32")
    opt = optimizer(params, compression)
    for step in range(4):
        averages(opt, params, gradients(params, step))
    frame = Loopback("topk(k=100)|raw32", 1)
    frame.step({"w": [gradients(params, 0)[next(iter(params))]]})
    stats = compression.stats
    assert stats.steps == 4
    assert stats.dense_bytes == 4 * 4 * (64 * 80 + 64)
    assert stats.sent_bytes["token"] == 4 * 4
    assert stats.sent_bytes["allreduce"] == 4 * 4 * 64
    # The first text has the state, too.
    assert stats.sent_bytes["check"] % 64 == 0
    assert 4 * 64 <= stats.sent_bytes["check"] <= 4 * 128 + 512
    assert stats.sent_bytes["allgather"] == 4 * frame.stats[0].total_bytes
    return {"ratio": stats.ratio}


@cases
def a_rank_uses_its_share_of_the_processors() -> None:
    params = parameters(LAYER)
    opt = optimizer(params, Compression("topk(k=100)"))
    before = _core.thread_count()
    with mock.patch("gradcomp.codec.threads.processors", return_value=3 * hvd.local_size() + 1):
        averages(opt, params, gradients(params, 0))
    used = _core.thread_count()
    _core.set_thread_count(before)
    assert used == 3, used


@cases
def profile() -> None:
    """Profiles with errors; all tensors, also linear ones, are then collected."""
    params = parameters(profiles.SHAPES)
    compression = Compression(profiles.config(harness.shared / "profile"), params.items())
    opt = optimizer(params, compression)
    loopback = profiles.loopback(hvd.size())
    order = np.random.default_rng(1)
    began = time.perf_counter()
    for step in range(profiles.STEPS):
        check_step(opt, params, loopback, step, order)
    seconds = time.perf_counter() - began
    assert compression.stats.sent_bytes["token"] == 4 * len(params) * profiles.STEPS
    profiles.check(compression.stats, loopback.stats[0], seconds)
