"""The codec object: buffers, errors, threads, processes. The laws of codecs are in test_laws.py."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import gradcomp
from gradcomp import CapacityError, WireError, _core, get_codec
from gradcomp.codec.frame import inspect

X = np.array([0.5, -3.0, 0.25, 2.0], np.float32)
SPECS = ["identity", "fp16", "bf16", "topk(k=2)", "randomk(k=2)"]
MAX_NUMEL = 2**30 - 1


# ------------------------------------------------------------------------------------- attributes


def test_attributes() -> None:
    codec = get_codec(" topk( k = 2 ) ")
    assert codec.spec == "topk(k=2,values=fp32)"
    assert codec.name == "topk"
    assert codec.caps == {"sparse", "finite"}
    assert codec.payload_dtype == np.uint8
    assert repr(codec) == "get_codec('topk(k=2,values=fp32)')"


@pytest.mark.parametrize(
    ("spec", "caps", "dtype"),
    [
        ("identity", {"summable", "finite"}, np.float32),
        ("fp16", {"summable"}, np.float16),
        ("fp16(overflow=saturate)", {"summable", "finite"}, np.float16),
        ("bf16", set(), np.uint8),
        ("topk(k=2)", {"sparse", "finite"}, np.uint8),
        ("randomk(k=2)", {"summable", "seeded", "sparse", "finite"}, np.float32),
        ("sketch(ratio=0.1)", {"summable", "nonlinear", "seeded"}, np.float32),
        ("sketch(ratio=0.1,rows=1)", {"summable", "seeded"}, np.float32),
    ],
)
def test_capabilities(spec: str, caps: set[str], dtype: type) -> None:
    codec = get_codec(spec)
    assert codec.caps == caps
    assert codec.payload_dtype == dtype


def test_a_codec_is_made_once() -> None:
    assert get_codec("topk(k=2)") is get_codec("topk(k=2)")


@pytest.mark.parametrize("spec", SPECS)
def test_a_codec_survives_pickle_and_copy(spec: str) -> None:
    codec = get_codec(spec)
    expected = codec.encode(X, seed=1).tobytes()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        twin = pickle.loads(pickle.dumps(codec, protocol))
        assert twin.spec == codec.spec
        assert twin.encode(X, seed=1).tobytes() == expected
    assert copy.deepcopy(codec).encode(X, seed=1).tobytes() == expected


def test_sizes() -> None:
    codec = get_codec("topk(ratio=0.01)|raw32")
    assert codec.max_payload_size(1000) == 8 + 8 * 10
    assert codec.max_encoded_size(1000) >= 24 + 88 + 4
    assert get_codec("identity").max_payload_size(MAX_NUMEL) == 4 * MAX_NUMEL
    assert codec.max_encoded_size(np.int64(5)) == codec.max_encoded_size(5)


@pytest.mark.parametrize("numel", [-1, 2**30, 2**64])
def test_a_number_of_elements_out_of_range(numel: int) -> None:
    expected = f"numel is {numel}; allowed are 0 to {MAX_NUMEL}: split the tensor"
    for size in (get_codec("fp16").max_encoded_size, get_codec("fp16").max_payload_size):
        with pytest.raises(CapacityError, match=expected):
            size(numel)
    with pytest.raises(CapacityError, match=expected):
        get_codec("fp16").decode_payload(np.empty(0, np.float16), numel)


@pytest.mark.parametrize("numel", [3.0, "3", None])
def test_a_number_of_elements_is_a_whole_number(numel: object) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        get_codec("fp16").max_encoded_size(numel)


def test_a_tensor_of_2_to_the_30_elements_is_refused(tmp_path: Path) -> None:
    # A sparse file: 4 GiB of addresses, and no memory.
    path = tmp_path / "zeros"
    path.touch()
    os.truncate(path, 4 * 2**30)
    x = np.memmap(path, np.float32, "r")
    assert x.size == 2**30
    for encode in (get_codec("topk(k=1)").encode, get_codec("topk(k=1)").encode_payload):
        with pytest.raises(CapacityError, match=r"numel is 1073741824.*split the tensor"):
            encode(x)


# ---------------------------------------------------------------------------------------- encode


@pytest.mark.parametrize("spec", SPECS)
def test_encode_writes_into_out(spec: str) -> None:
    codec = get_codec(spec)
    expected = codec.encode(X, seed=7)
    for extra in (0, 100):
        out = np.full(codec.max_encoded_size(X.size) + extra, 0xAA, np.uint8)
        frame = codec.encode(X, seed=7, out=out)
        assert frame.tobytes() == expected.tobytes()
        assert np.shares_memory(frame, out)
        assert frame.ctypes.data == out.ctypes.data
        assert (out[codec.max_encoded_size(X.size) :] == 0xAA).all()


def test_out_that_is_too_small_is_a_capacity_error() -> None:
    codec = get_codec("identity")
    for size in (0, 1, 23, 24 + 16 + 4 - 1):
        with pytest.raises(CapacityError, match=f"the output buffer has {size} bytes; .*need 44"):
            codec.encode(X, out=np.empty(size, np.uint8))


BYTES = "out must be a C-contiguous, writeable numpy array of dtype uint8; it is "
FLOATS = "out must be a C-contiguous, writeable numpy array of dtype float32; it is "


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (np.empty(100, np.int8), BYTES + "of dtype int8"),
        (np.empty(100, np.float32), BYTES + "of dtype float32"),
        (np.empty(200, np.uint8)[::2], BYTES + "not contiguous"),
        (read_only(np.empty(100, np.uint8)), BYTES + "read-only"),
        (bytearray(100), BYTES + "of type bytearray"),
        (torch.empty(100, dtype=torch.uint8), BYTES + "of type Tensor"),
        (np.empty((10, 10), np.uint8), "out has 2 dimensions; it must have 1"),
    ],
)
def test_encode_refuses_an_unfit_out(out: object, says: str) -> None:
    with pytest.raises(TypeError, match=f"^{says}"):
        get_codec("identity").encode(X, out=out)


@pytest.mark.parametrize("name", ["seed", "step", "tensor_id"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "1", None])
def test_encode_refuses_what_is_no_64_bit_number(name: str, value: object) -> None:
    codec = get_codec("randomk(k=2)")
    payload = codec.encode_payload(X)
    calls: list[Callable[..., object]] = [
        lambda **call: codec.encode(X, **call),
        lambda **call: codec.encode_payload(X, **call),
        lambda **call: codec.decode_payload(payload, 4, **call),
        lambda **call: codec.decode_payload_add(payload, X.copy(), **call),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"must be whole numbers in \[0, 2\*\*64\)") as caught:
            call(**{name: value})
        assert repr(value) in str(caught.value)


def test_numpy_integers_are_numbers() -> None:
    codec = get_codec("randomk(k=2)")
    frame = codec.encode(X, seed=np.uint64(2**64 - 1), step=np.int32(5), tensor_id=True)
    assert frame.tobytes() == codec.encode(X, seed=2**64 - 1, step=5, tensor_id=1).tobytes()


# ---------------------------------------------------------------------------------------- decode


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (np.empty(4), FLOATS + "of dtype float64"),
        (np.empty(8, np.float32)[::2], FLOATS + "not contiguous"),
        (np.empty((2, 2), np.float32).T, FLOATS + "not contiguous"),
        (read_only(np.empty(4, np.float32)), FLOATS + "read-only"),
        (torch.empty(4), FLOATS + "of type Tensor"),
        ([0.0] * 4, FLOATS + "of type list"),
    ],
)
def test_decode_refuses_an_unfit_out(out: object, says: str) -> None:
    codec = get_codec("identity")
    frame, payload = codec.encode(X), codec.encode_payload(X)
    calls: list[Callable[[], object]] = [
        lambda: codec.decode(frame, out),
        lambda: codec.decode_add(frame, out),
        lambda: codec.decode_payload(payload, 4, out=out),
        lambda: codec.decode_payload_add(payload, out),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"^{says}$"):
            call()


def test_out_of_any_shape_is_filled() -> None:
    codec = get_codec("identity")
    out = np.empty((2, 1, 2), np.float32)
    assert codec.decode(codec.encode(X), out) is out
    assert out.tobytes() == X.tobytes()
    codec.decode_add(codec.encode(X), out, -1.0)
    assert not out.any()
    assert codec.decode_payload(codec.encode_payload(X), 4, out=out) is out
    assert out.tobytes() == X.tobytes()


def test_a_frame_of_another_size_than_out() -> None:
    codec = get_codec("identity")
    frame = codec.encode(X)
    for out in (np.zeros(3, np.float32), np.zeros(0, np.float32), np.zeros((5, 5), np.float32)):
        expected = f"the frame holds 4 elements, not {out.size}"
        with pytest.raises(WireError, match=expected):
            codec.decode(frame, out)
        with pytest.raises(WireError, match=expected):
            codec.decode_add(frame, out)
        assert not out.any()
    with pytest.raises(WireError, match="the frame holds 4 elements, not 5"):
        codec.decode(frame, numel=5)
    assert codec.decode(frame, numel=4).tolist() == X.tolist()


def test_out_and_numel_must_agree() -> None:
    codec = get_codec("identity")
    out = np.empty(4, np.float32)
    with pytest.raises(ValueError, match="out has 4 elements and numel says 3"):
        codec.decode(codec.encode(X), out, numel=3)
    with pytest.raises(ValueError, match="out has 4 elements and numel says 3"):
        codec.decode_payload(codec.encode_payload(X), 3, out=out)


def test_a_payload_of_another_size() -> None:
    codec = get_codec("fp16")
    payload = codec.encode_payload(X)
    with pytest.raises(WireError, match="has 8 bytes; for 5 elements it must have 10"):
        codec.decode_payload(payload, 5)
    acc = np.ones(5, np.float32)
    with pytest.raises(WireError, match="has 8 bytes; for 5 elements it must have 10"):
        codec.decode_payload_add(payload, acc)
    assert acc.tolist() == [1] * 5


@pytest.mark.parametrize("frame", ["text", [1, 2, 3], 7, None])
def test_a_frame_is_bytes(frame: object) -> None:
    codec = get_codec("identity")
    for call in (lambda: codec.decode(frame), lambda: codec.decode_add(frame, X.copy())):
        with pytest.raises(TypeError, match="does not hold contiguous bytes"):
            call()


@pytest.mark.parametrize("weight", ["heavy", None, [1.0]])
def test_a_weight_is_a_number(weight: object) -> None:
    codec = get_codec("identity")
    acc = np.zeros(4, np.float32)
    with pytest.raises((TypeError, ValueError), match=r"could not convert|must be a string or"):
        codec.decode_add(codec.encode(X), acc, weight)
    assert not acc.any()


def test_the_weight_is_rounded_to_float32_once() -> None:
    codec = get_codec("identity")
    acc = np.zeros(4, np.float32)
    codec.decode_add(codec.encode(X), acc, 1 / 3)
    assert acc.tobytes() == (np.float32(1 / 3) * X).tobytes()


def test_a_frame_of_another_codec_or_spec_is_refused() -> None:
    frame = get_codec("topk(k=2)").encode(X)
    with pytest.raises(WireError, match=r"made by codec 4 \(topk\), not by codec 5 \(randomk\)"):
        get_codec("randomk(k=2)").decode(frame)
    with pytest.raises(
        WireError, match=r"made with other parameters: .* that of 'topk\(k=3,values=fp32\)'"
    ):
        get_codec("topk(k=3)").decode(frame)


def test_a_damaged_frame_is_refused() -> None:
    codec = get_codec("identity")
    frame = codec.encode(X)
    frame[30] ^= 1
    out = X.copy()
    with pytest.raises(WireError, match="damaged: its CRC-32C does not match"):
        codec.decode_add(frame, out)
    assert out.tolist() == X.tolist()
    assert inspect(frame).crc_ok is False


def test_no_memory_is_a_capacity_error(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = get_codec("identity")
    frame = codec.encode(X)

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", no_memory)
    with pytest.raises(CapacityError, match="no memory for the 4 elements of the frame"):
        codec.decode(frame)


# ------------------------------------------------------------------------- threads and processes


@pytest.fixture
def _no_forced_switches() -> Iterator[None]:
    """Python threads take turns only where one releases the GIL by itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_no_forced_switches")
@pytest.mark.parametrize("call", ["encode", "decode", "decode_add", "encode_payload"])
def test_another_thread_runs_meanwhile(call: str) -> None:
    codec = get_codec("fp16")
    x = np.ones(2_000_000, np.float32)
    frame = codec.encode(x)
    acc = np.zeros_like(x)
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: codec.encode(x),
        "encode_payload": lambda: codec.encode_payload(x),
        "decode": lambda: codec.decode(frame),
        "decode_add": lambda: codec.decode_add(frame, acc),
    }
    gate = threading.Lock()
    ran: list[bool] = []

    def wait_and_note() -> None:
        with gate:
            ran.append(True)

    gate.acquire()
    thread = threading.Thread(target=wait_and_note)
    thread.start()
    time.sleep(0.05)  # the thread waits at the gate, without the GIL
    gate.release()
    total = 0
    for number in range(300_000):  # keeps the GIL, so the thread cannot run
        total += number
    assert not ran
    for _ in range(2000):
        calls[call]()
        if ran:
            break
    assert ran
    thread.join()


@pytest.mark.parametrize("threads", [1, 2])
def test_one_codec_serves_many_threads(threads: int) -> None:
    _core.set_thread_count(threads)
    codec = get_codec("topk(ratio=0.01)|raw32")
    gradients = [np.random.default_rng(i).normal(size=150_000).astype(np.float32) for i in range(8)]
    expected = [codec.encode(x).tobytes() for x in gradients]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            frames = pool.map(codec.encode, gradients)
            assert [frame.tobytes() for frame in frames] == expected


FORK = """
import multiprocessing, os, signal, sys, warnings
import numpy as np
import gradcomp
from gradcomp import _core

assert _core.thread_count() == 2
x = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
codec = gradcomp.get_codec(sys.argv[1])
expected = codec.encode(x).tobytes()  # starts the pool

def check():
    signal.alarm(60)  # a hang becomes a failure
    frame = codec.encode(x)
    assert frame.tobytes() == expected
    codec.decode_add(frame, np.zeros_like(x))

def fork():
    with warnings.catch_warnings():
        # Python 3.12 and later warn of forks in processes with threads.
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        return os.fork()

for _ in range(5):
    child = fork()
    if child == 0:
        status = 1
        try:
            check()
            grandchild = fork()
            if grandchild == 0:
                check()
                os._exit(0)
            status = os.waitpid(grandchild, 0)[1]
        finally:
            os._exit(1 if status else 0)
    assert os.waitpid(child, 0)[1] == 0
    check()  # the parent's pool is as it was

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    process = multiprocessing.get_context("fork").Process(target=check)
    process.start()
process.join(60)
assert process.exitcode == 0
print("ok")
"""


@pytest.mark.parametrize("spec", ["fp16", "topk(ratio=0.01)"])
def test_a_forked_child_encodes(spec: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK, spec],
        env={**os.environ, "GRADCOMP_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize(
    ("variable", "value", "expression", "expected"),
    [
        ("GRADCOMP_THREADS", "3", "thread_count()", "3"),
        ("GRADCOMP_THREADS", "0", "thread_count()", "1"),
        ("GRADCOMP_THREADS", "many", "thread_count()", "1"),
        ("GRADCOMP_THREADS", "257", "thread_count()", "1"),
        ("GRADCOMP_SIMD", "scalar", "simd_level()", "scalar"),
    ],
)
def test_environment_variables(variable: str, value: str, expression: str, expected: str) -> None:
    script = f"from gradcomp import _core; print(_core.{expression})"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("GRADCOMP_THREADS", "many", "'many', which is ignored for 1; set it to an integer from 1"),
        ("GRADCOMP_THREADS", "-1", "'-1', which is ignored for 1"),
        ("GRADCOMP_THREADS", "257", "'257', which is ignored for 1"),
        ("GRADCOMP_SIMD", "mmx", "'mmx', which is ignored for"),
        ("GRADCOMP_THREADS", "0256", None),
        ("GRADCOMP_THREADS", "", None),
        ("GRADCOMP_SIMD", "scalar", None),
    ],
)
def test_ignored_environment_variables_are_named(
    variable: str, value: str, expected: str | None
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import gradcomp"],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
        check=True,
    )
    if expected is None:
        assert done.stderr == ""
    else:
        assert f"RuntimeWarning: {variable} is {expected}" in done.stderr


def test_an_unknown_simd_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'mmx' is not available here; available: .*'scalar'"):
        _core.set_simd_level("mmx")
    assert _core.simd_level() in _core.simd_levels()


def test_the_public_names_are_there() -> None:
    assert [name for name in gradcomp.__all__ if not hasattr(gradcomp, name)] == []
