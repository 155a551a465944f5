"""The description of a spec in words."""

from __future__ import annotations

from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import parse, stages
from gradcomp.exchange.select import ALGORITHMS, EXCHANGES, exchange_pattern, exchange_refusal

__all__ = ["explain"]

_EXCHANGE = {
    "dense": "the gradient itself is all-reduced (the engine's own path)",
    "reduce": "payloads are all-reduced and decoded once",
    "gather": "frames are all-gathered; every rank decodes all of them",
}
_NUMEL = 1_000_000


def explain(spec: str) -> str:
    """Describe a spec: canonical form, stages, parameters, exchange pattern, and size in bytes.

    Raises:
        SpecError: the spec is wrong.
    """
    parsed = parse(spec)
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
    if parsed.scheduled:
        lines += ["", "in the first step:", str(parsed.at(0, 0))]
    codec = get_codec(parsed.first_codec)
    pattern = exchange_pattern(parsed)
    size = codec.max_encoded_size(_NUMEL) if pattern == "gather" else codec.max_payload_size(_NUMEL)
    allowed = [
        exchange
        for exchange in EXCHANGES[1:]
        if "(" not in exchange and not exchange_refusal(parsed, exchange)
    ]
    lines += [
        "",
        f"exchange: {_EXCHANGE[pattern]}",
        *([] if pattern == "dense" else [f"allowed: {', '.join(allowed)}"]),
        f"size: at most {size} bytes for {_NUMEL} elements ({4 * _NUMEL / size:.1f}x smaller)",
    ]
    return "\n".join(lines)
