"""What the laws are checked on: every registered codec, and gradients of many kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradcomp import Config, Pipeline, SpecError, _core, get_codec
from gradcomp.codec.spec import ParamInfo, StageInfo, parse, stages
from gradcomp.exchange.rounds import AllGather, AllReduce

FloatArray = npt.NDArray[np.float32]

LAWS = settings(deadline=None, derandomize=True, database=None, max_examples=60)

CODECS = [stage.name for stage in stages() if stage.kind == "codec"]


# Specs ------------------------------------------------------------------------------------------


def _candidates(param: ParamInfo) -> list[str]:
    """A few values in a parameter's range, the ends among them."""
    if param.type in ("choice", "boolean"):
        return param.range.split("|")
    low, high = param.range.strip("([])").split(", ")
    if param.type == "integer":
        return [low, str(int(low) + 2), str(int(low) + 99)]
    ends = [low if param.range.startswith("[") else "0.03", "0.6"]
    return ends if high == "inf" else [*ends, high]


def specs_of(stage: StageInfo) -> list[str]:
    """The registry's example, and every parameter on its own at a few values."""
    found = [get_codec(stage.example).spec]
    for param in stage.params:
        for value in _candidates(param):
            try:
                found.append(get_codec(f"{stage.name}({param.name}={value})").spec)
            except SpecError:  # it needs another parameter besides
                continue
    return sorted(set(found), key=found.index)


def takes_memory(spec: str) -> bool:
    """Whether error feedback makes sense with a codec."""
    try:
        parse(f"residual|{spec}")
    except SpecError:
        return False
    return True


SPECS = [spec for stage in stages() if stage.kind == "codec" for spec in specs_of(stage)]
MEMORY_SPECS = [spec for spec in SPECS if takes_memory(spec)]


# Gradients --------------------------------------------------------------------------------------


def _sparse(rng: np.random.Generator, n: int) -> FloatArray:
    return np.where(rng.random(n) < 0.02, rng.normal(size=n), 0.0).astype(np.float32)


def _nonfinite(rng: np.random.Generator, n: int) -> FloatArray:
    x = rng.normal(size=n).astype(np.float32)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        x[rng.random(n) < 0.05] = value
    return x


def _denormal(rng: np.random.Generator, n: int) -> FloatArray:
    bits = rng.integers(0, 0x00800000, n, dtype=np.uint32)
    return (bits | rng.integers(0, 2, n, dtype=np.uint32) << 31).view(np.float32)


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "gaussian": lambda rng, n: rng.normal(size=n).astype(np.float32),
    "laplace": lambda rng, n: rng.laplace(scale=1e-3, size=n).astype(np.float32),
    "sparse": _sparse,
    "constant": lambda rng, n: np.full(n, 0.1, np.float32),
    "denormal": _denormal,
    "huge": lambda rng, n: (rng.normal(size=n) * 1e38).clip(-3.4e38, 3.4e38).astype(np.float32),
    "nonfinite": _nonfinite,
    "any bits": lambda rng, n: rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32),
}


def sample(kind: str, n: int) -> FloatArray:
    """A gradient of n elements, the same in every run."""
    return DISTRIBUTIONS[kind](np.random.default_rng([n, *kind.encode()]), n)


def any_bits(max_size: int = 300) -> st.SearchStrategy[FloatArray]:
    """Float32 arrays of any bit patterns."""
    patterns = hnp.arrays(np.uint32, st.integers(0, max_size))
    return patterns.map(lambda bits: bits.view(np.float32))


def finite(limit: float, max_size: int = 300) -> st.SearchStrategy[FloatArray]:
    """Float32 arrays of magnitudes up to a limit that is a float32."""
    elements = st.floats(-limit, limit, width=32)
    return hnp.arrays(np.float32, st.integers(0, max_size), elements=elements)


# Running the core and the pipeline ----------------------------------------------------------------


def settings_of_the_core() -> Iterator[str]:
    """Sets every SIMD level with 1, 2 and 3 threads, one after the other."""
    for level in _core.simd_levels():
        for threads in (1, 2, 3):
            _core.set_simd_level(level)
            _core.set_thread_count(threads)
            yield f"{level}, {threads} threads"


def config_of(spec: str) -> Config:
    """The configuration that compresses every tensor, the small ones too."""
    rule = {"match": {}, "use": spec}
    return Config.from_mapping({"version": 1, "compress": {"default": spec, "rules": [rule]}})


def send(pipeline: Pipeline, grad: FloatArray, name: str = "w") -> FloatArray:
    """Let a lone rank's pipeline average a tensor; returns the decode of what it sends."""
    one_round = pipeline.round(name, grad)
    request = next(one_round)
    reply = request.array.copy() if isinstance(request, AllReduce) else [request.frame.copy()]
    assert isinstance(request, AllReduce | AllGather)
    try:
        one_round.send(reply)
    except StopIteration as stop:
        average: FloatArray = stop.value
        return average
    raise AssertionError("the round has more than one request")


def residual_of(pipeline: Pipeline, name: str = "w") -> FloatArray:
    """A copy of the pipeline's residual of a tensor."""
    residual: FloatArray = pipeline.state_dict()["residual"][name]
    return residual


def same_bits(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> bool:
    """Whether two arrays are of one type and equal bit for bit."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()
