"""Spec strings: grammar, canonical form, and errors with their remedies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gradcomp
from gradcomp.codec.spec import ParamInfo, StageInfo, parse, stages
from gradcomp.errors import GradcompError, SpecError
from gradcomp.exchange.select import ALGORITHMS as ALGORITHM_CLASSES

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "spec-grammar.md").read_text()
LAWS = settings(deadline=None, derandomize=True, database=None, max_examples=200)


def error_of(spec: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(spec)
    return str(caught.value)


# --------------------------------------------------------------------------- the result of parse


def test_a_spec_with_a_memory() -> None:
    spec = parse(" residual ( gamma = 2 ) | topk( ratio=.01 ) ")
    assert spec.canonical == "residual(beta=1.0,gamma=2.0)|topk(ratio=0.01,values=fp32)"
    assert str(spec) == spec.canonical
    assert spec.codec == "topk(ratio=0.01,values=fp32)"
    assert spec.stateful
    memory, codec = spec.stages
    assert spec.memory is memory
    assert (memory.name, memory.kind, memory.params) == (
        "residual",
        "memory",
        {"beta": 1.0, "gamma": 2.0, "lr": "ignore", "average": 0.0, "limit": 0.0, "reset_every": 0},
    )
    assert memory.text == "residual(beta=1.0,gamma=2.0)"
    assert (codec.name, codec.kind) == ("topk", "codec")
    assert codec.params == {"ratio": 0.01, "values": "fp32"}


def test_a_codec_alone() -> None:
    spec = parse("fp16")
    assert spec.canonical == spec.codec == "fp16(overflow=inf)"
    assert spec.memory is None
    assert not spec.stateful


def test_values_have_their_types() -> None:
    (stage,) = parse("topk(k=7)").stages
    assert stage.params == {"k": 7, "values": "fp32"}
    assert type(stage.params["k"]) is int
    (stage,) = parse("topk(ratio=1)").stages
    assert type(stage.params["ratio"]) is float


def test_equal_behaviour_makes_equal_specs() -> None:
    assert parse("fp16") == parse("fp16( overflow = inf )")
    assert hash(parse("fp16")) == hash(parse("fp16(overflow=inf)"))
    assert parse("fp16") != parse("fp16(overflow=saturate)")


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("identity()", "identity"),
        ("topk(ratio=0.00001)", "topk(ratio=1e-05,values=fp32)"),
        ("topk(ratio=1e-5)", "topk(ratio=1e-05,values=fp32)"),
        ("topk(ratio=1)", "topk(ratio=1.0,values=fp32)"),
        ("topk(ratio=+0.5)", "topk(ratio=0.5,values=fp32)"),
        ("topk(k=+007)", "topk(k=7,values=fp32)"),
        ("residual(gamma=1e-6)|bf16", "residual(beta=1.0,gamma=1e-06)|bf16"),
        ("residual(gamma=5.)|bf16", "residual(beta=1.0,gamma=5.0)|bf16"),
        ("residual(beta=-0)|bf16", "residual(beta=0.0,gamma=1.0)|bf16"),
        ("residual(beta=-0.0e5)|bf16", "residual(beta=0.0,gamma=1.0)|bf16"),
        ("topk(ratio=0.1000000000000000055)", "topk(ratio=0.1,values=fp32)"),
        ("topk(k=1073741823)|auto", "topk(k=1073741823,values=fp32)"),
    ],
)
def test_canonical_form(written: str, canonical: str) -> None:
    assert parse(written).canonical == canonical
    assert parse(canonical).canonical == canonical


def test_the_documents_canonical_forms() -> None:
    _, _, section = DOCUMENT.partition("## Canonical form")
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", section, re.MULTILINE)
    assert len(rows) == 4
    for written, canonical in rows:
        assert parse(written.replace(r"\|", "|")).canonical == canonical.replace(r"\|", "|")


# --------------------------------------------------------------------------------------- properties


def values_of(param: ParamInfo) -> st.SearchStrategy[str]:
    if param.type in ("choice", "boolean"):
        return st.sampled_from(param.range.split("|"))
    low, high = param.range.strip("([])").split(", ")
    if param.type == "integer":
        return st.integers(int(low), int(high)).map(str)
    numbers = st.floats(
        float(low),
        None if high == "inf" else float(high),
        exclude_min=param.range.startswith("("),
        allow_infinity=False,
        allow_nan=False,
    )
    return st.one_of(numbers.map(repr), numbers.map("{:.12e}".format))


@st.composite
def stage_texts(draw: st.DrawFn, stage: StageInfo) -> str:
    one = draw(st.sampled_from(stage.exactly_one_of)) if stage.exactly_one_of else None
    given_params = []
    for param in stage.params:
        if param.name == one or (param.name not in stage.exactly_one_of and draw(st.booleans())):
            given_params.append((param.name, draw(values_of(param))))
    blank = st.sampled_from(["", "", " ", "  "])
    inside = ",".join(
        f"{draw(blank)}{name}{draw(blank)}={draw(blank)}{value}{draw(blank)}"
        for name, value in draw(st.permutations(given_params))
    )
    text = f"{draw(blank)}{stage.name}{draw(blank)}"
    return f"{text}({inside}){draw(blank)}" if inside or draw(st.booleans()) else text


MEMORIES = [stage for stage in stages() if stage.kind == "memory"]
CODECS = [stage for stage in stages() if stage.kind == "codec"]
ALGORITHMS = [stage for stage in stages() if stage.kind == "algorithm"]


@st.composite
def specs(draw: st.DrawFn) -> str:
    memory = draw(st.sampled_from([None, *MEMORIES]))
    codec = draw(stage_texts(draw(st.sampled_from([*CODECS, *ALGORITHMS]))))
    return codec if memory is None else f"{draw(stage_texts(memory))}|{codec}"


@LAWS
@given(text=specs())
def test_canonical_is_a_fixed_point(text: str) -> None:
    try:
        spec = parse(text)
    except SpecError:
        # Some codecs and algorithms refuse parameters that make no sense together or after a
        # memory.
        assume(
            "unbiased" not in text
            and "sketch" not in text
            and "one" not in text
            and "eden" not in text
            and "l2" not in text
            and "momentum_correction" not in text
            and "_rate" not in text
            and "error" not in text
            and not any(one.name in text for one in ALGORITHMS)
        )
        raise
    again = parse(spec.canonical)
    assert again.canonical == spec.canonical
    assert again == spec
    assert [stage.params for stage in again.stages] == [stage.params for stage in spec.stages]
    assert " " not in spec.canonical
    if spec.algorithm is None:
        assert gradcomp.get_codec(spec.codec).spec == spec.codec
    for stage in spec.stages:
        assert list(stage.params) == sorted(stage.params)


PIECES = ["topk", "fp16", "residual", "ratio", "k", "(", ")", "=", ",", "|", "0.1", "5", " ", "-"]


@LAWS
@given(text=st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_is_a_spec_or_a_spec_error(text: str) -> None:
    try:
        assert parse(parse(text).canonical) == parse(text)
    except SpecError as error:
        what, shown, caret = str(error).split("\n")
        assert what
        assert shown.startswith("  ")
        assert re.fullmatch(" *\\^", caret)
        assert len(caret) <= len(shown) + 1


# ------------------------------------------------------------------------------------------ errors

LIST = f"`gradcomp list` shows all {len(stages())} stages"

ERRORS = [
    # spec, part of the message, column of the caret
    ("", "expected the name of a stage (lower case), as in 'topk(ratio=0.01)'", 0),
    ("|fp16", "expected the name of a stage", 0),
    ("fp16|", "expected the name of a stage", 5),
    ("Fp16", f"expected the name of a stage (lower case): did you mean 'fp16'? {LIST}", 0),
    ("residual|TopK(k=1)", "expected the name of a stage (lower case): did you mean 'topk'?", 9),
    ("fp15", f"unknown stage 'fp15': did you mean 'fp16'? {LIST}", 0),
    ("zstd_level_nine", f"unknown stage 'zstd_level_nine': {LIST}", 0),
    ("fp16;", "expected '|' and another stage, or the end", 4),
    ("fp16 bf16", "expected '|' and another stage, or the end", 5),
    ("fp16|bf16", "'bf16' (a codec) cannot follow 'fp16' (a codec): the order is memory, ", 5),
    ("fp16|residual", "'residual' (a memory) cannot follow 'fp16' (a codec)", 5),
    ("residual|residual|fp16", "'residual' (a memory) cannot follow 'residual' (a memory)", 9),
    ("fp16|rice", "'rice' codes indices, and 'fp16' has no symbols for a coder", 5),
    ("rice", "'rice' is a lossless coder: it follows a codec, as in ", 0),
    ("powersgd|rice", "'rice' cannot follow 'powersgd': an algorithm stands without transform", 9),
    ("fp16|powersgd", "codec and coder, as in 'powersgd(rank=4)'", 5),
    ("rotate|powersgd", "'powersgd' cannot follow 'rotate': an algorithm stands", 7),
    ("powersgd|powersgd", "'powersgd' cannot follow 'powersgd': an algorithm stands", 9),
    (
        "residual|powersgd(rank=1)",
        "rank=1,start_step=100,values=fp32,variant=paper,warm_start=true)': it keeps its own "
        "error feedback; leave out the memory",
        9,
    ),
    ("rotate|topk(k=1)", "'topk' after 'rotate' makes no sense", 7),
    ("qsgd|rice", "'rice' codes indices, and 'qsgd' has levels", 5),
    ("residual", "a codec must follow the memory 'residual', as in 'residual|topk(ratio=0.01)'", 8),
    ("topk", "'topk' needs exactly one of 'ratio', 'k', as in 'topk(ratio=0.01)'", 0),
    ("residual|topk()", "'topk' needs exactly one of 'ratio', 'k'", 9),
    ("topk(k=1,ratio=0.1)", "'topk' needs exactly one of 'ratio', 'k'", 0),
    (
        "topk(rati=1)",
        "unknown parameter 'rati' of 'topk': did you mean 'ratio'? known: ratio, k, values",
        5,
    ),
    ("fp16(zzzzzzz=1)", "unknown parameter 'zzzzzzz' of 'fp16': known: overflow", 5),
    ("identity(k=1)", "unknown parameter 'k' of 'identity': there are none", 9),
    ("topk(0.01)", "a value needs the name of its parameter: 'topk(ratio=0.01)'", 5),
    ("topk(10)", "a value needs the name of its parameter: 'topk(k=10)'", 5),
    ("residual|powersgd( 2)", "a value needs the name of its parameter: 'powersgd(rank=2)'", 19),
    ("fp16(3)", "unknown parameter '3' of 'fp16': known: overflow", 5),
    ("residual|none", "'identity' is the stage without compression", 9),
    ("topk(k=1,k=2)", "'k' is given twice", 9),
    ("topk(", "expected a parameter as key=value (lower case), or ')'", 5),
    ("topk(K=1)", "expected a parameter as key=value (lower case), or ')'", 5),
    ("topk(k=1,)", "expected a parameter as key=value (lower case), or ')'", 9),
    ("topk(k", "expected '=' after 'k'", 6),
    ("topk(k:1)", "expected '=' after 'k'", 6),
    ("topk(k=1", "expected ',' or ')'", 8),
    ("topk(k=1;", "expected ',' or ')'", 8),
    ("topk(k=)", "topk's 'k' must be a whole number in [1, 1073741823]", 7),
    ("topk(k=0)", "topk's 'k' must be a whole number in [1, 1073741823], not '0'", 7),
    ("topk(k=1073741824)", "in [1, 1073741823], not '1073741824'", 7),
    ("topk(k=99999999999999999999)", "in [1, 1073741823], not '99999999999999999999'", 7),
    ("topk(k=0.5)", "topk's 'k' must be a whole number in [1, 1073741823], not '0.5'", 7),
    ("topk(k=many)", "not 'many'", 7),
    ("topk(ratio=0)", "topk's 'ratio' must be a number in (0, 1], not '0'", 11),
    ("topk(ratio=1.0000001)", "must be a number in (0, 1], not '1.0000001'", 11),
    ("topk(ratio=-0.1)", "must be a number in (0, 1], not '-0.1'", 11),
    ("topk(ratio=+-0.1)", "must be a number in (0, 1], not '+-0.1'", 11),
    ("topk(ratio=nan)", "must be a number in (0, 1], not 'nan'", 11),
    ("topk(ratio=1e-400)", "must be a number in (0, 1], not '1e-400'", 11),
    ("topk(ratio=0x1p-3)", "must be a number in (0, 1], not '0x1p-3'", 11),
    ("topk(ratio=1%)", "expected ',' or ')'", 12),
    ("residual(beta=1.1)|fp16", "residual's 'beta' must be a number in [0, 1], not '1.1'", 14),
    (
        "residual(gamma=inf)|fp16",
        "residual's 'gamma' must be a number in [1e-06, 1e+06], not 'inf'",
        15,
    ),
    ("fp16(overflow=clip)", "fp16's 'overflow' must be one of inf|saturate, not 'clip'", 14),
    ("fp16(overflow=)", "fp16's 'overflow' must be one of inf|saturate", 14),
    ("fp16(overflow=in)", "fp16's 'overflow' must be one of inf|saturate, not 'in'", 14),
    ("fp16\t", "only printable ASCII is allowed here", 4),
    ("fp16\0", "only printable ASCII is allowed here", 4),
]


@pytest.mark.parametrize(("spec", "says", "column"), ERRORS)
def test_errors_say_what_where_and_what_is_allowed(spec: str, says: str, column: int) -> None:
    what, shown, caret = error_of(spec).split("\n")
    assert what.startswith(says) or says in what
    assert shown == "  " + re.sub("[^ -~]", "?", spec)
    assert caret == "  " + " " * column + "^"


def test_text_beyond_ascii_is_shown_byte_by_byte() -> None:
    assert error_of("fp16é").split("\n")[1:] == ["  fp16??", "      ^"]
    assert LIST in error_of("fp\udcff"), "as from an argument that is not UTF-8"


def test_a_spec_that_is_too_long() -> None:
    longest = "fp16".ljust(1024)
    assert parse(longest).canonical == "fp16(overflow=inf)"
    expected = "the spec has 1025 characters; at most 1024 are allowed"
    assert error_of(longest + " ") == expected


@pytest.mark.parametrize("spec", [None, 5, b"fp16", ["fp16"], {"fp16": 1}])
@pytest.mark.parametrize("reader", [parse, gradcomp.get_codec, gradcomp.explain])
def test_what_is_no_string_is_a_type_error(reader: object, spec: object) -> None:
    with pytest.raises(TypeError, match=f"a spec is a string .* not of type {type(spec).__name__}"):
        reader(spec)


def test_get_codec_refuses_a_memory_and_names_the_codec_part() -> None:
    with pytest.raises(SpecError) as caught:
        gradcomp.get_codec("residual(beta=0.9)|topk(k=5)")
    message = str(caught.value)
    assert (
        "'residual(beta=0.9,gamma=1.0)|topk(k=5,values=fp32)' has a memory ('residual')" in message
    )
    assert (
        "give the codec part alone, 'topk(k=5,values=fp32)', or use the whole spec in a Pipeline"
        in message
    )


@pytest.mark.parametrize("name", gradcomp.list_algorithms())
def test_an_algorithm_is_no_codec(name: str) -> None:
    (stage,) = (stage for stage in ALGORITHMS if stage.name == name)
    spec = parse(stage.example)
    assert (spec.algorithm, spec.stateful) == (spec.stages[-1], True)
    assert name in ALGORITHM_CLASSES
    with pytest.raises(SpecError, match="an algorithm of several phases, which only aggregators"):
        gradcomp.get_codec(stage.example)
    assert "size: " not in gradcomp.explain(stage.example)
    assert f"algorithm {name}: {stage.summary}" in gradcomp.explain(stage.example)


def test_spec_error_is_a_value_error_of_gradcomp() -> None:
    assert issubclass(SpecError, GradcompError)
    assert issubclass(SpecError, ValueError)
    assert gradcomp.SpecError is SpecError


MEANT = {
    "PowerSGD": "powersgd",
    "TopK": "topk",
    "Top-K": "topk",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "ef": "residual",
    "error_feedback": "residual",
    "fp32": "identity",
    "None": "identity",
    "signsgd": "sign' or 'sign(scale=one)' or 'signsgd_mv",
    "EFSignSGD": "residual|sign",
    "TernGrad": "terngrad",
    "1bit": "onebit",
    "topkk": "topk",
}


@pytest.mark.parametrize("word", MEANT)
def test_words_of_other_libraries_and_papers(word: str) -> None:
    for before in ("", "residual|"):
        problem, shown, caret = error_of(f"{before}{word}(k=1)").split("\n")
        assert f": did you mean '{MEANT[word]}'? {LIST}" in problem
        assert shown[caret.index("^") :].startswith(word)


def test_a_spec_error_stands_alone() -> None:
    """One traceback: the search for plug-ins does not show."""
    with pytest.raises(SpecError) as caught:
        parse("PowerSGD")
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def without_list(message: str) -> str:
    """The message without the number of stages, which grows."""
    return re.sub(r"all \d+ stages", "all stages", message)


def test_the_documents_errors_are_the_real_ones() -> None:
    _, _, section = DOCUMENT.partition("## Errors")
    blocks = [block.rstrip("\n") for block in re.findall(r"```\n(.*?)```", section, re.DOTALL)]
    pointed = [block for block in blocks if block.endswith("^")]
    for block in pointed:
        shown = block.split("\n")[1][2:].replace("??", "é")
        assert without_list(error_of(shown)) == without_list(block)
    others = [block for block in blocks if block not in pointed]
    assert others.pop(1) == error_of("x" * 1025)
    refused = []
    with pytest.raises(SpecError) as caught:
        parse("configs/dgc/wm5.yaml")
    assert others.pop(0) == str(caught.value)
    for spec in ("residual|fp16", "powersgd"):
        with pytest.raises(SpecError) as caught:
            gradcomp.get_codec(spec)
        refused.append(str(caught.value))
    assert others == refused


KINDS = [
    "unknown stage",
    "expected the name of a stage",
    "expected '|' and another stage",
    "cannot follow",
    "codes indices, and",
    "is a lossless coder",
    "makes no sense",
    "a codec must follow the memory",
    "it keeps its own error feedback",
    "unknown parameter",
    "a value needs the name of its parameter",
    "is the stage without compression",
    "must be a number in",
    "must be a whole number in",
    "must be one of",
    "needs exactly one of",
    "is given twice",
    "expected a parameter as key=value",
    "expected '=' after",
    "expected ',' or ')'",
    "only printable ASCII",
]


def test_the_document_shows_every_kind_of_error() -> None:
    _, _, section = DOCUMENT.partition("## Errors")
    seen = set()
    for spec, _, _ in ERRORS:
        (kind,) = (kind for kind in KINDS if kind in error_of(spec))
        seen.add(kind)
    assert seen == set(KINDS)
    assert [kind for kind in KINDS if kind not in section] == []


# ---------------------------------------------------------------------------------------- registry


def test_every_stage_is_documented_and_its_example_is_valid() -> None:
    for stage in stages():
        assert re.fullmatch("[a-z][a-z0-9_]*", stage.name)
        assert stage.summary
        assert stage.paper
        assert stage.nonfinite
        assert stage.name in re.findall("[a-z][a-z0-9_]*", stage.example)
        assert parse(stage.example)
        assert set(stage.exactly_one_of) <= {param.name for param in stage.params}
        for param in stage.params:
            assert param.doc
            assert param.range
            assert param.type in ("real", "integer", "boolean", "choice", "list")
            if param.name in stage.exactly_one_of:
                assert param.default is None


@pytest.mark.parametrize(
    ("preset", "second"), [("dgc", "sampled_topk"), ("chunk_dgc", "chunk_allreduce")]
)
def test_a_preset_takes_the_parameters_of_its_stages(preset: str, second: str) -> None:
    known = {row.name: {param.name: param for param in row.params} for row in stages()}
    for name, param in known[second].items():
        if name not in ("ratio", "k"):
            assert known[preset][name] == param
    for name, param in known["momentum_correction"].items():
        own = "momentum_masking" if name == "masking" else name
        assert known[preset][own].range == param.range
    *_, last = known[second]["values"].range.split("|")
    assert parse(f"{preset}(values={last})").stages[1].params["values"] == last


def test_codec_ids_are_unique_and_gradcomps_own() -> None:
    ids = [stage.id for stage in CODECS]
    assert len(set(ids)) == len(ids)
    assert all(1 <= codec_id < 0x8000 for codec_id in ids)
    assert all(stage.id == 0 for stage in [*MEMORIES, *ALGORITHMS])


def test_list_codecs_names_the_codecs_of_the_registry() -> None:
    assert gradcomp.list_codecs() == [stage.name for stage in CODECS]
    assert {"identity", "fp16", "bf16", "topk", "randomk"} <= set(gradcomp.list_codecs())
