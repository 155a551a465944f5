"""Golden vectors: the encoder makes the stored bytes, and both decoders read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import decoder
import numpy as np
import pytest

import gradcomp
from golden import make_golden
from golden.worked_examples import examples
from gradcomp import DecodeItem, _core, decode_batch_add

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "wire-format.md"
CODECS = gradcomp.list_codecs()


def cases_of(codec_name: str) -> list[dict[str, Any]]:
    path = make_golden.VECTORS / f"{codec_name}.json"
    if not path.exists():
        pytest.fail(f"no golden vectors: run scripts/golden/make_golden.py {codec_name}")
    golden = json.loads(path.read_text())
    assert golden["codec"] == codec_name
    cases: list[dict[str, Any]] = golden["cases"]
    return cases


def floats(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), "<f4")


def call_of(case: dict[str, Any]) -> dict[str, int]:
    return {key: case[key] for key in ("seed", "step", "tensor_id")}


@pytest.mark.parametrize("codec_name", CODECS)
def test_the_vectors_cover_the_sizes_and_the_special_values(codec_name: str) -> None:
    cases = cases_of(codec_name)
    assert {0, 1, 7, 64, 1000} <= {floats(case["input"]).size for case in cases}
    values = np.concatenate([floats(case["input"]) for case in cases])
    magnitude = values.view(np.uint32) & 0x7FFFFFFF
    assert np.isnan(values).any()
    assert np.isposinf(values).any()
    assert np.isneginf(values).any()
    assert ((values == 0) & np.signbit(values)).any()
    assert ((magnitude > 0) & (magnitude < 0x00800000)).any()
    assert len({case["spec"] for case in cases}) >= len(make_golden.SPECS.get(codec_name, "1"))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("level", _core.simd_levels())
@pytest.mark.parametrize("codec_name", CODECS)
def test_the_encoder_makes_the_golden_frames(codec_name: str, level: str, threads: int) -> None:
    _core.set_simd_level(level)
    _core.set_thread_count(threads)
    for case in cases_of(codec_name):
        codec = gradcomp.get_codec(case["spec"])
        assert codec.name == codec_name
        assert codec.spec == case["spec"]
        x = floats(case["input"]).reshape(case.get("shape", -1))
        if "basis" in case:
            frame, _ = make_golden.encode_with(codec, x, call_of(case), floats(case["basis"]))
        else:
            frame = codec.encode(x, **call_of(case))
        assert frame.tobytes().hex() == case["frame"], case["name"]


@pytest.mark.parametrize("level", _core.simd_levels())
@pytest.mark.parametrize("codec_name", CODECS)
def test_the_core_decodes_the_golden_frames(codec_name: str, level: str) -> None:
    _core.set_simd_level(level)
    for case in cases_of(codec_name):
        codec = gradcomp.get_codec(case["spec"])
        frame = np.frombuffer(bytes.fromhex(case["frame"]), np.uint8)
        if "basis" in case:
            decoded = np.zeros(floats(case["input"]).size, np.float32)
            one = DecodeItem("golden", codec, [frame], decoded, floats(case["basis"]))
            decode_batch_add([one])
        else:
            decoded = codec.decode(frame)
        assert decoded.tobytes().hex() == case["decoded"], case["name"]


@pytest.mark.parametrize("codec_name", CODECS)
def test_the_independent_decoder_decodes_the_golden_frames(codec_name: str) -> None:
    for case in cases_of(codec_name):
        frame = bytes.fromhex(case["frame"])
        decoded = decoder.decode(frame, case["spec"], bytes.fromhex(case.get("basis", "")))
        assert decoded.tobytes().hex() == case["decoded"], case["name"]
        fields = decoder.Frame.read(frame)
        assert fields.crc is not None, "an encoder always adds a CRC"
        if fields.stream is not None:
            assert fields.stream == decoder.stream_key(**call_of(case))


# The worked examples of the document -----------------------------------------------------------


def document_examples() -> dict[str, str]:
    """The code blocks of the worked examples, by name of the codec."""
    _, _, section = DOCUMENT.read_text().partition("\n## Worked examples\n")
    found = re.findall(r"^### Frame of (\w+)\n\n```\n(.*?)```$", section, re.MULTILINE | re.DOTALL)
    assert len(found) == section.count("### Frame of ")
    return dict(found)


def test_every_codec_has_a_worked_example() -> None:
    assert list(document_examples()) == CODECS


@pytest.mark.parametrize("codec_name", CODECS)
def test_a_worked_example_is_what_the_encoder_makes(codec_name: str) -> None:
    head, _, table = document_examples()[codec_name].partition("\n\n")
    given = dict(line.split(maxsplit=1) for line in head.splitlines())
    call = {key: int(value) for key, value in re.findall(r"(\w+) (\d+)", given["call"])}
    x = np.array(given["input"].split(), np.float32)
    frame = b""
    for line in table.splitlines():
        offset, hexadecimal = re.match(r" *(\d+)  ((?:[0-9A-F]{2}(?: |$))+)", line).groups()
        assert int(offset) == len(frame), line
        frame += bytes.fromhex(hexadecimal)
    codec = gradcomp.get_codec(given["spec"])
    assert codec.spec == given["spec"]
    assert codec.encode(x, **call).tobytes() == frame
    output = np.array(given["output"].split(), np.float32)
    np.testing.assert_array_equal(codec.decode(frame), output, strict=True)
    np.testing.assert_array_equal(decoder.decode(frame, given["spec"]), output, strict=True)


def test_the_examples_are_what_the_script_prints() -> None:
    _, _, section = DOCUMENT.read_text().partition("\n## Worked examples\n")
    assert examples(CODECS) == section.strip()


# The script --------------------------------------------------------------------------------------


def test_vectors_are_not_overwritten_without_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_golden, "VECTORS", tmp_path)
    make_golden.write(["identity"], force=False)
    written = (tmp_path / "identity.json").read_text()
    (tmp_path / "identity.json").write_text("changed")
    with pytest.raises(SystemExit, match=r"identity\.json.*--force"):
        make_golden.write(["bf16", "identity"], force=False)
    assert (tmp_path / "identity.json").read_text() == "changed"
    assert not (tmp_path / "bf16.json").exists()
    make_golden.write(["identity"], force=True)
    assert (tmp_path / "identity.json").read_text() == written


def test_the_script_names_unknown_codecs() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "golden" / "make_golden.py", "topk", "tokp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no codec is called tokp; known: identity, " in done.stderr


def test_the_script_wants_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_golden.py"])
    with pytest.raises(SystemExit) as ended:
        make_golden.main()
    assert ended.value.code == 2
