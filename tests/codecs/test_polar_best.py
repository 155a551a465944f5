"""preset=best of the polar codecs: what does not depend on which of them it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from decoder import decode

from gradcomp import SpecError, _core, get_codec
from gradcomp.codec.spec import parse

NAMES = ["polar_b", "polar_ec"]


def normal(n: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("numel", [64, 65, 4097, 12_300, 70_000])
@pytest.mark.parametrize(
    "spec",
    [
        "polar_b(rate=0.5,preset=best)",
        "polar_b(rate=0.3,unbiased=true,preset=best)",
        "polar_ec(rate=0.5,preset=best)",
        "polar_ec(unbiased=true,preset=best)",
    ],
)
def test_frames_follow_the_document(spec: str, numel: int) -> None:
    x = normal(numel, numel)
    codec = get_codec(spec)
    frame = codec.encode(x, seed=3, step=1)
    assert codec.decode(frame).tobytes() == decode(frame.tobytes(), codec.spec).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_it_needs_no_decoder_of_its_own(name: str) -> None:
    x = normal(70_000)
    plain, best = get_codec(name), get_codec(f"{name}(preset=best)")
    payload = best.encode_payload(x)
    decoded = [codec.decode_payload(payload, x.size).tobytes() for codec in (plain, best)]
    assert decoded[0] == decoded[1]
    assert payload.tobytes() != plain.encode_payload(x).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_same_at_every_simd_level_and_number_of_threads(name: str) -> None:
    x = normal(140_001)
    codec = get_codec(f"rotate|{name}(n=1024,preset=best)")
    level, threads = _core.simd_level(), _core.thread_count()
    frames = set()
    try:
        for simd in _core.simd_levels():
            for count in (1, 2, 5):
                _core.set_simd_level(simd)
                _core.set_thread_count(count)
                frames.add(codec.encode(x).tobytes())
    finally:
        _core.set_simd_level(level)
        _core.set_thread_count(threads)
    assert len(frames) == 1


@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_other_preset(name: str) -> None:
    with pytest.raises(SpecError, match="'preset' must be one of best, not 'fast'"):
        get_codec(f"{name}(preset=fast)")
    assert "preset" not in parse(name).canonical
