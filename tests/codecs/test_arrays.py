"""Tensors in: every dtype and layout, without a copy where there can be none."""

from __future__ import annotations

import array
import gc
import re
import weakref

import numpy as np
import pytest
import torch

import gradcomp
from gradcomp.codec.arrays import as_bytes, as_float32

VALUES = [[0.5, -1.25, 3.0], [65504.0, -0.0, 2.0**-14]]

FLOATS = [np.float16, np.float32, np.float64]
TORCH_FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def check(x: np.ndarray, expected: np.ndarray) -> None:
    assert type(x) is np.ndarray
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    assert x.shape == expected.shape
    assert x.tobytes() == np.ascontiguousarray(expected, np.float32).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2)])
def test_numpy_arrays(dtype: type, shape: tuple[int, ...]) -> None:
    source = np.array(VALUES, dtype).reshape(shape)
    check(as_float32(source), source)
    check(as_float32(source.T), source.T)
    check(as_float32(source[::-1]), source[::-1])
    check(as_float32(np.asfortranarray(source)), source)


@pytest.mark.parametrize("bits", [64, 128])
def test_torch_tensors_with_the_negative_bit(bits: int) -> None:
    dtype = torch.complex64 if bits == 64 else torch.complex128
    view = torch.tensor([1 + 2j, 3 - 4j], dtype=dtype).conj().imag
    assert view.is_neg()
    check(as_float32(view), np.array([-2.0, 4.0], np.float32))
    codec = gradcomp.get_codec("identity")
    np.testing.assert_array_equal(codec.decode(codec.encode(view)), [-2.0, 4.0])


@pytest.mark.parametrize("dtype", TORCH_FLOATS)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2)])
def test_torch_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = torch.tensor(VALUES, dtype=dtype).reshape(shape)
    expected = source.to(torch.float32).numpy()
    check(as_float32(source), expected)
    check(as_float32(source.movedim(0, -1)), np.moveaxis(expected, 0, -1))
    check(as_float32(source[1:]), expected[1:])
    check(as_float32(source[::2]), expected[::2])
    check(as_float32(source[:1].expand(4, *shape[1:])), np.repeat(expected[:1], 4, axis=0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1, 1)])
def test_numpy_scalars_and_empty_arrays_keep_their_shape(
    dtype: type, shape: tuple[int, ...]
) -> None:
    source = np.full(shape, 1.5, dtype)
    check(as_float32(source), source)


@pytest.mark.parametrize("dtype", TORCH_FLOATS)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1, 1)])
def test_torch_scalars_and_empty_tensors_keep_their_shape(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    check(as_float32(torch.full(shape, 1.5, dtype=dtype)), np.full(shape, 1.5))


def test_buffers_of_floats() -> None:
    check(as_float32(array.array("f", [1, 2, 3])), np.array([1, 2, 3]))
    check(as_float32(array.array("d", [1, 2, 3])), np.array([1, 2, 3]))
    check(as_float32(np.float64(0.5)), np.array(0.5))
    check(as_float32(memoryview(np.array(VALUES))), np.array(VALUES))


def test_contiguous_float32_is_shared_not_copied() -> None:
    flat = np.zeros(8, np.float32)
    for view in (flat, flat[2:5], flat.reshape(2, 4), flat.reshape(2, 4)[1], flat[3:3]):
        x = as_float32(view)
        assert x.ctypes.data == view.ctypes.data
        assert np.shares_memory(x, flat) or view.size == 0
    scalar = np.array(1.0, np.float32)
    assert np.shares_memory(as_float32(scalar), scalar)
    tensor = torch.zeros(2, 4)
    for view in (tensor, tensor[1], tensor.reshape(-1)[1:3]):
        assert np.shares_memory(as_float32(view), tensor.numpy())
        assert as_float32(view).ctypes.data == view.data_ptr()
    buffer = array.array("f", [1, 2, 3])
    buffer[0] = 7
    assert as_float32(buffer)[0] == 7


def test_read_only_input_is_read() -> None:
    source = np.ones(4, np.float32)
    source.flags.writeable = False
    assert np.shares_memory(as_float32(source), source)
    assert gradcomp.get_codec("identity").encode(source).size == 24 + 16 + 4


def test_a_subclass_becomes_a_plain_array() -> None:
    matrix = np.zeros((2, 2), np.float32).view(np.recarray)
    assert type(as_float32(matrix)) is np.ndarray
    assert np.shares_memory(as_float32(matrix), matrix)


def test_float64_rounds_to_nearest_and_overflows_to_inf() -> None:
    source = np.array([1 + 2**-24, 1 + 3 * 2**-24, 1e300, -1e300, 1e-300, np.nan, -np.inf])
    expected = torch.from_numpy(source).to(torch.float32).numpy()
    np.testing.assert_array_equal(as_float32(source), expected)
    assert as_float32(source)[2:4].tolist() == [np.inf, -np.inf]


def test_every_bfloat16_pattern_is_exact() -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    x = as_float32(bits.view(torch.bfloat16))
    expected = bits.numpy().view(np.uint16).astype(np.uint32) << 16
    assert (x.view(np.uint32) == expected).all()


def test_a_shared_tensor_lives_as_long_as_its_array() -> None:
    tensor = torch.full((1000,), 3.0)
    x = as_float32(tensor)
    del tensor
    gc.collect()
    assert (x == 3).all()
    half = torch.full((1000,), 3.0, dtype=torch.bfloat16)
    alive = weakref.ref(half)
    assert (as_float32(half) == 3).all()
    del half
    gc.collect()
    assert alive() is None, "the DLPack capsule was given back"


@pytest.mark.parametrize("dtype", TORCH_FLOATS)
def test_a_tensor_that_requires_grad_is_refused_with_the_remedy(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, dtype=dtype, requires_grad=True)
    with pytest.raises(TypeError, match=r"requires? grad.*detach\(\)"):
        as_float32(tensor)
    assert as_float32(tensor.detach()).tolist() == [1, 1, 1]
    with torch.no_grad():
        assert as_float32(tensor * 2).tolist() == [2, 2, 2]


ALLOWED = "allowed are float16, bfloat16, float32 and float64"


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int32, np.int64, np.uint8, np.bool_, np.complex64, ">f4", "U3", "M8[s]"]
)
def test_other_numpy_dtypes_are_refused(dtype: object) -> None:
    source = np.zeros(3, dtype)
    expected = f"a gradient of dtype {re.escape(str(source.dtype))} cannot be compressed; {ALLOWED}"
    with pytest.raises(TypeError, match=expected):
        as_float32(source)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.complex64])
def test_other_torch_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"a gradient of dtype .*; {ALLOWED}"):
        as_float32(torch.zeros(3, dtype=dtype))


def test_tensors_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(TypeError, match=r"the tensor cannot be read: .*meta"):
        as_float32(torch.zeros(3, device="meta"))
    with pytest.raises(TypeError, match=r"the tensor cannot be read: .*layout"):
        as_float32(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="the tensor cannot be read: "):
        as_float32(torch.zeros(3).to(torch.float8_e4m3fn))


class OnAnotherDevice:
    dtype = "float32"

    def __dlpack__(self) -> object:
        raise AssertionError("not CPU memory: must not be asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_a_tensor_of_another_device_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"not in CPU memory \(DLPack device type 2\).*\.cpu\(\)"):
        as_float32(OnAnotherDevice())


@pytest.mark.parametrize("value", [1, 1.5, "1.5", None, [1.0, 2.0], {"w": 1.0}])
def test_what_is_no_tensor_is_refused(value: object) -> None:
    with pytest.raises(TypeError) as caught:
        as_float32(value)
    assert "allowed are" in str(caught.value)


def test_bytes_are_refused_as_gradients() -> None:
    for value in (b"abcd", bytearray(4)):
        with pytest.raises(TypeError, match=f"dtype uint8 cannot be compressed; {ALLOWED}"):
            as_float32(value)


def test_encode_takes_what_as_float32_takes() -> None:
    codec = gradcomp.get_codec("identity")
    expected = codec.encode(np.array(VALUES, np.float32)).tobytes()
    sources = [
        np.array(VALUES),
        np.array(VALUES, order="F"),
        torch.tensor(VALUES),
        torch.tensor(VALUES, dtype=torch.float64).T.contiguous().T,
        memoryview(np.array(VALUES, np.float32)),
    ]
    for source in sources:
        assert codec.encode(source).tobytes() == expected
        assert codec.encode_payload(source).tobytes() == expected[24:-4]
    with pytest.raises(TypeError, match=ALLOWED):
        codec.encode(np.arange(3))


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x02\x03\x04",
        bytearray(b"\x01\x02\x03\x04"),
        memoryview(b"\x01\x02\x03\x04"),
        np.array([1, 2, 3, 4], np.uint8),
        np.array([[1, 2], [3, 4]], np.uint8),
        np.array([1, 9, 2, 9, 3, 9, 4], np.uint8)[::2],
        np.array([0x04030201], "<u4"),
    ],
)
def test_bytes_of_every_holder(data: object) -> None:
    flat = as_bytes(data)
    assert flat.dtype == np.uint8
    assert flat.tolist() == [1, 2, 3, 4]


def test_bytes_are_not_copied() -> None:
    data = np.zeros((2, 4), np.float32)
    assert np.shares_memory(as_bytes(data), data)
    buffer = bytearray(4)
    view = as_bytes(buffer)
    buffer[2] = 5
    assert view.tolist() == [0, 0, 5, 0]
    assert as_bytes(b"").size == 0


@pytest.mark.parametrize("data", ["text", [1, 2], 7, None, memoryview(b"abcdef")[::2]])
def test_what_holds_no_bytes_is_refused(data: object) -> None:
    expected = f"{type(data).__name__} does not hold contiguous bytes .* allowed are bytes, "
    with pytest.raises(TypeError, match=expected):
        as_bytes(data)
