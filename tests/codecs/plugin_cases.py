"""Cases of test_plugins.py, each in a process of its own, as codecs are registered for good."""

from __future__ import annotations

import ctypes
import json
import pickle
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import decoder
import numpy as np
import pytest

import gradcomp
from gradcomp import _core, capi
from gradcomp.codec import plugins
from gradcomp.codec.frame import inspect, split_frames
from gradcomp.codec.spec import stages

SPECS = ["bf8", "bf8(stochastic=true)", "absmax8", "absmax8(threshold=0.25)"]
X = np.random.default_rng(0).standard_normal(5000).astype(np.float32)


def config(spec: str, exchange: str = "auto", nodes: int | None = None) -> gradcomp.Config:
    compress: dict[str, Any] = {"default": spec, "exchange": exchange}
    compress["rules"] = [{"match": {}, "use": spec}]
    if nodes is not None:
        compress["ranks_per_node"] = nodes
    return gradcomp.Config.from_mapping({"version": 1, "seed": 3, "compress": compress})


class Plain(gradcomp.CodecPlugin):
    """float32 as it is."""

    name = "plain"
    id = 0x9000
    summary = "float32"

    def max_payload_size(self, numel: int, params: Any) -> int:
        return 4 * numel

    def encode(self, x: Any, params: Any, stream: int) -> Any:
        return x

    def decode(self, payload: bytes, numel: int, params: Any, stream: int) -> Any:
        return np.frombuffer(payload, np.float32, numel)


def variant(**members: Any) -> gradcomp.CodecPlugin:
    return type("Variant", (Plain,), members)()


# --------------------------------------------------------------------------- the examples


def round_trips() -> None:
    for spec in SPECS:
        codec = gradcomp.get_codec(spec)
        frame = codec.encode(X, seed=1, step=2, tensor_id=3)
        assert bytes(frame) == bytes(codec.encode(X, seed=1, step=2, tensor_id=3))
        y = codec.decode(frame)
        assert np.abs(y - X).max() < (1.0 if "threshold" in spec else 0.5)
        info = inspect(frame)
        assert (info.codec_name, info.numel, info.crc_ok) == (codec.name, X.size, True)
        assert info.codec_id == {"bf8": 0x8001, "absmax8": 0x8002}[codec.name]
        acc = X.copy()
        codec.decode_add(frame, acc, 0.5)
        assert acc.tobytes() == (X + np.float32(0.5) * y).tobytes()
        for n in (1, 3):
            assert codec.decode(codec.encode(X[:n])).size == n
        strange = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 3e38, -3e38, 1e-45])
        assert codec.decode(codec.encode(strange)).size == 8
        assert np.isfinite(codec.decode(codec.encode(strange[3:]))).all()
        assert codec.decode(codec.encode(X.reshape(50, 100))).tobytes() == y.tobytes() or (
            "stochastic" in spec
        )
    assert pickle.loads(pickle.dumps(gradcomp.get_codec("bf8"))).spec == "bf8(stochastic=false)"


def error_feedback() -> None:
    """The corrected gradient is the decoded payload plus the residual, bit for bit."""
    for spec in SPECS:
        codec = gradcomp.get_codec(spec)
        residual = X[::-1].copy()
        corrected = residual + X
        payload = codec.encode_payload_with_residual(X, residual)
        assert residual.tobytes() == (corrected - codec.decode_payload(payload, X.size)).tobytes()


def exchanges() -> None:
    """Replicas are equal in every exchange, and errors do not pile up."""
    rng = np.random.default_rng(1)
    shapes = {"a": (40, 30), "b": (7000,), "c": (3,)}
    wanted = [("gather", None), ("sra", None), ("two_level(gather)", 2), ("two_level", 2)]
    for spec in ("residual|bf8", "residual|absmax8(threshold=0.1)", "signum|bf8"):
        for exchange, nodes in wanted:
            try:
                loop = gradcomp.Loopback(config(spec, exchange, nodes), 4 if nodes else 3)
            except gradcomp.ConfigError as error:
                raise AssertionError((spec, exchange, str(error))) from error
            ranks = len(loop.ranks)
            sums = dict.fromkeys(shapes, 0.0)
            means = dict.fromkeys(shapes, 0.0)
            for _ in range(6):
                grads = {
                    name: [rng.standard_normal(shape).astype(np.float32) for _ in range(ranks)]
                    for name, shape in shapes.items()
                }
                for name, results in loop.step(grads).items():
                    assert len({one.tobytes() for one in results}) == 1, (spec, exchange, name)
                    sums[name] = sums[name] + results[0].astype(np.float64)
                    means[name] = means[name] + np.mean(grads[name], axis=0)
            if spec.startswith("residual"):
                for name in shapes:
                    assert np.abs(sums[name] - means[name]).max() < 1.5, (spec, exchange, name)


def batches() -> None:
    """A batch is what its tensors are by themselves, at any number of threads."""
    rng = np.random.default_rng(2)
    grads = [rng.standard_normal(n).astype(np.float32) for n in (1, 500, 0, 200_000, 3000) * 8]
    for spec in SPECS:
        codec = gradcomp.get_codec(spec)
        singles = b"".join(bytes(codec.encode(grad, tensor_id=i)) for i, grad in enumerate(grads))
        for threads in (1, 4):
            _core.set_thread_count(threads)
            items = [gradcomp.EncodeItem(codec, grad, tensor_id=i) for i, grad in enumerate(grads)]
            frames, _ = gradcomp.encode_batch(items)
            assert bytes(frames) == singles
            outs = [np.zeros(grad.size, np.float32) for grad in grads]
            parts = split_frames(frames, len(grads))
            gradcomp.decode_batch_add(
                [gradcomp.DecodeItem("x", codec, [f], o) for f, o in zip(parts, outs, strict=True)]
            )
            for frame, out in zip(parts, outs, strict=True):
                assert out.tobytes() == (codec.decode(frame) + 0).tobytes()


def threads() -> None:
    """A plug-in that runs codecs of gradcomp itself, from several threads on the core's pool."""
    inner = gradcomp.get_codec("topk(ratio=0.1)")

    class Nested(Plain):
        name = "nested"

        def encode(self, x: Any, params: Any, stream: int) -> Any:
            assert inner.encode(BIG).size > 0
            return inner.encode(x)

        def max_payload_size(self, numel: int, params: Any) -> int:
            return inner.max_encoded_size(numel)

        def decode(self, payload: bytes, numel: int, params: Any, stream: int) -> Any:
            return inner.decode(payload, numel=numel)

    gradcomp.register_codec(Nested())
    _core.set_thread_count(4)
    codec = gradcomp.get_codec("nested")
    wanted = codec.encode(X).tobytes()
    faults = []

    def work() -> None:
        try:
            for _ in range(10):
                frames, _ = gradcomp.encode_batch([gradcomp.EncodeItem(codec, X)] * 20)
                for frame in split_frames(frames, 20):
                    assert frame.tobytes() == wanted
                _core.compensate(np.zeros_like(BIG), BIG, 1.0, 1.0)
                _core.set_thread_count(4)
        except Exception as error:
            faults.append(error)

    running = [threading.Thread(target=work) for _ in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    assert faults == []


BIG = np.random.default_rng(3).standard_normal(300_000).astype(np.float32)


def schedules() -> None:
    loop = gradcomp.Loopback(config("residual|absmax8(threshold=ramp(from=0.5,to=0.1,steps=3))"), 2)
    for _ in range(4):
        loop.step({"w": [X, X]})
    with pytest.raises(gradcomp.SpecError, match="schedule"):
        gradcomp.get_codec("bf8(stochastic=steps([0,1],every=2))")


def summable() -> None:
    """Payloads of float32 that engines add up, with numbers that all ranks draw alike."""

    class Signs(Plain):
        name = "signs"
        caps = frozenset({"summable", "seeded", "finite"})

        def signs(self, numel: int, stream: int) -> Any:
            random = np.random.Generator(np.random.Philox(key=stream))
            return random.choice(np.float32([-1, 1]), numel)

        def encode(self, x: Any, params: Any, stream: int) -> Any:
            return x * self.signs(x.size, stream)

        def decode(self, payload: bytes, numel: int, params: Any, stream: int) -> Any:
            return np.frombuffer(payload, np.float32) * self.signs(numel, stream)

    gradcomp.register_codec(Signs())
    grads = [X, X * 2, X * 4]
    loop = gradcomp.Loopback(config("residual|signs"), 3)
    results = loop.step({"w": grads})["w"]
    assert len({one.tobytes() for one in results}) == 1
    np.testing.assert_allclose(results[0], np.mean(grads, axis=0), rtol=1e-6)
    codec = gradcomp.get_codec("signs")
    assert codec.payload_dtype == np.float32
    with pytest.raises(gradcomp.WireError, match="must have 20000"):
        codec.decode_payload(np.zeros(3, np.float32), X.size)

    gradcomp.register_codec(
        variant(name="shorter", id=0x9001, caps={"summable"}, encode=lambda self, x, p, s: x[1:])
    )
    with pytest.raises(gradcomp.GradcompError, match="exactly 20000"):
        gradcomp.get_codec("shorter").encode(X)
    gradcomp.register_codec(
        variant(name="odd", id=0x9002, caps={"summable"}, max_payload_size=lambda *_: 3)
    )
    with pytest.raises(gradcomp.GradcompError, match="multiple of 4"):
        gradcomp.get_codec("odd").encode(X)


def ranks_compare_versions() -> None:
    assert json.loads(config("residual|bf8").digest_text())["plugins"] == {"bf8": 1}
    assert "plugins" not in json.loads(config("residual|fp16").digest_text())
    gradcomp.register_codec(variant(name="one", version=3))
    codec = gradcomp.get_codec("one")
    assert codec.core.spec_hash == decoder.crc32c(b"one@3")


# ------------------------------------------------------------------------ hostile plug-ins


def bad_registrations() -> None:
    gradcomp.register_codec(Plain())
    param = gradcomp.PluginParam
    for members, reason in [
        ({}, "the name 'plain' is taken"),
        ({"name": "other"}, "the codec id 36864 of 'other' is that of 'plain'"),
        ({"name": "topk", "id": 0x9001}, "the name 'topk' is taken"),
        ({"name": "Upper"}, "lower-case letters.*not 'Upper'"),
        ({"name": ""}, "lower-case letters"),
        ({"name": "a b"}, "lower-case letters"),
        ({"name": "x" * 41}, "at most 40"),
        ({"name": "low", "id": 0x7FFF}, r"has the id 32767; it must be in \[32768, 65535\]"),
        ({"name": "high", "id": 0x10000}, "has the id 65536"),
        ({"name": "v", "version": 0}, "version 0"),
        ({"name": "s", "summary": ""}, "needs a summary"),
        ({"name": "s", "summary": "two\nlines"}, "needs a summary"),
        ({"name": "c", "caps": {"sparse"}}, "unknown cap 'sparse': known are summable"),
        ({"name": "i", "id": "7"}, "Variant is not a codec"),
        ({"name": "p", "params": [param("P", 1, "d")]}, "the name of a parameter"),
        ({"name": "p", "params": [param("p", 3, "d", 0, 2)]}, "min <= default <= max"),
        ({"name": "p", "params": [param("p", float("nan"), "d")]}, "min <= default <= max"),
        ({"name": "p", "params": [param("p", 1, "d", 0, 1.5)]}, "whole numbers"),
        ({"name": "p", "params": [param("p", 1, "")]}, "needs a doc"),
        ({"name": "p", "params": [param("p", 1, "d"), param("p", 2, "d")]}, "two parameters 'p'"),
        ({"name": "p", "params": [param(f"p{i}", 1, "d") for i in range(17)]}, "at most 16"),
    ]:
        with pytest.raises(gradcomp.GradcompError, match=reason):
            gradcomp.register_codec(variant(**members))
    with pytest.raises(TypeError, match="a plug-in is a"):
        gradcomp.register_codec(Plain)  # type: ignore[arg-type]
    with pytest.raises(
        gradcomp.SpecError, match="unknown parameter 'k' of 'plain': there are none"
    ):
        gradcomp.get_codec("plain(k=3)")
    # A refusal leaves nothing behind.
    assert [row.name for row in stages() if row.origin == "python" and row.id >= 0x9000] == [
        "plain"
    ]
    for i in range(300):
        try:
            gradcomp.register_codec(variant(name=f"n{i}", id=0xA000 + i))
        except gradcomp.GradcompError as error:
            assert "256 stages" in str(error)  # noqa: PT017
            break
    assert 150 < i < 256
    assert gradcomp.get_codec(f"n{i - 1}").encode(X).size > X.size


def bad_results() -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("the reason")

    number = iter(range(0x9100, 0x9200))

    def codec(**members: Any) -> gradcomp.Codec:
        one = next(number)
        gradcomp.register_codec(variant(name=f"bad{one}", id=one, **members))
        return gradcomp.get_codec(f"bad{one}")

    for members, reason in [
        ({"encode": fail}, "cannot encode 5000 elements: KeyError: 'the reason'(.|\n)*fail"),
        ({"max_payload_size": fail}, "KeyError: 'the reason'"),
        ({"max_payload_size": lambda *_: -1}, "whole number of bytes, not -1"),
        ({"max_payload_size": lambda *_: "7"}, "whole number of bytes, not '7'"),
        ({"max_payload_size": lambda *_: 2**32}, "above 4294967295"),
        ({"max_payload_size": lambda *_: 2**80}, "whole number of bytes"),
        ({"max_payload_size": lambda *_: 10}, "has 20000 bytes.* at most 10"),
        ({"encode": lambda *_: None}, "bytes-like data, not a NoneType"),
        ({"encode": lambda self, x, p, s: x[::2]}, "bytes-like data, not a ndarray"),
        ({"encode": lambda self, x, p, s: x.astype(float)}, "has 40000 bytes"),
    ]:
        bad = codec(**members)
        for encode in (bad.encode, bad.encode_payload):
            with pytest.raises(gradcomp.GradcompError, match=reason):
                encode(X)
        with pytest.raises(gradcomp.GradcompError, match=reason):
            gradcomp.encode_batch([gradcomp.EncodeItem(bad, X)])
    for decode, reason in [
        (fail, "cannot decode 5000 elements: KeyError: 'the reason'"),
        (lambda *_: None, "numpy array, not a NoneType"),
        (lambda *_: X[1:], "must return 5000 float32, not 4999 float32"),
        (lambda *_: X.astype(float), "must return 5000 float32, not 5000 float64"),
    ]:
        bad = codec(decode=decode)
        frame = bad.encode(X)
        acc = X.copy()
        with pytest.raises(gradcomp.WireError, match=reason):
            bad.decode(frame)
        with pytest.raises(gradcomp.WireError, match=reason):
            bad.decode_add(frame, acc)
        assert acc.tobytes() == X.tobytes()
        with pytest.raises(gradcomp.WireError, match="of rank 0 for 'x'"):
            gradcomp.decode_batch_add([gradcomp.DecodeItem("x", bad, [frame], acc)])
    strided = codec(decode=lambda self, b, n, p, s: np.repeat(np.frombuffer(b, "f4"), 2)[::2])
    assert strided.decode(strided.encode(X)).tobytes() == X.tobytes()

    # The plug-in keeps what it got: copies, which nothing of the core changes or frees.
    kept: list[Any] = []
    keeps = codec(encode=lambda self, x, p, s: kept.append(x) or x)
    keeps.encode(X)
    kept[0][:] = 0
    assert X.any()

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    stopped = codec(encode=interrupt)

    def encode_and_go_on() -> None:
        try:
            stopped.encode(X)
        except gradcomp.GradcompError:
            for _ in range(1000):
                pass

    # The interpreter raises it again in the main thread, so that Ctrl-C ends the program. A process
    # in the background may ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        encode_and_go_on()


def damaged_frames() -> None:
    rng = np.random.default_rng(4)
    for spec in SPECS:
        codec = gradcomp.get_codec(spec)
        payload = bytes(codec.encode_payload(X[:300]))
        outcomes = {"decoded": 0, "refused": 0}
        for _ in range(500):
            bad = bytearray(payload)
            for _ in range(rng.integers(1, 5)):
                bad[rng.integers(len(bad))] = rng.integers(256)
            bad = bad[: rng.integers(len(bad))] if rng.random() < 0.3 else bad
            try:
                codec.decode_payload(np.frombuffer(bytes(bad), np.uint8), 300)
                outcomes["decoded"] += 1
            except gradcomp.WireError as error:
                assert "plug-in codec" in str(error)  # noqa: PT017
                outcomes["refused"] += 1
        assert min(outcomes.values()) > 0, (spec, outcomes)
        frame = codec.encode(X).copy()
        frame[100] ^= 1
        with pytest.raises(gradcomp.WireError, match="CRC"):
            codec.decode(frame)
    fp16 = gradcomp.get_codec("fp16")
    with pytest.raises(gradcomp.WireError, match=r"codec 32769 \(bf8\)"):
        fp16.decode(gradcomp.get_codec("bf8").encode(X))


# ------------------------------------------------------------------------------- discovery


def nothing_is_looked_up_before_it_is_needed() -> None:
    gradcomp.get_codec("topk(ratio=0.1)").encode(X)
    gradcomp.Loopback("residual|topk(ratio=0.1)", 2).step({"w": [X, X]})
    config("fp16").digest_text()
    assert not plugins._discovered
    assert "gradcomp_bf8" not in sys.modules
    gradcomp.get_codec("bf8")
    assert plugins._discovered


def listed() -> None:
    assert {"bf8", "absmax8"} < set(gradcomp.list_codecs())
    rows = {row.name: row for row in stages()}
    assert (rows["bf8"].origin, rows["bf8"].version) == ("python", 1)
    assert (rows["absmax8"].origin, rows["absmax8"].version) == ("library", 1)
    assert (rows["topk"].origin, rows["topk"].version) == ("core", 0)
    gradcomp.register_codec(Plain())
    assert "plain" in gradcomp.list_codecs()
    assert "a plug-in (Python), codec id 0x8001, version 1" in gradcomp.explain("residual|bf8")


def broken_package() -> None:
    """A fault is named, and other plug-ins work."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert gradcomp.get_codec("bf8").name == "bf8"
    (text,) = (str(one.message) for one in caught)
    fault = "the plug-in 'gone' of the package 'broken' failed: ModuleNotFoundError: No module"
    assert fault in text
    with pytest.raises(gradcomp.SpecError, match=fault):
        gradcomp.get_codec("gone")


def broken_library() -> None:
    with pytest.warns(RuntimeWarning, match="cannot load the plug-in '/nowhere.so'"):
        gradcomp.list_codecs()
    assert gradcomp.get_codec("absmax8").name == "absmax8"  # which comes after it
    with pytest.raises(gradcomp.SpecError, match=r"GRADCOMP_PLUGINS: .*/nowhere.so"):
        gradcomp.get_codec("gone")


def library_from_entry_point() -> None:
    assert gradcomp.get_codec("absmax8").name == "absmax8"
    (row,) = (row for row in stages() if row.name == "absmax8")
    assert row.origin == "library"


def frames_of_unknown_plugins() -> None:
    frame = np.fromfile(sys.argv[2], np.uint8)
    assert inspect(frame).codec_name is None
    with pytest.raises(gradcomp.WireError, match="of a plug-in that is not installed here"):
        gradcomp.get_codec("fp16").decode(frame)


def save_frame() -> None:
    gradcomp.get_codec("bf8").encode(X).tofile(sys.argv[2])


# ------------------------------------------------------------------------ shared libraries


def c_interface() -> None:
    """As an engine has it: the environment variable, and no package of Python."""
    core = ctypes.CDLL(str(capi.core_library()))
    core.gradcomp_last_error.restype = core.gradcomp_codec_spec.restype = ctypes.c_char_p
    core.gradcomp_max_payload_size.restype = ctypes.c_size_t
    codec = ctypes.c_void_p()
    assert core.gradcomp_codec_create(b"absmax8", ctypes.byref(codec)) == 0
    assert core.gradcomp_codec_spec(codec) == b"absmax8(threshold=0.0)"
    assert core.gradcomp_max_payload_size(codec, ctypes.c_size_t(X.size)) == 4 + X.size
    out, y = np.zeros(4 + X.size, np.uint8), np.zeros_like(X)
    written = ctypes.c_size_t()
    count = ctypes.c_size_t(X.size)
    short = ctypes.c_size_t(out.size - 1)
    arguments = (codec, X.ctypes, count, None, out.ctypes)
    assert core.gradcomp_encode(*arguments, short, ctypes.byref(written)) == 3
    full = ctypes.c_size_t(out.size)
    assert core.gradcomp_encode(*arguments, full, ctypes.byref(written)) == 0
    assert core.gradcomp_decode(codec, out.ctypes, written, None, y.ctypes, count) == 0
    twin = gradcomp.get_codec("absmax8")
    assert out.tobytes() == twin.encode_payload(X).tobytes()
    assert y.tobytes() == twin.decode_payload(out, X.size).tobytes()
    assert core.gradcomp_decode(codec, out.ctypes, short, None, y.ctypes, count) == 2
    assert b"the payload must have 4 bytes" in core.gradcomp_last_error()
    core.gradcomp_codec_destroy(codec)
    assert core.gradcomp_load_plugin(None) == 4
    assert core.gradcomp_load_plugin(b"/nowhere.so") == 1
    # A second time, by another name, there is nothing to do.
    again = Path(sys.argv[2]).with_name("again.so")
    again.symlink_to(sys.argv[2])
    assert core.gradcomp_load_plugin(bytes(again)) == 0
    gradcomp.load_plugin(sys.argv[2])


def hostile_libraries() -> None:
    reasons = {
        "no_export": "exports no function gradcomp_plugin",
        "abi": "has version 99 of the interface.*build the plug-in against this gradcomp.h",
        "null": "one is NULL",
        "caps": "allowed are summable, seeded, finite and private_noise",
        "type": "unknown type",
        "taken": "the name 'topk' is taken",
    }
    for name, reason in reasons.items():
        path = Path(sys.argv[2]) / f"{name}.so"
        for _ in range(2):
            with pytest.raises(gradcomp.GradcompError, match=f"{path}.*{reason}"):
                gradcomp.load_plugin(path)
    gradcomp.load_plugin(Path(sys.argv[2]) / "liar.so")
    codec = gradcomp.get_codec("hostile")
    with pytest.raises(gradcomp.GradcompError, match=r"has 99 bytes.*at most 8"):
        codec.encode(X[:8])
    with pytest.raises(gradcomp.WireError, match="no such payload"):
        codec.decode_payload(np.zeros(3, np.uint8), 5)


def matrices() -> None:
    """Shapes that encode gets in all ways: alone, under a memory and in a bucket."""
    seen: list[tuple[int, ...]] = []

    def encode(self: Any, x: Any, params: Any, stream: int) -> bytes:
        seen.append(x.shape)
        return x.tobytes()

    plain = variant(name="flat_shapes", id=0x8701, encode=encode)
    shaped = variant(name="shapes", id=0x8702, encode=encode, matrices=True)
    for plugin in (plain, shaped):
        gradcomp.register_codec(plugin)
    x = np.arange(24, dtype=np.float32)
    for shape, matrix in (
        ((24,), (24,)),
        ((4, 6), (4, 6)),
        ((2, 3, 4), (2, 12)),
        ((1, 24), (1, 24)),
    ):
        for name, expected in (("flat_shapes", (24,)), ("shapes", matrix)):
            seen.clear()
            codec = gradcomp.get_codec(name)
            np.testing.assert_array_equal(codec.decode(codec.encode(x.reshape(shape))), x)
            loop = gradcomp.Loopback(config(f"residual|{name}"), 2)
            loop.step({"w": [x.reshape(shape)] * 2})
            assert seen
            assert set(seen) == {expected}, (name, shape, seen)


def refuses_rotate() -> None:
    """It selects nothing that a rotation spreads; the reason is another one."""
    gradcomp.register_codec(variant(name="unrotated", id=0x8703))
    for spec in ("rotate|unrotated", "residual|rotate|unrotated"):
        with pytest.raises(gradcomp.SpecError, match="a plug-in's codec is not told of the stages"):
            gradcomp.get_codec(spec)
    with pytest.raises(gradcomp.SpecError, match="spreads the elements that 'topk' selects"):
        gradcomp.get_codec("rotate|topk(k=3)")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
