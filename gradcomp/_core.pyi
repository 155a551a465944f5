from typing import Any

import numpy as np
import numpy.typing as npt

MAX_NUMEL: int
FIRST_USER_CODEC_ID: int

class Codec:
    def __init__(self, spec: str) -> None: ...
    spec: str
    name: str
    codec_id: int
    spec_hash: int
    summable: bool
    nonlinear: bool
    seeded: bool
    sparse: bool
    finite: bool
    private_noise: bool
    shares: bool
    carried: int
    payload_dtype: str
    def max_payload_size(self, numel: int) -> int: ...
    def max_frame_size(self, numel: int) -> int: ...
    def frame_numel(self, frame: npt.NDArray[np.uint8]) -> int: ...
    def encode_frame(
        self, x: npt.NDArray[np.float32], stream: int, out: npt.NDArray[np.uint8]
    ) -> int: ...
    def decode_frame(self, frame: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None: ...
    def decode_frame_add(
        self, frame: npt.NDArray[np.uint8], weight: float, out: npt.NDArray[np.float32]
    ) -> None: ...
    def encode_payload(
        self, x: npt.NDArray[np.float32], stream: int, out: npt.NDArray[np.uint8]
    ) -> int: ...
    def encode_payload_with_residual(
        self,
        residual: npt.NDArray[np.float32],
        grad: npt.NDArray[np.float32],
        beta: float,
        gamma: float,
        stream: int,
        out: npt.NDArray[np.uint8],
    ) -> int: ...
    def decode_payload(
        self, payload: npt.NDArray[np.uint8], stream: int, out: npt.NDArray[np.float32]
    ) -> None: ...
    def decode_payload_add(
        self,
        payload: npt.NDArray[np.uint8],
        stream: int,
        weight: float,
        out: npt.NDArray[np.float32],
    ) -> None: ...

def parse_spec(spec: str) -> tuple[str, list[tuple[Any, ...]], bool, bool]: ...
def spec_at(spec: str, step: int, epoch: int) -> str: ...
def stages() -> list[dict[str, Any]]: ...
def parse_frame(frame: npt.NDArray[np.uint8]) -> dict[str, Any]: ...
def frame_size(data: npt.NDArray[np.uint8]) -> int: ...
def derive_stream(seed: int, step: int, tensor_id: int) -> int: ...
def encode_batch(tensors: list[tuple[Any, ...]]) -> tuple[npt.NDArray[np.uint8], list[int]]: ...
def decode_batch_add(tensors: list[tuple[Any, ...]], weight: float) -> None: ...
def compensate(
    residual: npt.NDArray[np.float32], grad: npt.NDArray[np.float32], beta: float, gamma: float
) -> bool: ...
def chunk_norms(x: npt.NDArray[np.float32], chunk: int, norms: npt.NDArray[np.float32]) -> None: ...
def norm(x: npt.NDArray[np.float32]) -> float: ...
def zero_nonfinite(x: npt.NDArray[np.float32]) -> None: ...
def multiply(
    m: npt.NDArray[np.float32],
    grad: npt.NDArray[np.float32] | None,
    q: npt.NDArray[np.float32],
    p: npt.NDArray[np.float32],
) -> bool: ...
def multiply_transposed(
    m: npt.NDArray[np.float32],
    grad: npt.NDArray[np.float32] | None,
    p: npt.NDArray[np.float32],
    q: npt.NDArray[np.float32],
) -> bool: ...
def outer(
    p: npt.NDArray[np.float32],
    q: npt.NDArray[np.float32],
    *,
    assigned: npt.NDArray[np.float32] | None = None,
    added: npt.NDArray[np.float32] | None = None,
    subtracted: npt.NDArray[np.float32] | None = None,
) -> None: ...
def orthonormalize(vectors: npt.NDArray[np.float32], rank: int, method: str) -> None: ...
def uniform_signed(stream: int, count: int) -> npt.NDArray[np.float32]: ...
def bfloat16_bits(capsule: object) -> npt.NDArray[np.uint16]: ...
def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]: ...
def simd_levels() -> list[str]: ...
def simd_level() -> str: ...
def set_simd_level(name: str) -> None: ...
def thread_count() -> int: ...
def set_thread_count(count: int) -> None: ...

POLAR_MAX_LENGTH: int

class PolarCode:
    def __init__(
        self,
        length: int,
        message: int,
        construction: str,
        design_snr_db: float,
        seed: int,
        trials: int,
    ) -> None: ...
    mother: int
    kept: npt.NDArray[np.uint32]
    information: npt.NDArray[np.uint32]
    frozen: npt.NDArray[np.uint32]
    reliability: npt.NDArray[np.float64]
    def encode(
        self, messages: npt.NDArray[np.uint8], systematic: bool
    ) -> npt.NDArray[np.uint8]: ...
    def decode(
        self, llrs: npt.NDArray[np.float64], systematic: bool, min_sum: bool, trace: bool = False
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]: ...
    def list_decode(
        self, llrs: npt.NDArray[np.float64], list_size: int, systematic: bool, min_sum: bool
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]: ...
    def compress(
        self,
        source: npt.NDArray[np.uint8],
        llr: float,
        shortened_llr: float,
        min_sum: bool,
        seed: int | None,
        uniforms: npt.NDArray[np.float64] | None,
        trace: bool = False,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]: ...

def polar_transform(bits: npt.NDArray[np.uint8], log2: int) -> None: ...
