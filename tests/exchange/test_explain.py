"""`gradcomp.explain`: a spec in words."""

from __future__ import annotations

import numpy as np
import pytest

import gradcomp
from gradcomp import SpecError, get_codec
from gradcomp.codec.spec import parse, stages
from gradcomp.exchange.explain import explain


def test_a_spec_with_memory_and_codec() -> None:
    lines = explain("residual|topk(ratio=0.01)").split("\n")
    assert lines[0] == "residual(beta=1.0,gamma=1.0)|topk(ratio=0.01,values=fp32)"
    text = "\n".join(lines)
    assert "memory residual: error feedback" in text
    assert "  beta = 1.0, in [0, 1]: weight of the residual" in text
    assert "codec topk: exactly the k elements of largest magnitude" in text
    assert "  ratio = 0.01, in (0, 1]: fraction of the elements that is kept" in text
    assert "  k = " not in text, "k was not given"
    assert "exchange: frames are all-gathered; every rank decodes all of them" in text
    (size,) = (line for line in lines if line.startswith("size: at most "))
    assert size.endswith(" bytes for 1000000 elements (78.8x smaller)")


def test_bytes_on_a_link_by_the_number_of_ranks() -> None:
    table = {}
    for line in explain("int8").splitlines():
        name, *cells = line.split() or [""]
        if line.startswith("  ") and len(cells) == 5 and name in ("uncompressed", "gather", "sra"):
            table[name] = [float(cell) for cell in cells]
    assert table["uncompressed"] == [4, 6, 7.5, 7.88, 7.97]
    assert table["gather"] == pytest.approx([1.008, 3.024, 15.12, 63.5, 257], rel=0.01)
    assert table["sra"] == pytest.approx([1.008, 1.512, 1.89, 1.985, 2.02], rel=0.01)
    assert "pass a rank's link" not in explain("identity")


def test_the_pattern_by_the_number_of_ranks() -> None:
    assert (
        "decodes all of them\n  from 6 ranks on sra, as a gather passes 76% of the uncompressed "
        "bytes\nallowed: gather, sra, two_level\n"
    ) in explain("int8")
    assert "  from 8 ranks on sra, as it passes 25.0% of a gather's bytes" in explain("int4")
    assert "ranks on" not in explain("fp16")
    assert "ranks on" not in explain("identity")


@pytest.mark.parametrize(
    ("spec", "exchange"),
    [
        ("identity", "the gradient itself is all-reduced"),
        ("residual|identity", "payloads are all-reduced and decoded once"),
        ("fp16", "payloads are all-reduced and decoded once"),
        ("randomk(k=5)", "payloads are all-reduced and decoded once"),
        ("bf16", "frames are all-gathered"),
    ],
)
def test_exchange_patterns(spec: str, exchange: str) -> None:
    assert f"exchange: {exchange}" in explain(spec)


@pytest.mark.parametrize("name", gradcomp.list_codecs())
def test_every_codec_is_explained_with_a_true_size(name: str) -> None:
    (stage,) = (stage for stage in stages() if stage.name == name)
    text = explain(stage.example)
    assert text.startswith(parse(stage.example).canonical + "\n")
    for part in (stage.summary, stage.paper, stage.nonfinite):
        assert part in text
    claimed = int(text.rsplit("size: at most ", 1)[1].split()[0])
    x = np.ones(1_000_000, np.float32)
    codec = get_codec(stage.example)
    sent = codec.encode_payload(x) if "summable" in codec.caps else codec.encode(x)
    assert sent.nbytes <= claimed


def test_a_wrong_spec_is_a_spec_error() -> None:
    with pytest.raises(SpecError, match="did you mean 'topk'"):
        explain("topc(k=3)")


@pytest.mark.parametrize(
    "spec", ["residual|topk(ratio=0.01)", "topk(ratio=ramp(from=0.25,to=0.01,steps=8))", "dion"]
)
def test_text_and_parsed_specs_have_the_same_description(spec: str) -> None:
    assert explain(parse(spec)) == explain(spec)
