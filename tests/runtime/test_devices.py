"""Gradients in the memory of devices: the averages, residuals and checkpoints of the host."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import (
    Config,
    DecodeItem,
    EncodeItem,
    Pipeline,
    decode_batch_add,
    encode_batch,
    get_codec,
)
from gradcomp.codec.batch import launch_batch
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.codec.frame import split_frames
from gradcomp.exchange.algorithms.factor_device import HOST_PRODUCTS, product_device
from gradcomp.exchange.engine import Driver
from gradcomp.exchange.rounds import AllGather, AllReduce, Request
from support.core_device import CoreDevice
from support.mixed_ranks import (
    RANKS,
    SCALES,
    SHAPES,
    average,
    gradients,
    ranks_of,
    residuals,
    scaled_gradients,
)
from support.pipelines import config_of, configured, rules_of

SPECS = [
    "topk(ratio=0.1)",
    "residual(beta=0.9,gamma=1.1)|topk(ratio=0.1,values=fp16)",
    "residual|qsgd(levels=7)",
    "residual|randomk(ratio=0.2,values=int8)",
    "momentum_correction(momentum=0.9)|topk(ratio=0.1)",
    "momentum_correction(momentum=0.9,nesterov=true,masking=false)|topk(ratio=0.1)",
    "ef21|topk(ratio=0.1)",
]


def on_devices(spec: str, **compress: str) -> Config:
    """One spec for every tensor, on devices where they take it."""
    return config_of(spec, **{"device": "auto", **compress})


def compared(config: Config) -> tuple[CoreDevice, CoreDevice]:
    """Average on devices and the host, and on the host alone; returns a device, and one for large tensors."""
    first, last = CoreDevice(), CoreDevice(least=100)
    mixed, alone = ranks_of(config), ranks_of(config)
    for step in range(4):
        grads = gradients(step)
        expected = average(alone, [HOST] * RANKS, grads)
        assert average(mixed, [first, HOST, last], grads) == expected
        assert [residuals(one) for one in mixed] == [residuals(one) for one in alone]
    return first, last


@pytest.mark.parametrize("spec", SPECS)
def test_ranks_on_devices_and_on_the_host_average_together(spec: str) -> None:
    first, last = compared(on_devices(spec, exchange="gather"))
    # One launch, one wait and one decoding for all tensors of a bucket that the device takes.
    assert first.log == ["launch 3", "wait 3", "decode 3"] * 4
    assert last.log == ["launch 1", "wait 1", "decode 1"] * 4


LOW_RANK = {
    "ef21|powersgd(rank=2,start_step=0)": 2,
    "powersgd(rank=2,start_step=1)": 2,
    "powersgd(rank=1,start_step=0,variant=paper,iters_per_step=2,values=fp16)": 2,
    "powersgd(rank=2,start_step=0,iters_per_step=2,warm_start=false)": 1,
}
"""Specs, and the number of matrices that shrink enough."""


@pytest.mark.parametrize(("spec", "count"), LOW_RANK.items())
def test_matrices_on_devices_and_on_the_host_average_together(spec: str, count: int) -> None:
    first, last = compared(on_devices(spec))
    products = {line for line in first.log if line.startswith("multiply")}
    assert products == {f"multiply {count}"}  # all matrices of the bucket together
    assert {line for line in last.log if line.startswith("multiply")} == {"multiply 1"}


class WithoutProducts(CoreDevice):
    """A device that does not multiply matrices."""

    multiply = None  # type: ignore[assignment]


def test_a_device_that_does_not_multiply_is_named() -> None:
    device = CoreDevice()
    assert product_device(device) is device
    assert product_device(HOST) is HOST_PRODUCTS
    with pytest.raises(TypeError, match="WithoutProducts does not multiply matrices"):
        product_device(WithoutProducts())


@pytest.mark.parametrize("spec", ["powersgd(rank=2,start_step=0)", "powersgd(rank=2,start_step=2)"])
def test_gradients_that_are_not_finite_reset_the_residual_of_a_device(spec: str) -> None:
    config = on_devices(spec)
    mixed, alone = ranks_of(config), ranks_of(config)
    for step in range(5):
        grads = gradients(step)
        if step == 2:
            grads["fc"][0][3, 4] = np.nan
            grads["conv"][1][0, 0, 0] = np.inf
        expected = average(alone, [HOST] * RANKS, grads)
        found = average(mixed, [CoreDevice()] * RANKS, grads)
        if step != 2:  # the bits of NaN may differ
            assert found == expected
        assert [residuals(one) for one in mixed] == [residuals(one) for one in alone]


@pytest.mark.parametrize("spec", [*SPECS, *LOW_RANK])
def test_checkpoints_move_between_devices_and_the_host(spec: str) -> None:
    config = on_devices(spec, **({} if "powersgd" in spec else {"exchange": "gather"}))
    devices: list[Device] = [CoreDevice(), HOST, CoreDevice()]
    elsewhere: list[Device] = [HOST, CoreDevice(), HOST]
    ranks, moved = ranks_of(config), ranks_of(config)
    for step in range(2):
        average(ranks, devices, gradients(step))
    for one, other in zip(ranks, moved, strict=True):
        state = one.state_dict()
        assert all(isinstance(value, np.ndarray) for value in state["residual"].values())
        other.load_state_dict(state)
    for step in range(2, 4):
        grads = gradients(step)
        assert average(moved, elsewhere, grads) == average(ranks, devices, grads)
        assert [residuals(one) for one in moved] == [residuals(one) for one in ranks]


@pytest.mark.parametrize("spec", ["residual|topk(ratio=0.1)", "topk(ratio=0.1)"])
def test_a_change_of_spec_hands_over_the_residual_of_a_device(spec: str) -> None:
    use = [
        {"use": "residual|topk(ratio=0.05)"},
        {"use": spec, "from_step": 2},
    ]
    config = configured(use, rules=[{"match": {}, "use": use}], device="auto")
    device = CoreDevice()
    mixed, alone = ranks_of(config), ranks_of(config)
    for step in range(5):
        grads = gradients(step)
        before = len(device.log)
        expected = average(alone, [HOST] * RANKS, grads)
        assert average(mixed, [device] * RANKS, grads) == expected
        assert (len(device.log) == before) is (step == 2)  # the step that hands over


@pytest.mark.parametrize(
    "spec",
    [
        "residual|topk(ratio=0.1)",
        "momentum_correction(momentum=0.9)|topk(ratio=0.1)",
        "powersgd(rank=1,start_step=1)",
    ],
)
def test_mixed_precision_on_a_device(spec: str) -> None:
    """Averages and states are those of the host, also after a step that all ranks skip."""
    config = on_devices(spec)
    device = CoreDevice()
    mixed, alone = ranks_of(config), ranks_of(config)
    for step, scale in enumerate(SCALES):
        grads = scaled_gradients(step)
        for pipeline in (*mixed, *alone):
            if scale is not None:
                pipeline.set_loss_scale(scale)
        assert [residuals(one) for one in mixed] == [residuals(one) for one in alone]
        calls = len(device.log)
        found = average(mixed, [device, HOST, device], grads)
        assert found == average(alone, [HOST] * RANKS, grads)
        assert step == 0 or len(device.log) > calls, "gradients went to the host"


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("fp16", {}),
        ("globaltopk(ratio=0.1)", {}),
        ("residual|topk(ratio=0.1)", {"device": "host"}),
        ("residual|topk(ratio=0.1)", {"exchange": "sra"}),
        ("residual|topk(ratio=0.1)", {"exchange": "sparse_allreduce"}),
        ("residual|topk(ratio=0.1)", {"average": "senders"}),
        ("residual(average=0.5)|topk(ratio=0.1)", {}),
        ("momentum_correction(momentum=0.9,clip=local_norm,clip_norm=1)|topk(ratio=0.1)", {}),
        ("signum(momentum=0.9)|qsgd", {}),
        ("powersgd(rank=1)", {}),
    ],
)
def test_other_rounds_get_gradients_on_the_host(spec: str, options: dict[str, str]) -> None:
    pipeline = Pipeline(on_devices(spec, **options), 0, RANKS)
    assert not pipeline.on_device(pipeline.resolve("fc", SHAPES["fc"]), CoreDevice())


@pytest.mark.parametrize(
    ("ratio", "there"),
    [
        ("ramp(from=0.5,to=0.1,steps=3)", [False] * 3 + [True] * 2),
        ("ramp(from=0.5,to=0.1,epochs=2)", [True] * 5),
    ],
)
def test_gradients_stay_on_a_device_while_a_schedule_rests(ratio: str, there: list[bool]) -> None:
    """A schedule of epochs changes rarely; one of steps sends gradients to the host until it has ended."""
    config = on_devices(f"residual|topk(ratio={ratio})", exchange="gather")
    device = CoreDevice()
    mixed, alone = ranks_of(config), ranks_of(config)
    for step, expected in enumerate(there):
        for rank in (*mixed, *alone):
            rank.set_epoch(step // 2)
        resolved = mixed[0].resolve("fc", SHAPES["fc"])
        assert mixed[0].on_device(resolved, device) is expected
        grads = gradients(step)
        found = average(mixed, [device, HOST, device], grads)
        assert found == average(alone, [HOST] * RANKS, grads)
        assert [residuals(one) for one in mixed] == [residuals(one) for one in alone]


@pytest.mark.parametrize(
    ("spec", "options", "told"),
    [
        ("residual|topk(ratio=0.1)", {}, False),
        ("powersgd(rank=1)", {}, False),  # the device takes it later
        ("residual|topk(ratio=0.1)", {"device": "host"}, False),
        ("residual|topk(ratio=0.1)", {"exchange": "sparse_allreduce"}, True),
        ("residual(average=0.5)|topk(ratio=0.1)", {}, True),
    ],
)
def test_the_first_rank_warns_of_specs_that_no_device_takes(
    spec: str, options: dict[str, str], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in ranks_of(on_devices(spec, **options)):
        for _ in range(2):
            for name, shape in SHAPES.items():
                rank.on_device(rank.resolve(name, shape), CoreDevice())
    warnings = [one.getMessage() for one in caplog.records]
    assert len(warnings) == int(told), warnings
    if told:
        assert "compress.device: auto has no effect on 'residual" in warnings[0]


def test_a_batch_of_several_devices_is_in_order() -> None:
    codec = get_codec("topk(ratio=0.1)")
    grads = [
        np.random.default_rng(i).standard_normal(n, np.float32) for i, n in enumerate((5, 50, 500))
    ]
    one, other = CoreDevice(), CoreDevice()
    arrays = [one.from_host(grads[0]), grads[1], other.from_host(grads[2])]
    expected = encode_batch([EncodeItem(codec, grad) for grad in grads])
    data, sizes = encode_batch([EncodeItem(codec, array) for array in arrays])
    assert (data.tobytes(), sizes) == (expected[0].tobytes(), expected[1])
    assert launch_batch([EncodeItem(codec, grad) for grad in grads]) is None
    outs = [one.zeros(5), np.zeros(50, np.float32), other.zeros(500)]
    frames = split_frames(data, 3)
    decode_batch_add(
        [DecodeItem("w", codec, [frame], out) for frame, out in zip(frames, outs, strict=True)], 0.5
    )
    for frame, out, grad in zip(frames, outs, grads, strict=True):
        total = np.zeros_like(grad)
        codec.decode_add(frame, total, 0.5)
        assert device_of(out).to_host(out).tobytes() == total.tobytes()


class Recorder:
    """The engine of a lone rank, which logs the order of requests among a device's calls."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def start(self, request: Request) -> Request:
        self.log.append(f"start {request.name}")
        return request

    def finish(self, handle: Request) -> object:
        self.log.append(f"finish {handle.name}")
        if isinstance(handle, AllGather):
            return [handle.frame]
        assert isinstance(handle, AllReduce)
        return handle.array


def test_launched_rounds_are_requested_in_the_order_of_their_starts() -> None:
    device = CoreDevice()
    pipeline = Pipeline(on_devices("residual|topk(ratio=0.1)"))
    driver = Driver(Recorder(device.log))
    for name in ("b", "a"):
        grad = device.from_host(np.ones(SHAPES["fc"], np.float32))
        driver.start(name, pipeline.bucket_round(name, {name: grad}), [name])
    assert device.log == ["launch 1", "launch 1"]
    driver.release()
    assert device.log[2:] == ["wait 1", "start b", "wait 1", "start a"]
    grad = device.from_host(np.ones(SHAPES["fc"], np.float32))
    driver.start("c", pipeline.bucket_round("c", {"c": grad}), ["c"])
    handle = driver.post(AllReduce("other", np.ones(1)))
    assert device.log[6:] == ["launch 1", "wait 1", "start c", "start other"]
    driver.reply(handle)
    for name in ("a", "b", "c"):
        one = driver.finish(name)
        assert device_of(one) is device


def test_a_driver_one_behind_requests_a_launched_round_with_the_next() -> None:
    device = CoreDevice()
    pipeline = Pipeline(on_devices("residual|topk(ratio=0.1)"))
    driver = Driver(Recorder(device.log), one_behind=True)
    for name in ("b", "a"):
        grad = device.from_host(np.ones(SHAPES["fc"], np.float32))
        driver.start(name, pipeline.bucket_round(name, {name: grad}), [name])
    assert device.log == ["launch 1", "launch 1", "wait 1", "start b"]
    driver.finish_all()
    assert device.log[4:6] == ["wait 1", "start a"]


def test_rules_may_put_tensors_of_one_bucket_on_different_devices() -> None:
    rules = rules_of({"conv": "qsgd", "fc": "topk(ratio=0.1)"}, "{}")
    config = configured("topk(ratio=0.2)", rules=rules, device="auto")
    mixed, alone = ranks_of(config), ranks_of(config)
    devices = [CoreDevice(least=100), CoreDevice(), HOST]
    for step in range(2):
        grads = gradients(step)
        assert average(mixed, devices, grads) == average(alone, [HOST] * RANKS, grads)
