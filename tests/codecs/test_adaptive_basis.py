"""adaptive(preset=basis): the basis that ranks learn from averages, and frames that need it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import gradcomp
from gradcomp import (
    DecodeItem,
    EncodeItem,
    Loopback,
    ProtocolError,
    StateError,
    WireError,
    decode_batch_add,
    encode_batch,
)
from gradcomp.codec.frame import split_frames
from support.codecs import settings_of_the_core
from support.frames import HEAD, sealed
from support.pipelines import configured

SPEC = "adaptive(rate=0.5,preset=basis)"
CODEC = gradcomp.get_codec(SPEC)
SHAPES = [(96, 80), (120, 5, 8), (700,), (3, 50), (20,)]
TURNED = 17  # instead of a rank


def gradients(step: int, rank: int = 0) -> list[np.ndarray]:
    """Rows and columns that lie in a few directions, the same in every step; all else changes."""
    bucket = []
    for number, shape in enumerate(SHAPES):
        fixed, rng = np.random.default_rng(number), np.random.default_rng([number, rank, step])
        rows, cols = shape[0], int(np.prod(shape[1:]))
        of_rows, of_cols = fixed.normal(size=(rows, 6)), fixed.normal(size=(6, cols))
        x = of_rows @ rng.normal(size=(6, 6)) @ of_cols + rng.normal(size=(rows, cols))
        bucket.append(x.reshape(shape).astype(np.float32))
    return bucket


def fresh() -> list[np.ndarray | None]:
    sizes = [CODEC.basis_size(shape) for shape in SHAPES]
    return [np.zeros(size, np.float32) if size else None for size in sizes]


def decoded_of(frames: list[np.ndarray], bases: list[np.ndarray | None]) -> list[np.ndarray]:
    found = [np.zeros(shape, np.float32) for shape in SHAPES]
    items = zip(frames, found, bases, strict=True)
    decode_batch_add([DecodeItem("w", CODEC, [frame], out, basis) for frame, out, basis in items])
    return found


def learn(averages: list[np.ndarray], bases: list[np.ndarray | None]) -> None:
    for average, basis in zip(averages, bases, strict=True):
        if basis is not None:
            CODEC.learn(average, average.shape, basis)


def one_frame(codec: gradcomp.Codec = CODEC) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A gradient, a basis that has learned from the step before, and the frame."""
    basis = np.zeros(codec.basis_size(SHAPES[0]), np.float32)
    codec.learn(gradients(0)[0], SHAPES[0], basis)
    x = gradients(1)[0]
    frame, _ = encode_batch([EncodeItem(codec, x, basis=basis)])
    assert frame[HEAD] >> 3 == TURNED
    return x, basis, frame


def decoded(frame: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    out = np.ones(SHAPES[0], np.float32)
    try:
        decode_batch_add([DecodeItem("w", CODEC, [frame], out, basis)])
    except WireError:
        assert (out == 1).all()
        raise
    return out - 1


def error_of(xs: list[np.ndarray], ys: list[np.ndarray]) -> float:
    return sum(
        float(np.sum((x.astype(np.float64) - y.reshape(x.shape)) ** 2))
        for x, y in zip(xs, ys, strict=True)
    )


# --------------------------------------------------------------------------------------- encoding


def test_a_gradient_is_what_was_sent_and_the_residual_to_the_last_bit() -> None:
    bases = fresh()
    carried = [np.zeros(CODEC.carried, np.float32) for _ in SHAPES]
    residuals = [np.zeros(shape, np.float32).reshape(-1) for shape in SHAPES]
    forms = set()
    for step in range(6):
        grads = gradients(step)
        corrected = [r + g.reshape(-1) for r, g in zip(residuals, grads, strict=True)]
        items = [
            EncodeItem(CODEC, grad, residual=residual, carried=numbers, basis=basis)
            for grad, residual, numbers, basis in zip(grads, residuals, carried, bases, strict=True)
        ]
        data, _ = encode_batch(items)
        assert abs(8 * data.size / sum(g.size for g in grads) / 0.5 - 1) < 0.03
        frames = split_frames(data, len(SHAPES))
        forms.add(frames[0][HEAD] >> 3)
        sent = decoded_of(frames, bases)
        for whole, y, residual in zip(corrected, sent, residuals, strict=True):
            assert residual.tobytes() == (whole - y.reshape(-1)).tobytes()
        learn(sent, bases)
    assert TURNED in forms


def test_directions_that_last_pay() -> None:
    bases = fresh()
    usual = gradcomp.get_codec("adaptive(rate=0.5)")
    for step in range(4):
        data, _ = encode_batch(
            [EncodeItem(CODEC, x, basis=b) for x, b in zip(gradients(step), bases, strict=True)]
        )
        sent = decoded_of(split_frames(data, len(SHAPES)), bases)
        learn(sent, bases)
    grads = gradients(step)
    other, _ = encode_batch([EncodeItem(usual, x) for x in grads])
    anew = [usual.decode(frame) for frame in split_frames(other, len(SHAPES))]
    assert error_of(grads, sent) < 0.8 * error_of(grads, anew)


def turned_fields(payload: bytes) -> int:
    """The offset of the fields of a turned matrix: behind the head and the shapes of the tables."""
    return 12 + int.from_bytes(payload[10:12], "little").bit_count()


@pytest.mark.parametrize("rank", [0, 1, 4])
def test_a_fixed_rank_is_that_of_the_turned_matrix(rank: int) -> None:
    codec = gradcomp.get_codec(f"adaptive(rate=1,rank={rank},preset=basis)")
    _, _, frame = one_frame(codec)
    payload = frame[HEAD:-4].tobytes()
    assert payload[turned_fields(payload)] == rank


def test_matrices_that_are_simpler_as_they_are_stay_so() -> None:
    """Some rows, other ones in every step: seen from the directions of past ones they are more."""
    basis = np.zeros(CODEC.basis_size((256, 128)), np.float32)
    carried = np.zeros(CODEC.carried, np.float32)
    forms = []
    for step in range(10):
        rng = np.random.default_rng(step)
        x = np.zeros((256, 128), np.float32)
        x[rng.integers(256, size=30)] = rng.normal(size=(30, 128))
        frame, _ = encode_batch([EncodeItem(CODEC, x, carried=carried, basis=basis)])
        forms.append(frame[HEAD] >> 3)
        out = np.zeros_like(x)
        decode_batch_add([DecodeItem("w", CODEC, [frame], out, basis)])
        CODEC.learn(out, x.shape, basis)
    assert TURNED not in forms
    usual, _ = encode_batch([EncodeItem(CODEC, x, basis=basis)])
    assert usual[HEAD] >> 3 == TURNED, "where nothing is carried there is no choice"


def test_without_a_basis_payloads_are_those_of_the_default() -> None:
    x = gradients(0)[0]
    usual = gradcomp.get_codec("adaptive(rate=0.5)")
    expected = usual.encode(x)[HEAD:-4].tobytes()
    assert CODEC.encode(x)[HEAD:-4].tobytes() == expected
    nothing_yet = np.zeros(CODEC.basis_size(x.shape), np.float32)
    frame, _ = encode_batch([EncodeItem(CODEC, x, basis=nothing_yet)])
    assert frame[HEAD:-4].tobytes() == expected
    np.testing.assert_array_equal(CODEC.decode(frame), usual.decode(usual.encode(x)))


def test_frames_and_bases_are_the_same_at_any_level_and_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    steps = [
        (rng.normal(size=(700, 5)) @ rng.normal(size=(5, 400)) + rng.normal(size=(700, 400)))
        for _ in range(3)
    ]
    results = set()
    for _ in settings_of_the_core(threads=(1, 3)):
        basis = np.zeros(CODEC.basis_size((700, 400)), np.float32)
        found = b""
        for step in steps:
            x = step.astype(np.float32)
            frame, _ = encode_batch([EncodeItem(CODEC, x, basis=basis)])
            out = np.zeros_like(x)
            decode_batch_add([DecodeItem("w", CODEC, [frame], out, basis)])
            CODEC.learn(x, x.shape, basis)
            found += frame.tobytes() + out.tobytes() + basis.tobytes()
        results.add(found)
    assert len(results) == 1


# --------------------------------------------------------------------------------------- learning


def test_only_matrices_with_enough_rows_and_columns_have_a_basis() -> None:
    sizes = [CODEC.basis_size(shape) for shape in SHAPES]
    assert sizes == [32 * (96 + 80 + 66), 20 * (120 + 40 + 42), 0, 0, 0]
    assert gradcomp.get_codec("adaptive(preset=default)").basis_size((96, 80)) == 0
    x = gradients(0)[2]
    with pytest.raises(ValueError, match="keeps a basis of 0 numbers of this tensor, not 7"):
        encode_batch([EncodeItem(CODEC, x, basis=np.zeros(7, np.float32))])
    with pytest.raises(ValueError, match="7 elements"):
        CODEC.learn(x, x.shape, np.zeros(7, np.float32))


def test_directions_are_orthonormal_and_those_of_the_averages() -> None:
    rng = np.random.default_rng(0)
    of_rows = np.linalg.qr(rng.normal(size=(96, 3)))[0].T
    of_cols = np.linalg.qr(rng.normal(size=(80, 3)))[0].T
    basis = np.zeros(CODEC.basis_size((96, 80)), np.float32)
    weights = np.array([4, 2, 1])
    for _ in range(5):
        core = weights[:, None] * rng.normal(size=(3, 3)) * weights
        CODEC.learn((1e3 * of_rows.T @ core @ of_cols).astype(np.float32), (96, 80), basis)
    numbers = basis
    for true, size in ((of_cols, 80), (of_rows, 96)):
        y, numbers = numbers[: 32 * size].reshape(32, size), numbers[32 * size :]
        t, numbers = numbers[: 32 * 32].reshape(32, 32), numbers[32 * 32 :]
        sizes, numbers = numbers[:32], numbers[32:]
        whole = np.eye(size) - y.T @ t @ y
        np.testing.assert_allclose(whole.T @ whole, np.eye(size), atol=1e-5)
        v = y - np.eye(32, size)
        np.testing.assert_allclose(whole[:, :32], -v.T, atol=1e-5)
        assert np.linalg.svd(v[:3] @ true.T)[1].min() > 0.98  # the same three dimensions
        assert sorted(sizes, reverse=True) == list(sizes)
        assert 0 < sizes[0] < 1
    assert numbers.size == 0


def test_averages_that_teach_nothing_leave_the_basis_alone() -> None:
    _, basis, _ = one_frame()
    before = basis.tobytes()
    for value in (0, 1e-30, 1e30, np.nan, np.inf):
        x = np.full(SHAPES[0], value, np.float32)
        CODEC.learn(x, x.shape, basis)
        assert basis.tobytes() == before


def test_any_numbers_may_be_in_a_basis() -> None:
    rng = np.random.default_rng(0)
    x, basis, _ = one_frame()
    for _ in range(40):
        bad = basis.copy()
        at = rng.integers(bad.size, size=3)
        bad[at] = rng.integers(0, 2**32, 3, dtype=np.uint32).view(np.float32)
        frame, _ = encode_batch([EncodeItem(CODEC, x, basis=bad)])
        assert np.isfinite(decoded(frame, bad)).all()
        CODEC.learn(x, x.shape, bad)
        assert np.isfinite(bad).all()


# ---------------------------------------------------------------------------------- hostile frames


def rebuilt(frame: np.ndarray, payload: bytes) -> np.ndarray:
    head = bytearray(frame[:HEAD].tobytes())
    struct.pack_into("<I", head, 12, len(payload))
    return np.frombuffer(sealed(bytes(head) + payload), np.uint8)


def test_another_basis_is_refused() -> None:
    x, basis, frame = one_frame()
    assert error_of([x], [decoded(frame, basis)]) < error_of([x], [0 * x])
    other = basis.copy()
    other[5] = np.nextafter(other[5], np.float32(1))
    with pytest.raises(WireError, match=r"another basis.* load the same checkpoint on all"):
        decoded(frame, other)
    for none in (None, np.zeros_like(basis), basis[:-1]):
        with pytest.raises(WireError, match=r"needs the basis .* only a rank that has taken part"):
            decoded(frame, none)
    with pytest.raises(WireError, match="needs the basis"):
        CODEC.decode(frame)


def test_damaged_fields_of_a_basis_are_refused() -> None:
    _, basis, frame = one_frame()
    payload = frame[HEAD:-4].tobytes()
    at = turned_fields(payload)  # the rank, then the CRC of the basis

    def with_byte(where: int, value: int) -> np.ndarray:
        return rebuilt(frame, payload[:where] + bytes([value]) + payload[where + 1 :])

    for rank in (17, 255):
        with pytest.raises(WireError, match=f"a rank of {rank}; of this matrix it is at most 16"):
            decoded(with_byte(at, rank), basis)
    with pytest.raises(WireError, match="another basis"):
        decoded(with_byte(at + 2, payload[at + 2] ^ 1), basis)
    for end in range(len(payload)):
        with pytest.raises(WireError):
            decoded(rebuilt(frame, payload[:end]), basis)


def test_steps_of_a_turned_matrix_are_finite() -> None:
    codec = gradcomp.get_codec("adaptive(rate=0.5,rank=1,preset=basis)")
    _, basis, frame = one_frame(codec)
    payload = frame[HEAD:-4].tobytes()
    at = turned_fields(payload) + 5  # the step of P, then the step of V
    for step in (at, at + 2):
        bad = rebuilt(frame, payload[:step] + b"\x80\x7f" + payload[step + 2 :])
        with pytest.raises(WireError, match="step is not finite"):
            decode_batch_add([DecodeItem("w", codec, [bad], np.zeros(SHAPES[0], "f4"), basis)])


def test_the_default_does_not_know_such_frames() -> None:
    _, _, frame = one_frame()
    usual = gradcomp.get_codec("adaptive(rate=0.5)")
    own = usual.encode(gradients(0)[0])
    with pytest.raises(WireError, match="a rank of 17"):
        usual.decode(rebuilt(own, frame[HEAD:-4].tobytes()))


# ------------------------------------------------------------------------------------------ ranks


def averages(loop: Loopback, step: int) -> list[Any]:
    world = len(loop.ranks)
    of_ranks = [gradients(step, rank) for rank in range(world)]
    grads = {str(i): [g[i] for g in of_ranks] for i in range(len(SHAPES))}
    found = loop.step(grads)
    for results in found.values():
        assert len({one.tobytes() for one in results}) == 1
    return [results[0].tobytes() for results in found.values()]


def config(**compress: Any) -> gradcomp.Config:
    return configured(f"residual|{SPEC}", **compress)


@pytest.mark.parametrize("compress", [{}, {"exchange": "two_level", "ranks_per_node": 2}])
def test_ranks_have_the_same_basis_after_every_step(compress: dict[str, Any]) -> None:
    loop = Loopback(config(**compress), 4)
    for step in range(4):
        averages(loop, step)
        states = [rank.state_dict()["basis"] for rank in loop.ranks]
        assert sorted(states[0]) == ["0", "1"]
        assert states[0]["0"].any()
        for state in states[1:]:
            assert [x.tobytes() for x in state.values()] == [
                x.tobytes() for x in states[0].values()
            ]


def test_a_run_that_resumes_goes_on_bit_for_bit() -> None:
    straight, first = Loopback(config(), 2), Loopback(config(), 2)
    for step in range(3):
        assert averages(straight, step) == averages(first, step)
    second = Loopback(config(), 2)
    for rank, pipeline in zip(first.ranks, second.ranks, strict=True):
        pipeline.load_state_dict(rank.state_dict())
    for step in range(3, 6):
        assert averages(second, step) == averages(straight, step)


def test_another_number_of_ranks_takes_up_the_basis() -> None:
    first = Loopback(config(), 2)
    for step in range(3):
        averages(first, step)
    states = [rank.state_dict() for rank in first.ranks]
    second = Loopback(config(), 3)
    for pipeline in second.ranks:
        pipeline.load_state_dict(states)
        assert pipeline.state_dict()["basis"]["0"].tobytes() == states[0]["basis"]["0"].tobytes()
    averages(second, 3)
    states[1]["basis"]["0"][0] += 1
    with pytest.raises(StateError, match="the ranks' basis of '0' differ"):
        second.ranks[0].load_state_dict(states)


def test_ranks_with_other_bases_say_so() -> None:
    loop = Loopback(config(), 2)
    for step in range(4):
        averages(loop, step)
    state = loop.ranks[1].state_dict()
    state["basis"]["0"][0] /= 2
    loop.ranks[1].load_state_dict(state)
    loop.ranks[0].load_state_dict(loop.ranks[0].state_dict())
    with pytest.raises(ProtocolError, match=r"basis of . tensors: .* on rank 0; .* on rank 1"):
        averages(loop, 4)
    for pipeline in loop.ranks:  # as after a fault of memory in the middle of training
        pipeline.comparison.fresh = False
    with pytest.raises(WireError, match=r"frame of rank . for '0': .*another basis"):
        averages(loop, 4)
