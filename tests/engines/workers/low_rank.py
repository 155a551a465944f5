"""PowerSGD and Dion on real Horovod: references, and steps together with other algorithms."""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import numpy as np
import torch
from powersgd_reference import initial_factors, library_spec
from workers import harness
from workers.harness import Cases, refused

from gradcomp import ConfigError, Loopback
from horovod_compressors.torch import Compression
from support.dion import Reference, Reference2
from support.pipelines import config_of, configured, rules_of
from support.reference import reference
from torch_compressors import DeMo, Dion, dion_groups

cases = Cases()


@cases
def the_library_variant_is_the_reference_one() -> None:
    """A case of two ranks: averages and residuals."""
    about, arrays = reference("powersgd-01")
    assert about["world_size"] == hvd.size()
    params = harness.parameters_of(about)
    config = config_of(library_spec(about["config"], "gram_schmidt"))
    compression = Compression(config, params.items())
    state = {**compression.state_dict(), **initial_factors(about, arrays)}
    compression.load_state_dict(state)
    opt = harness.optimizer(params, compression)
    for step, averages in harness.replay(about, arrays, "avg", opt, params):
        residuals = compression.state_dict()["residual"]
        for name in averages:
            if name in residuals:
                expected = arrays[f"residual.{name}"][step, hvd.rank()]
                harness.check_close(about, residuals[name].numpy(), expected)
        assert set(residuals) == {
            name for name, taken in about["config"]["is_compressed"].items() if taken
        }


@cases
def beside_gathered_and_dense_tensors() -> None:
    """Algorithms of one, two and three phases in one step with frames and plain all-reduces.

    Averages equal the loopback's. Each rank's gradients come in its own order, and some tensors
    have no gradient in some steps.
    """
    specs = {
        "library": "powersgd(rank=2,start_step=2,variant=library)",
        "paper": "powersgd(rank=2,start_step=0,variant=paper,values=fp16)",
        "often": "powersgd(rank=1,start_step=1,iters_per_step=3,values=bf16,variant=library)",
        "gathered": "residual|topk(k=20)",
        "half": "fp16",
        "plain": "identity",
    }
    rules = rules_of(specs, "*{}.*")
    config = configured("identity", rules=rules)
    shapes = {f"{name}.{n}": (20, 12 + n) for n in range(3) for name in specs}
    params = harness.parameters(shapes)
    opt = harness.optimizer(params, Compression(config, params.items()))
    loopback = Loopback(config, hvd.size())
    order = np.random.default_rng(hvd.rank())
    for step in range(6):
        of_ranks = [harness.gradients(params, step, rank) for rank in range(hvd.size())]
        taking_part = [name for i, name in enumerate(params) if (i + step) % 5]
        mine = of_ranks[hvd.rank()]
        shuffled = order.permutation(taking_part).tolist()
        averages = harness.averages(opt, params, {name: mine[name] for name in shuffled})
        # Horovod averages zeros where there is no gradient.
        for grads in of_ranks:
            for name in set(params) - set(taking_part):
                grads[name].zero_()
        expected = loopback.step({name: [grads[name] for grads in of_ranks] for name in params})
        for name, average in averages.items():
            harness.check_equal(average, expected[name][hvd.rank()], f"{step}: {name}")


def demo_step(name: str) -> Callable[[list[np.ndarray]], np.ndarray]:
    """A function from all ranks' gradients to the step of DeMo in the loopback."""
    loopback = Loopback("demo(k=64)", hvd.size())
    return lambda grads: loopback.step({name: grads})[name][0]


@cases
def dion_is_the_reference_one() -> None:
    """The optimizers Dion and DeMo: matrices by the formulas in float64, vectors by Lion.

    DeMo's signs of sums near 0 depend on rounding, so its steps are those of the loopback.
    """
    shape, ranks = (90, 50), hvd.size()
    for spec, make, make_step in (
        ("dion(rank_fraction=0.1)", Dion, lambda name: Reference(ranks, name, shape, 5).step),
        ("dion2(fraction=0.1)", Dion, lambda _: Reference2(ranks, shape, 5).step),
        ("demo(k=64)", DeMo, demo_step),
    ):
        params = harness.parameters({"w": shape, "b": (70,)})
        w, b = params
        wanted = {name: p.detach().double().numpy().copy() for name, p in params.items()}
        opt = hvd.DistributedOptimizer(
            make(dion_groups(params.items(), spec), lr=0.1, weight_decay=0.05),
            named_parameters=list(params.items()),
            compression=Compression(spec, params.items()),
        )
        step_of, momentum = make_step(w), np.zeros(70)
        for step in range(4):
            of_ranks = [harness.gradients(params, step, rank) for rank in range(ranks)]
            opt.zero_grad()
            mine = of_ranks[hvd.rank()]
            sum((p * mine[name]).sum() for name, p in params.items()).backward()
            opt.step()
            steps = {w: step_of([grads[w].numpy() for grads in of_ranks])}
            average = np.mean([grads[b].numpy() for grads in of_ranks], axis=0)
            steps[b] = np.sign(0.9 * momentum + 0.1 * average)
            momentum = 0.99 * momentum + 0.01 * average
            for name, p in params.items():
                wanted[name] = (1 - 0.1 * 0.05) * wanted[name] - 0.1 * steps[name]
                np.testing.assert_allclose(p.detach().numpy(), wanted[name], atol=1e-4)
        for name, p in params.items():
            harness.check_same_on_all_ranks(p, name)
    for config, make, part in (
        ("dion(rank_fraction=0.1)", torch.optim.Adam, "use torch_compressors.Dion"),
        ("fp16", lambda ps: Dion([{"params": ps, "rule": "dion"}]), "use another optimizer"),
    ):
        params = harness.parameters({"w": (90, 50)})
        opt = hvd.DistributedOptimizer(
            make(list(params.values())),
            named_parameters=list(params.items()),
            compression=Compression(config, params.items()),
        )
        grads = harness.gradients(params, 0)
        refused(lambda o=opt, p=params, g=grads: harness.averages(o, p, g), ConfigError, part)
    refused(lambda: Dion(params.values()), ConfigError, "has no rule")
