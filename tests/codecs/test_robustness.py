"""Hostile bytes: a decoder refuses them with WireError or decodes them, and does nothing else."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import gradcomp
from gradcomp import SpecError, WireError
from gradcomp.codec.frame import inspect, split_frames
from support.frames import sealed
from support.scope import by_scope
from support.specs import CODECS, SPECS

FRAMES = by_scope(5000, 20_000)  # for each codec; tests/fuzz goes further, without Python
# Sizes of inputs of any bits, from which most codecs send a single NaN, and of gradients that are
# large enough for all stages of the codecs.
ANY_BITS = (0, 1, 2, 7, 16)
GRADIENTS = (100, 100, 100)
SEED = 20261121


class Mutator:
    """Makes damaged frames of a codec out of a set of valid ones."""

    def __init__(self, codec_name: str) -> None:
        self.rng = random.Random(f"{codec_name} {SEED}")
        self.specs = [spec for spec in SPECS if gradcomp.get_codec(spec).name == codec_name]
        self.valid = [
            (gradcomp.get_codec(spec), n, self.frame(spec, n))
            for spec in self.specs
            for n in (*ANY_BITS, *GRADIENTS)
        ]
        others = [self.frame(spec, 7) for spec in SPECS]
        self.donors = [frame for _, _, frame in self.valid] + others

    def frame(self, spec: str, n: int) -> bytes:
        x = np.frombuffer(self.rng.randbytes(4 * n), np.float32)
        if n in GRADIENTS:
            x = np.float32([self.rng.gauss(0, 1) ** 3 for _ in range(n)]).reshape(-1, 10)
        return gradcomp.get_codec(spec).encode(x, seed=n).tobytes()

    def next(self) -> tuple[gradcomp.Codec, int, bytes]:
        """A codec, the number of elements of the frame before it was damaged, and the bytes."""
        rng = self.rng
        codec, n, frame = rng.choice(self.valid)
        kind = rng.randrange(12)
        if kind == 0:
            return codec, n, rng.randbytes(rng.randrange(80))
        if kind == 1:  # random bytes behind a good header
            data = bytearray(frame[:24] + rng.randbytes(rng.randrange(60)))
            struct.pack_into("<I", data, 12, max(0, len(data) - rng.choice([24, 28, 32, 36])))
        elif kind == 2:  # the beginning of one frame and the end of another
            other = rng.choice(self.donors)
            data = bytearray(
                frame[: rng.randrange(len(frame))] + other[rng.randrange(len(other)) :]
            )
        elif kind == 3:
            data = bytearray(frame[: rng.randrange(len(frame))])
        elif kind == 4:
            data = bytearray(frame + rng.randbytes(rng.randrange(1, 40)))
        elif kind == 5:  # with a stream where none belongs, or without
            data = bytearray(frame)
            data[5] ^= 2
            data[24:24] = rng.randbytes(8)
            if frame[5] & 2:
                del data[24:40]
        else:
            data = bytearray(frame)
            for _ in range(rng.choice([1, 1, 1, 2, 4])):
                self.edit(data, n)
        # A right CRC takes the decoder past the check that would stop it early.
        if len(data) >= 28 and rng.random() < 0.85:
            return codec, n, sealed(bytes(data[:-4]))
        return codec, n, bytes(data)

    def edit(self, data: bytearray, n: int) -> None:
        rng = self.rng
        kind = rng.randrange(7)
        if kind == 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind == 2:  # a header field
            offset, layout = rng.choice([(5, "B"), (6, "<H"), (8, "<I"), (12, "<I"), (16, "<Q")])
            bits = 8 * struct.calcsize(layout)
            near = struct.unpack_from(layout, data, offset)[0] + rng.choice([-1, 1])
            number = rng.choice([0, 2**bits - 1, near % 2**bits, rng.getrandbits(bits)])
            struct.pack_into(layout, data, offset, number)
        elif kind == 3:  # numel
            number = rng.choice([0, 1, n + 1, 2**24, 2**30 - 1, 2**30, 2**31, 2**32 + n, 2**64 - 1])
            struct.pack_into("<Q", data, 16, number)
        else:  # a 32-bit word of the payload or the stream
            words = (len(data) - 28) // 4
            if words > 0:
                numbers = [0, 1, n, n - 1 if n else 0, 2**31, 2**32 - 1, rng.getrandbits(32)]
                struct.pack_into("<I", data, 24 + 4 * rng.randrange(words), rng.choice(numbers))


@pytest.mark.parametrize("codec_name", CODECS)
def test_damaged_frames_are_refused_or_decoded(codec_name: str) -> None:
    mutator = Mutator(codec_name)
    accumulators = {n: np.arange(n, dtype=np.float32) for n in (*ANY_BITS, *GRADIENTS)}
    before = {n: acc.tobytes() for n, acc in accumulators.items()}
    refusals: dict[str, int] = {}
    decoded_frames = 0
    for _ in range(FRAMES):
        codec, n, frame = mutator.next()
        try:
            decoded = codec.decode(frame, numel=n)
        except WireError as error:
            decoded = None
            kind = str(error).split(":")[0].rstrip("0123456789")[:30]
            refusals[kind] = refusals.get(kind, 0) + 1
        acc = accumulators[n]
        try:
            codec.decode_add(frame, acc, 2.0)
        except WireError:
            assert decoded is None
            assert acc.tobytes() == before[n], "decode_add changed its output and then refused"
        else:
            assert decoded is not None
            assert decoded.shape == (n,)
            accumulators[n] = np.arange(n, dtype=np.float32)
            decoded_frames += 1
        try:
            info = inspect(frame)
        except WireError:
            assert decoded is None, "inspect refuses what decode accepts"
        else:
            assert info.total_bytes == len(frame)
            assert decoded is None or (info.numel == n and info.crc_ok is not False)
            if info.numel > 2**20:
                continue
        # The header claims a small size, or is wrong.
        try:
            free = codec.decode(frame)
        except WireError:
            assert decoded is None
        else:
            assert decoded is None or free.tobytes() == decoded.tobytes()
    assert decoded_frames > FRAMES // 50, "some damage must leave the frame valid"
    assert len(refusals) >= 10, "every check of the decoder must be reached"


def test_split_frames_of_damaged_concatenations() -> None:
    mutators = [Mutator(name) for name in CODECS]
    rng = random.Random(SEED)
    whole = 0
    for _ in range(FRAMES):
        count = rng.randrange(5)
        parts = [
            rng.choice(mutator.valid)[2] if rng.random() < 0.8 else mutator.next()[2]
            for mutator in rng.choices(mutators, k=count)
        ]
        data = b"".join(parts)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data) + 1)] + rng.randbytes(rng.randrange(3))
        claimed = max(0, count + rng.choice([-1, 0, 0, 0, 1]))
        try:
            frames = split_frames(data, claimed)
        except WireError:
            continue
        whole += 1
        assert len(frames) == claimed
        assert b"".join(frame.tobytes() for frame in frames) == data
    assert whole > FRAMES // 10


def test_split_frames_gives_back_the_frames() -> None:
    frames = [frame for name in CODECS for _, _, frame in Mutator(name).valid]
    parts = split_frames(b"".join(frames), len(frames))
    assert [part.tobytes() for part in parts] == frames


# Where numel does not say how many elements are kept, the frame may truly be one of this number.
ANY_COUNT = ("adaq", "globaltopk")
CLAIMING = [spec for spec in SPECS if "(k=" not in spec and not spec.startswith(ANY_COUNT)]

CLAIM = """
import json, resource, struct, sys
import gradcomp, numpy as np
from decoder import crc32c

def frame_of(codec):
    body = bytearray(codec.encode(np.ones(16, np.float32))[:-4])
    struct.pack_into("<Q", body, 16, 2**30 - 1)
    return bytes(body) + struct.pack("<I", crc32c(body))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

codecs = [gradcomp.get_codec(spec) for spec in json.load(sys.stdin)]
frames = [frame_of(codec) for codec in codecs]
before = peak()
for codec, frame in zip(codecs, frames):
    outcomes = []
    for attempt in (
        lambda: codec.decode(frame),
        lambda: codec.decode(frame, numel=16),
        lambda: codec.decode_add(frame, np.zeros(16, np.float32)),
    ):
        try:
            attempt()
        except gradcomp.WireError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("decoded")
    print(json.dumps([outcomes, peak() - before]), flush=True)
"""


@pytest.fixture(scope="module")
def claims() -> dict[str, tuple[list[str], int]]:
    """For every spec, the outcomes of three attempts to decode, and the KiB by which the memory in
    use has grown. All are made in one process; no other test has raised its peak."""
    done = subprocess.run(
        [sys.executable, "-c", CLAIM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        input=json.dumps(CLAIMING),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{CLAIMING[len(lines) :][:1]}: {done.stderr}"
    return {spec: tuple(json.loads(line)) for spec, line in zip(CLAIMING, lines, strict=True)}


@pytest.mark.parametrize("spec", CLAIMING)
def test_a_claim_of_2_to_the_30_elements_costs_no_memory(
    spec: str, claims: dict[str, tuple[list[str], int]]
) -> None:
    outcomes, grown = claims[spec]
    assert len(outcomes) == 3
    assert "decoded" not in outcomes
    assert grown < 16 * 1024, f"{grown} KiB more memory in use"


def _spec_of_few(name: str) -> str:
    """The codec with its parameters for the fewest elements."""
    for parameters in ("(k=10)", "(ratio=1e-6)", ""):
        with suppress(SpecError):
            gradcomp.get_codec(f"{name}{parameters}")
            return f"{name}{parameters}"
    raise AssertionError(name)


def test_the_codecs_of_short_frames_are_those_of_the_security_policy() -> None:
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    listed = text.partition("allocates 4 GiB:")[2].partition("Pass `numel=`")[0]
    zeros = np.zeros(2**20, np.float32)
    short = {
        name
        for name in gradcomp.list_codecs()
        if gradcomp.get_codec(_spec_of_few(name)).encode(zeros).nbytes < zeros.size / 800
    }
    assert set(re.findall("`([a-z0-9_]+)`", listed)) - {"k", "ratio"} == short
