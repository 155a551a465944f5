"""The settings of Deep Gradient Compression's authors as specs."""

from __future__ import annotations

import json
import math
from typing import Any

from gradcomp import Config
from support.pipelines import configured


def _memory_text(about: dict[str, Any]) -> str:
    memory, clip = about["config"]["memory"], about["config"]["gradient_clipping"]
    text = (
        f"momentum_correction(momentum={memory['momentum']},nesterov={word(memory['nesterov'])},"
        f"masking={word(memory['momentum_masking'])}"
    )
    return text + (f",clip=local_norm,clip_norm={clip['max_norm']})" if clip else ")")


def word(value: bool) -> str:
    return str(value).lower()


def config_of_case(about: dict[str, Any]) -> Config:
    """The case's settings. Theirs keeps ceil(ratio * n), ours the nearest, so k is given."""
    options, memory = about["config"]["compressor"], _memory_text(about)
    rules = []
    for name, shape in about["tensors"].items():
        if len(shape) < 2:
            rules.append({"match": {"name": name}, "use": f"{memory}|identity"})
            continue
        kept = [
            period["attributes"][name]["num_selects"] / math.prod(shape)
            for period in about["derived_attributes"]
        ]
        use = (
            f"{memory}|sampled_topk(ratio=epochs({json.dumps(kept)}),"
            f"sample_ratio={options['sample_ratio']},resample={word(options['resample'])},"
            f"upper_bound={options['compress_upper_bound']},"
            f"lower_bound={options['compress_lower_bound']},"
            f"max_adaptation_iters={options['max_adaptation_iters']},"
            f"values={'fp16' if options['fp16_values'] else 'fp32'})"
        )
        rules.append({"match": {"name": name}, "use": use})
    return configured(f"{memory}|identity", rules=rules)
