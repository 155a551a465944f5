"""Cases of a BytePS job's workers; each writes a line of JSON for each case.

python -m workers.byteps_cases REPORTS CASE...
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any

import byteps.torch as bps
import numpy as np
import torch
from byteps.torch import ops
from workers.byteps_model import Tensor
from workers.runner import Cases, refused, report

from byteps_compressors import native
from byteps_compressors.torch import Compression, DistributedOptimizer, attach, declare
from gradcomp import Config, ConfigError, GradcompError, Loopback
from gradcomp.codec.spec import stages
from support.pipelines import config_of, configured

STEPS = 3
NUMEL = 16384 + 3001
TAIL = 16384 + 1
SEED = 7

CODECS = [stage.example for stage in stages() if stage.kind == "codec"]
SPECS = [
    *CODECS,
    *("topk(ratio=0.01)|rice", "qsgd(levels=7)|rans", "rotate|uniform(bits=2)|rans"),
    *("residual|topk(ratio=0.01)", "residual(beta=0.9,gamma=0.5)|sign", "residual|randomk(k=99)"),
    *("residual|topk(ratio=0.001)", "residual|sign"),  # of docs/which-compressor.md
    *("signum|sign", "residual|fp16", "momentum_correction|identity", "residual|identity"),
    "dgc(ratio=0.01,warmup_steps=3,warmup_epochs=0)",
    "momentum_correction(clip=scaled_norm,clip_norm=2,nesterov=true)|topk(ratio=0.02)",
    "momentum_correction(masking=false,nesterov=true)|int4",
    "residual|topk(ratio=ramp(from=0.5,to=0.01,steps=2))",
]
DTYPES = {"float64": torch.float64, "float16": torch.float16}

cases = Cases()


def gradient(name: str, step: int, rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's gradient, which all ranks can compute."""
    seed = [step, rank, *name.encode()]
    values = np.random.default_rng(seed).standard_normal(numel)
    return torch.from_numpy(values).to(dtype)


def averages(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Average gradients, all at once, as an optimizer does."""
    handles = {
        name: ops.push_pull_async_inplace(tensor, name=f"Gradient.{name}")
        for name, tensor in tensors.items()
    }
    for handle in handles.values():
        ops.synchronize(handle)
    return tensors


def agree(specs: dict[str, str], numel: int, dtype: torch.dtype, feedback: str) -> None:
    """Some steps of tensors, named and with specs, against the model."""
    models, sent_before = {}, native.load().totals()[0]
    numpy_type = torch.empty(0, dtype=dtype).numpy().dtype
    for name, spec in specs.items():
        parameters = [(name, torch.empty(numel, dtype=dtype))]
        attached = attach(parameters, config_of(spec, SEED), server_feedback=feedback)
        (own,) = attached._tensors.values()
        models[name] = Tensor(
            spec,
            numel,
            own.id,
            dtype=numpy_type,
            ranks=bps.size(),
            seed=SEED,
            feedback=feedback == "on",
        )
    faults = []
    for step in range(STEPS):
        grads = {
            name: [gradient(name, step, r, numel, dtype) for r in range(bps.size())]
            for name in specs
        }
        results = averages({name: of[bps.rank()].clone() for name, of in grads.items()})
        for name, model in models.items():
            wanted = model.step([grad.numpy() for grad in grads[name]], step)
            got = results[name].numpy()
            if got.tobytes() != wanted.tobytes():
                bad = np.flatnonzero(got != wanted)
                faults.append(f"{specs[name]} step {step}: {bad.size} differ, first {bad[:3]}")
    assert not faults, "\n".join(faults)
    sent = native.load().totals()[0] - sent_before
    of_model = sum(model.sent for model in models.values())
    assert abs(sent * bps.size() - of_model) <= of_model / 50, (sent, of_model)


@cases
def codecs() -> Any:
    """Every codec: averages equal the model's to the last bit."""
    agree({f"codecs.{i}": spec for i, spec in enumerate(SPECS)}, NUMEL, torch.float32, "off")
    return len(SPECS)


@cases
def two_way() -> None:
    """Every averaging equals the model with error feedback on the servers, too."""
    specs = ["residual|sign", "residual|topk(ratio=0.01)", "onebit", "residual|polar(rate=0.5)"]
    agree({f"two_way.{i}": spec for i, spec in enumerate(specs)}, NUMEL, torch.float32, "on")


@cases
def tails() -> None:
    """A last partition of one element travels raw."""
    specs = ["topk(ratio=0.01)", "residual|sign", "signum|sign", "fp16", "eden(bits=2)"]
    agree({f"tails.{i}": spec for i, spec in enumerate(specs)}, TAIL, torch.float32, "on")


@cases
def dtypes() -> None:
    """Doubles and halves."""
    specs = ["topk(ratio=0.01)", "residual|sign", "residual|fp16", "int8", "identity"]
    for kind, dtype in DTYPES.items():
        agree({f"{kind}.{i}": spec for i, spec in enumerate(specs)}, NUMEL, dtype, "off")


@cases
def integers() -> None:
    """Uncompressed tensors keep their values, whatever their type."""
    for dtype in (torch.int64, torch.int32, torch.uint8):
        name = f"integers.{dtype}"
        attach([(name, torch.empty(20000, dtype=dtype))], "identity")
        values = torch.arange(20000).remainder(100).to(dtype)
        got = values.clone()
        handle = ops.push_pull_async_inplace(got, average=False, name=f"Gradient.{name}")
        ops.synchronize(handle)
        assert torch.equal(got, values * bps.size())


@cases
def checkpoints() -> None:
    """After loading a state, averages equal those of an uninterrupted run."""
    specs = {"memory": "residual|qsgd(levels=3)", "momentum": "signum|sign"}
    attached = {
        name: attach(
            [(f"checkpoints.{name}", torch.empty(NUMEL))],
            config_of(spec, SEED),
            server_feedback="off",
        )
        for name, spec in specs.items()
    }

    def steps(first: int) -> list[Any]:
        results = []
        for step in (first, first + 1):
            for name in specs:
                full = f"checkpoints.{name}"
                grad = gradient(full, step, bps.rank(), NUMEL, torch.float32)
                results.append(averages({full: grad})[full])
        return results

    steps(0)
    states = {name: one.state_dict() for name, one in attached.items()}
    assert states["memory"]["rounds"] == {"checkpoints.memory": 2}
    assert states["memory"]["residual"]["checkpoints.memory"].abs().sum() > 0
    assert states["momentum"]["momentum"]["checkpoints.momentum"].abs().sum() > 0
    steps(2)
    after = {name: one.state_dict() for name, one in attached.items()}
    for name, one in attached.items():
        one.load_state_dict(states[name])
        for kind in ("residual", "momentum"):
            for key, value in one.state_dict()[kind].items():
                assert torch.equal(value, states[name][kind][key])
    steps(2)
    for name, one in attached.items():
        for kind in ("residual", "momentum"):
            for key, value in one.state_dict()[kind].items():
                assert torch.equal(value, after[name][kind][key]), (name, kind)
    other = {**states["memory"], "rank": (bps.rank() + 1) % bps.size()}
    refused(lambda: attached["memory"].load_state_dict(other), GradcompError, "rank")


@cases
def own_compressors_of_byteps() -> None:
    """Stock compressors, declared from PyTorch by their keyword arguments."""
    name = "Gradient.stock"
    declare(name, compressor_type="onebit", compressor_onebit_scaling="true")
    values = gradient("stock", 0, 0, 20000, torch.float32)
    got = values.clone()
    ops.synchronize(ops.push_pull_async_inplace(got, name=name))
    # All ranks push the same values; the result is their signs, at about the mean magnitude.
    assert torch.equal(torch.sign(got), torch.where(values < 0, -1.0, 1.0))
    assert len(got.abs().unique()) <= 2  # a scale for each partition
    refused(
        lambda: declare("Gradient.x", compressor_type="a b"), ConfigError, "without white space"
    )


@cases
def codecs_by_name() -> None:
    """Codecs by the names that users of other frameworks give."""
    name = "by_name"
    declare(f"Gradient.{name}", compressor_type="gradcomp_topk", k=5, gradcomp_memory="residual")
    grad = torch.zeros(20000)
    grad[:5] = torch.arange(5) + 1.0
    got = averages({name: grad.clone()})[name]
    assert torch.equal(got, grad)


@cases
def summable() -> None:
    """Averages of `Compression` in the stock optimizer equal the loopback's."""
    for spec in ("residual|randomk(ratio=0.1)", "fp16", "sketch(ratio=0.2)"):
        parameter = torch.nn.Parameter(torch.zeros(100, 90))
        small = torch.nn.Parameter(torch.zeros(7))
        named = [(f"{spec}.w", parameter), (f"{spec}.b", small)]
        compression = Compression(spec, named)
        inner = torch.optim.SGD([parameter, small], lr=1.0)
        optimizer = bps.DistributedOptimizer(inner, named_parameters=named, compression=compression)
        loop = Loopback(spec, bps.size())
        for step in range(STEPS):
            grads = {
                name: [
                    gradient(name, step, r, p.numel(), torch.float32).view(p.shape)
                    for r in range(bps.size())
                ]
                for name, p in named
            }
            sum((p * grads[name][bps.rank()]).sum() for name, p in named).backward()
            optimizer.step()
            wanted = loop.step({name: [g.numpy() for g in of] for name, of in grads.items()})
            for name, p in named:
                assert torch.equal(p.grad, torch.from_numpy(wanted[name][0])), (spec, step, name)
            optimizer.zero_grad(set_to_none=False)
            # Stock servers answer pulls from memory that the next push of a faster worker changes.
            handle = ops.push_pull_async_inplace(torch.zeros(1), name="barrier")
            ops.synchronize(handle)
        assert compression.stats.steps == STEPS


@cases
def uneven_data() -> None:
    """A worker without data pushes zeros and the rest of its residual, by a loss multiplied by 0."""
    name, spec = "uneven", "residual|topk(ratio=0.01)"
    parameters = [(name, torch.empty(NUMEL))]
    attached = attach(parameters, config_of(spec, SEED), server_feedback="off")
    (own,) = attached._tensors.values()
    model = Tensor(spec, NUMEL, own.id, ranks=bps.size(), seed=SEED)
    for step in range(4):
        grads = [
            gradient(name, step, rank, NUMEL, torch.float32) * float(step < 2 + rank)
            for rank in range(bps.size())
        ]
        wanted = model.step([grad.numpy() for grad in grads], step)
        found = averages({name: grads[bps.rank()].clone()})[name].numpy()
        assert found.tobytes() == wanted.tobytes(), step


@cases
def compiled_model() -> None:
    """Averages are those of an eager model, under the names of the uncompiled one."""
    expected: Any = None
    for where in ("nowhere", "around"):
        torch._dynamo.reset()
        torch.manual_seed(2)
        model: Any = torch.nn.Sequential(torch.nn.Linear(100, 90), torch.nn.Tanh())
        if where == "around":
            model = torch.compile(model, backend="eager")
        named = [(f"compiled.{where}.{name}", p) for name, p in model.named_parameters()]
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        spec = "residual|topk(ratio=0.05)"
        # Reading state from servers takes pushes that are not counted.
        optimizer = DistributedOptimizer(inner, named, spec, server_feedback="off")
        names = [f"compiled.{where}.0.{name}" for name in ("bias", "weight")]
        assert sorted(optimizer.compression.specs) == names
        found = []
        for step in range(STEPS):
            model(gradient("x", step, bps.rank(), 500, torch.float32).view(5, 100)).sum().backward()
            optimizer.step()
            found += [p.grad.clone() for p in model.parameters()]
            optimizer.zero_grad(set_to_none=False)
        state = optimizer.compression.state_dict()
        found.append(state["residual"][f"compiled.{where}.0.weight"])
        expected = expected or found
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other), where
    assert found[-1].any()
    twice = [("w", found[0]), ("_orig_mod.w", found[1])]
    refused(lambda: Compression("fp16", twice), ConfigError, "must be unique; repeated: ['w']")


@cases
def refusals() -> None:
    """Specs that BytePS cannot run are refused, with a remedy."""
    matrix = [("refusals.w", torch.empty(100, 100))]
    refused(lambda: attach(matrix, "powersgd(rank=2)"), ConfigError, "several exchanges", "Horovod")
    refused(lambda: attach(matrix, "ef21|sign"), ConfigError, "compress averages once more")
    refused(lambda: attach(matrix, "dgc(clip=joint_norm)"), ConfigError, "use clip=scaled_norm")
    refused(
        lambda: attach([("refusals.b", torch.empty(100, 100).bfloat16())], "int8"),
        ConfigError,
        "torch.bfloat16",
    )
    sra = {"version": 1, "compress": {"default": "int8", "exchange": "sra"}}
    refused(lambda: attach(matrix, Config.from_mapping(sra)), ConfigError, "exchange: sra")
    refused(lambda: Compression(Config.from_mapping(sra), matrix), ConfigError, "exchange: sra")
    later = {"default": ["fp16", {"from_step": 9, "use": "int8"}]}
    measuring = {"default": "int8", "policy": "auto"}
    senders = {"default": "topk(k=9)", "average": "senders"}
    for compress, reason in (
        (later, "follow one another"),
        (measuring, "policy is auto"),
        (senders, "average: senders"),
    ):
        config = configured(**compress)
        refused(functools.partial(attach, matrix, config), ConfigError, reason)
    profiled = {"version": 1, "compress": {"default": "int8"}, "stats": {"profile": "x"}}
    refused(lambda: attach(matrix, Config.from_mapping(profiled)), ConfigError, "BYTEPS_TRACE_ON")
    refused(
        lambda: Compression("topk(ratio=0.1)", matrix), ConfigError, "DistributedOptimizer(..., "
    )
    refused(lambda: Compression("powersgd(rank=2)", matrix), ConfigError, "Horovod")
    ramp = "randomk(ratio=ramp(from=0.5,to=0.1,steps=3))"
    refused(lambda: Compression(ramp, matrix), ConfigError, "has payloads of different sizes")
    sgd = torch.optim.SGD([torch.nn.Parameter(matrix[0][1])], lr=1, momentum=0.9)
    dgc = "dgc(ratio=0.1,warmup_epochs=0)"
    refused(lambda: DistributedOptimizer(sgd, matrix, dgc), ConfigError, "momentum=0.9")
    attach(matrix, "int8")
    refused(lambda: attach(matrix, "int8"), GradcompError, "already attached")


def train(spec: str, steps: int, prefix: str) -> tuple[float, str]:
    """A perceptron on digits: its accuracy, and a digest of its weights."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float().view(-1, 64) / 16
    labels = torch.from_numpy(data.target)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = torch.from_numpy(order[:360]), order[360:]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    named = [(f"{prefix}.{spec}.{name}", p) for name, p in model.named_parameters()]
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2), named, spec)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        chosen = torch.from_numpy(rng.choice(train, 64 * bps.size(), replace=False))
        mine = chosen[bps.rank() :: bps.size()]
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return right, digest.hexdigest()


@cases
def training() -> Any:
    """Accuracies by spec, and the workers' weights."""
    specs = ["residual|topk(ratio=0.01)", "residual|sign", "residual|polar(rate=0.5)"]
    return {spec: train(spec, 200, "training") for spec in ["identity", *specs]}


@cases
def replicas() -> Any:
    """The workers' weights after some steps."""
    return train("residual|topk(ratio=0.01)", 100, "replicas")


@cases
def totals() -> list[int]:
    """Bytes of all cases so far: pushed, pulled, uncompressed."""
    return list(native.load().totals())


def main(reports: str, names: list[str]) -> None:
    bps.init()
    report({name: cases[name] for name in names}, bps.rank(), reports)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
