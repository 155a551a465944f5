"""The reference implementation's cases of PowerSGD: names, specs, and initial factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.reference import Array

LIBRARY = [f"powersgd-0{number}" for number in range(1, 6)]
PAPER = [f"powersgd-rankk-0{number}" for number in range(1, 4)]


def vectors(factor: Array) -> Array:
    """The reference's factor, [n, rank], as the state has it."""
    return np.ascontiguousarray(factor.T, np.float32).reshape(-1)


def library_spec(config: dict[str, Any], orthogonalization: str) -> str:
    return (
        f"powersgd(rank={config['rank']},iters_per_step={config['num_iters_per_step']},"
        f"min_compression_rate={config.get('min_compression_rate', 0)},"
        f"start_step={config.get('start_compressing_after_num_steps', 0)},"
        f"orthogonalization={orthogonalization},variant=library)"
    )


def initial_factors(about: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Any]:
    """The state's factors, from the reference's flat buffers, which hold groups of equal shapes."""
    factors: dict[str, Any] = {"powersgd_p": {}, "powersgd_q": {}}
    for kind, buffer, side in (("powersgd_p", "p_init", 0), ("powersgd_q", "q_init", 1)):
        at = 0
        for group in about["config"]["groups"]:
            n, rank = group["matrix_shape"][side], group["rank"]
            for name in group["tensors"]:
                factors[kind][name] = vectors(arrays[buffer][at : at + n * rank].reshape(n, rank))
                at += n * rank
        assert at == arrays[buffer].size
    return factors
