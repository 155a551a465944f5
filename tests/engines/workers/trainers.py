"""Our communication hook where others wrap, copy and save the model, and where data is uneven."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from workers import harness
from workers.ddp_model import Given, Training, check_sum, join
from workers.harness import MATRIX, Cases, check_equal, check_same_on_all_ranks, refused
from workers.ranks import Compression, hvd

from gradcomp import Config, ConfigError, Loopback
from gradcomp.errors import ProtocolError, StateError
from support.pipelines import configured, rules_of
from torch_compressors import DGCSGD, DDPCompression, ddp_hook

cases = Cases()
with_horovod = Cases()
"""Those that need Horovod's ranks."""
three = Cases()
"""Cases that test more on three ranks than on two."""

SHAPES = {"first": MATRIX, "bias": (64,), "second": (90, 50)}

STATEFUL = (
    "residual|topk(ratio=0.05)",
    "powersgd(rank=2,start_step=1)",
    "signum|sign",
    "residual|randomk(ratio=0.1)",
)


def _model(shapes: Mapping[str, Any] = SHAPES, **options: Any) -> DistributedDataParallel:
    join()
    params = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    return DistributedDataParallel(Given(params), bucket_cap_mb=0.005, **options)


def _averages(model: Any, grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(grads).backward()
    return {name: p.grad.clone() for name, p in model.module.named_parameters()}


def _check_averages(found: Any, wanted: Any, label: str) -> None:
    for name, average in wanted.items():
        check_equal(found[name], average, f"{label}: {name}")


def _check_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Equal states without a common array."""
    assert one.keys() == other.keys()
    for kind, value in one.items():
        if isinstance(value, dict) and any(isinstance(v, torch.Tensor) for v in value.values()):
            assert value.keys() == other[kind].keys()
            for name, array in value.items():
                check_equal(other[kind][name], array, f"{kind} of {name}")
        else:
            assert other[kind] == value, kind


def _saved_and_loaded(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "save": _saved_and_loaded,
    "swa": lambda model: AveragedModel(model).module,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@cases
def copies_of_a_model() -> None:
    """Copies and saved models have the state, and continue from it apart from the original."""
    for spec in STATEFUL:
        original = Training(spec, SHAPES)
        for step in range(3):
            original.averages(harness.gradients(original.params, step))
        before = original.state.state_dict()
        grads = [harness.gradients(original.params, step) for step in (3, 4)]
        copies = {}
        for way, make in WAYS.items():
            model = make(original.model)
            # PyTorch registers no hook with the copy's own reducer.
            ((hook, state),) = model._comm_hooks
            model._comm_hooks.clear()
            assert isinstance(state, DDPCompression)
            assert state is not original.state
            _check_apart(before, state.state_dict())
            model.register_comm_hook(state, hook)
            copies[way] = model, state
        averages = {
            way: [_averages(model, of_step) for of_step in grads]
            for way, (model, _) in copies.items()
        }
        _check_apart(before, original.state.state_dict())
        for number, of_step in enumerate(grads):
            wanted = original.averages(of_step)
            for way in WAYS:
                _check_averages(averages[way][number], wanted, f"{spec} {way} {number}")
        for way, (_, state) in copies.items():
            assert state.state_dict()["rounds"] == original.state.state_dict()["rounds"], way
            assert state.stats.steps == 5, way


@cases
def copies_of_a_state() -> None:
    """Epoch and loss scale are copied; a rank's copy does not work on another rank."""
    config = Config.from_spec("residual|topk(ratio=epochs([0.5,0.1]))")
    training = Training(config, SHAPES)
    training.state.set_epoch(1)
    for step in range(2):
        training.state.set_loss_scale(4.0)
        training.averages(harness.gradients(training.params, step))
    model = _model()
    state = copy.deepcopy(training.state)
    model.register_comm_hook(*_hooked(state))
    grads = harness.gradients(training.params, 2)
    for one in (state, training.state):
        one.set_loss_scale(2.0)  # all ranks have skipped the last step
    _check_averages(_averages(model, grads), training.averages(grads), "copy")

    of_ranks: list[Any] = [None] * hvd.size()
    dist.all_gather_object(of_ranks, pickle.dumps(training.state))
    foreign = pickle.loads(of_ranks[0])
    model = _model()
    model.register_comm_hook(*_hooked(foreign))
    refused(
        lambda: _averages(model, grads),
        ConfigError,
        "rank 1: this is a copy of the compressor of rank 0 of 2",
        "make a new one",
    )


def _hooked(state: DDPCompression) -> tuple[DDPCompression, Any]:
    _, hook = ddp_hook("identity")
    return state, hook


@with_horovod
def copies_of_horovods_compression() -> None:
    """With the parameters, as in a script's own copy of its training; PyTorch's copy of the stock
    optimizer has no compression at all."""
    for spec in ("residual|topk(ratio=0.05)", "powersgd(rank=2,start_step=1)", "fp16"):
        params = harness.parameters(SHAPES)
        compression = Compression(spec, params.items())
        original = harness.optimizer(params, compression)
        for step in range(3):
            harness.averages(original, params, harness.gradients(params, step))
        before = compression.state_dict()
        pairs = (compression, params)
        grads = [harness.gradients(params, step) for step in (3, 4)]
        found = {}
        for way, (copied, theirs) in {
            "deepcopy": copy.deepcopy(pairs),
            "pickle": pickle.loads(pickle.dumps(pairs)),
        }.items():
            _check_apart(before, copied.state_dict())
            optimizer = harness.optimizer(theirs, copied)
            found[way] = [harness.averages(optimizer, theirs, of_step) for of_step in grads]
        _check_apart(before, compression.state_dict())
        for number, of_step in enumerate(grads):
            wanted = harness.averages(original, params, of_step)
            for way, averages in found.items():
                _check_averages(averages[number], wanted, f"{spec} {way} {number}")
    uncalled = pickle.loads(pickle.dumps(copy.deepcopy(Compression.int8)))
    assert uncalled.config.compress.default == Compression.int8.config.compress.default


@cases
@three
def a_model_that_is_wrapped_later() -> None:
    """The names, rules and shapes of the model are known at its first gradients."""
    rules = rules_of({"first": "residual|topk(ratio=0.02)", "second": "powersgd(rank=1)"}, "{}*")
    config = configured("identity", rules=rules)
    state, hook = ddp_hook(config)
    refused(state.state_dict, StateError, "call model.register_comm_hook(state, hook) first")
    model = _model()
    model.register_comm_hook(state, hook)
    state.set_epoch(0)
    loopback = Loopback(config, hvd.size())
    params = dict(model.module.named_parameters())
    for step in range(3):
        of_ranks = [harness.gradients(params, step, rank) for rank in range(hvd.size())]
        found = _averages(model, of_ranks[hvd.rank()])
        named = {name: [grads[name] for grads in of_ranks] for name in params}
        for name, average in loopback.step(named).items():
            check_sum(found[name], average[hvd.rank()], f"{step}: {name}")
            check_same_on_all_ranks(found[name], name)
    assert set(state.state_dict()["specs"]) == set(SHAPES)

    other = "fp16" if hvd.rank() else "residual|topk(k=100)"
    model = _model()
    model.register_comm_hook(*ddp_hook(other))
    grads = harness.gradients(params, 0)
    refused(lambda: _averages(model, grads), ProtocolError, "the ranks run different compression")

    last = hvd.size() - 1
    groups = [dist.new_group(ranks) for ranks in (range(last), [last])]
    model = _model(process_group=groups[hvd.rank() == last])
    state, hook = ddp_hook("residual|topk(ratio=0.1)")
    model.register_comm_hook(state, hook)
    _averages(model, grads)
    assert state.pipeline.world_size == (last if hvd.rank() < last else 1)


@cases
def several_models() -> None:
    """As a generator and its judge: late and early hooks, in turn and in another order."""
    join()
    specs = ("residual|topk(ratio=0.05)", "powersgd(rank=2,start_step=1)", "int8")
    models = [_model({"w": MATRIX, f"only{n}": (70, 60)}) for n in range(3)]
    states = []
    for number, (model, spec) in enumerate(zip(models, specs, strict=True)):
        state, hook = ddp_hook(spec, model) if number == 1 else ddp_hook(spec)
        model.register_comm_hook(state, hook)
        states.append(state)
    loopbacks = [Loopback(spec, hvd.size()) for spec in specs]
    for step in range(3):
        for number in ((0, 1, 2), (2, 0, 1), (1, 2, 0))[step]:
            model = models[number]
            params = dict(model.module.named_parameters())
            of_ranks = [harness.gradients(params, step, rank) for rank in range(hvd.size())]
            found = _averages(model, of_ranks[hvd.rank()])
            named = {name: [grads[name] for grads in of_ranks] for name in params}
            for name, average in loopbacks[number].step(named).items():
                check_equal(found[name], average[hvd.rank()], f"{specs[number]} {step}: {name}")
    assert [state.stats.steps for state in states] == [3, 3, 3]
    stranger = _model()
    stranger.register_comm_hook(*_hooked(states[0]))
    grads = harness.gradients(dict(stranger.module.named_parameters()), 0)
    refused(lambda: _averages(stranger, grads), ConfigError, "call ddp_hook for each model")


@cases
def a_late_hook_with_an_optimizer() -> None:
    """The momentum and the learning rates are the optimizer's, as with a model."""
    dgc = "dgc(ratio=0.05,warmup_epochs=0)"
    refused(lambda: ddp_hook(dgc), ConfigError, "pass optimizer=")
    for spec, kind in ((dgc, DGCSGD), ("residual(lr=scale)|topk(ratio=0.05)", torch.optim.SGD)):
        late, early = _model(), _model()
        for one, args in ((late, ()), (early, (early,))):
            state, hook = ddp_hook(spec, *args, optimizer=kind(one.parameters(), lr=0.1))
            one.register_comm_hook(state, hook)
        for step in range(3):
            grads = harness.gradients(dict(early.module.named_parameters()), step)
            _check_averages(_averages(late, grads), _averages(early, grads), f"{spec} {step}")


@cases
@three
def uneven_data_of_ddp() -> None:
    """``model.join()``: ranks without data count as zero in averages over all ranks."""
    ranks, own = hvd.size(), hvd.rank()
    steps = [2 + 2 * rank for rank in range(ranks)]
    for spec in ("residual|topk(ratio=0.05)", "powersgd(rank=2,start_step=1)", "fp16"):
        training = Training(spec, SHAPES)
        loopback = Loopback(spec, ranks)
        optimizer = torch.optim.SGD(training.params.values(), lr=0.1)
        with training.model.join():
            for step in range(steps[own]):
                found = training.averages(harness.gradients(training.params, step))
                optimizer.step()
                of_ranks = [
                    harness.gradients(training.params, step, rank)
                    if step < steps[rank]
                    else {name: torch.zeros(shape) for name, shape in SHAPES.items()}
                    for rank in range(ranks)
                ]
                named = {name: [grads[name] for grads in of_ranks] for name in SHAPES}
                for name, average in loopback.step(named).items():
                    check_sum(found[name], average[own], f"{spec} {step}: {name}")
        # The rank with the most data gives its parameters to all.
        for name, p in training.params.items():
            check_same_on_all_ranks(p, f"{spec}: {name}")
        assert set(training.state.state_dict()["rounds"].values()) == {steps[-1]}
