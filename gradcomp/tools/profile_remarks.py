"""Remarks on a profile: whether compression pays, and the remedies for slow phases."""

from __future__ import annotations

from gradcomp.processors import processors
from gradcomp.tools.profile_model import ModelProfile

__all__ = ["remarks_on"]

LARGE_SHARE = 0.4
"""Share of a step from which a phase gets a remark."""


def remarks_on(result: ModelProfile) -> list[str]:
    """Sentences on what to change, the most important first."""
    return [*_worth_it(result), *(text for _, text in sorted(_bounds(result), reverse=True))]


def _worth_it(result: ModelProfile) -> list[str]:
    if result.workers == 1:
        return ["one worker sends nothing: give --workers the size of the job"]
    compressed, dense = result.step, result.uncompressed
    saved = 8 * (dense.link_bytes - compressed.link_bytes)
    if saved <= 0:
        return [
            "no fewer bytes pass the link than uncompressed: another spec, or compress.exchange: "
            "sra (its volume does not grow with the ranks)"
        ]
    limit = f"it pays on links below {_rate_text(saved / result.computed_seconds)}"
    uncompressed = f"{1e3 * dense.seconds:.1f} ms of no compression"
    gain = compressed.times_as_fast_as(dense)
    if gain <= 1:
        return [
            f"slower than the {uncompressed} on this link; {limit}: fp16, or compress.policy: "
            "auto, which measures both"
        ]
    return [f"{gain:.1f} times as fast as the {uncompressed} on this link; {limit}"]


def _bounds(result: ModelProfile) -> list[tuple[float, str]]:
    """Remarks on phases with a large share of the step, each with the share."""
    remarks = []
    for phase, seconds in result.step.stages.items():
        share = seconds / result.step.seconds
        if share >= LARGE_SHARE:
            what = f"{_PHASE_TEXTS[phase]} takes {share:.0%} of the step"
            remarks.append((share, f"{what}: {'; '.join(_remedies(phase, result))}"))
    return remarks


_PHASE_TEXTS = {
    "compensate": "keeping memories",
    "encode": "encoding",
    "decode": "decoding",
    "copy": "copying, with Python,",
    "wire": "the wire",
}


def _remedies(phase: str, result: ModelProfile) -> list[str]:
    """Remedies for a phase with a large share."""
    slowest = result.rules[0].rule
    gathered = result.sent_bytes.get("allgather", 0.0) > 0.5 * sum(result.sent_bytes.values())
    remedies = []
    cores = processors()
    if phase in ("encode", "decode") and result.threads < cores:
        remedies.append(f"GRADCOMP_THREADS={cores} (now {result.threads})")
    if phase in ("decode", "wire") and gathered and result.workers > 2:
        remedies.append("compress.exchange: sra, in which a rank decodes its own part of all")
    if phase == "compensate":
        remedies.append("the memory residual, which the core applies while it encodes")
    if phase == "encode":
        remedies.append(
            f"a faster codec for {slowest} (gradcomp bench --all; sampled_topk for topk)"
        )
    if phase == "decode":
        remedies.append(f"a spec for {slowest} that decodes faster (gradcomp bench --all)")
    if phase == "wire":
        remedies.append("a spec that sends less")
    if phase == "copy":
        remedies.append(
            f"fewer than the {result.requests:.0f} requests of a step, by a larger "
            "compress.bucket_bytes"
        )
    return remedies


def _rate_text(bits_per_second: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.3g} {unit}"
    return f"{bits_per_second / 1e3:.3g} kbit/s"
