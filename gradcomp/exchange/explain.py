"""The description of a spec in words."""

from __future__ import annotations

from collections.abc import Sequence

from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import Spec, parse, stages
from gradcomp.exchange.automatic import spec_link_bytes
from gradcomp.exchange.link import dense_link_bytes
from gradcomp.exchange.select import ALGORITHMS, EXCHANGES, choices_by_ranks, exchange_refusal

__all__ = ["explain"]

_EXCHANGE = {
    "dense": "the gradient itself is all-reduced (the engine's own path)",
    "reduce": "payloads are all-reduced and decoded once",
    "gather": "frames are all-gathered; every rank decodes all of them",
}
_NUMEL = 1_000_000
_RANKS = (2, 4, 16, 64, 256)


def explain(spec: str | Spec) -> str:
    """Describe a spec: canonical form, stages, parameters, exchange pattern, size, bytes on a link.

    Raises:
        SpecError: the spec is wrong.
    """
    parsed = spec if isinstance(spec, Spec) else parse(spec)
    rows = {row.name: row for row in stages()}
    lines = [parsed.canonical]
    for stage in parsed.stages:
        row = rows[stage.name]
        lines += ["", f"{stage.kind} {stage.name}: {row.summary}"]
        for param in row.params:
            if param.name in stage.params:
                value = stage.params[param.name]
                lines.append(f"  {param.name} = {value}, in {param.range}: {param.doc}")
        lines += [f"  NaN and Inf: {row.nonfinite}", f"  source: {row.paper}"]
    if parsed.algorithm is not None:
        return "\n".join([*lines, "", f"exchange: {ALGORITHMS[parsed.algorithm.name].exchange}"])
    now = parsed.at(0, 0)
    if parsed.scheduled:
        lines += ["", "in the first step:", str(now)]
    codec = get_codec(now.codec)
    (_, first), *others = choices_by_ranks(parsed)
    pattern = first.pattern
    size = codec.max_encoded_size(_NUMEL) if pattern == "gather" else codec.max_payload_size(_NUMEL)
    allowed = [
        exchange
        for exchange in EXCHANGES[1:]
        if "(" not in exchange and not exchange_refusal(parsed, exchange)
    ]
    lines += [
        "",
        f"exchange: {_EXCHANGE[pattern]}",
        *(
            f"  from {ranks} ranks on {choice.pattern}, as {choice.reason}"
            for ranks, choice in others
        ),
        *([] if pattern == "dense" else [f"allowed: {', '.join(allowed)}"]),
        f"size: at most {size} bytes for {_NUMEL} elements ({4 * _NUMEL / size:.1f}x smaller)",
    ]
    if pattern != "dense":
        lines.append("tensors of 2^30 elements and more are averaged in pieces of at most 2^28")
        patterns = [exchange for exchange in allowed if exchange != "two_level"]
        lines += ["", *_link_table(now, patterns)]
    return "\n".join(lines)


def _link_table(spec: Spec, patterns: Sequence[str]) -> list[str]:
    """The bytes that pass a rank's link, by exchange pattern and number of ranks."""
    rows = [("uncompressed", [dense_link_bytes(4 * _NUMEL, ranks) for ranks in _RANKS])]
    for pattern in patterns:
        rows.append((pattern, [spec_link_bytes(spec, pattern, ranks, _NUMEL) for ranks in _RANKS]))
    return [
        "MB that pass a rank's link for them, by the number of ranks:",
        "  " + " " * 16 + "".join(f"{ranks:>10}" for ranks in _RANKS),
        *(
            f"  {name:16}" + "".join(f"{1e-6 * nbytes:>10.3g}" for nbytes in row)
            for name, row in rows
        ),
    ]
