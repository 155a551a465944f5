"""Codecs with kernels: by its spec, the encoder of a codec, and whether there is one.

`encoder(spec, sizes, device)` is made once for all buckets of tensors with these sizes and one codec, and
`Launches` once for each bucket. Results are in the encoder's memory: a `Kept` or a `Payload` for each tensor,
in order. They hold until the encoder's next launch, which must be on the same stream as copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch

from gradcomp.device_api import Stage, parse
from gradcomp.errors import SpecError
from gradcomp_torch.gpu.encoders.dense import Floats
from gradcomp_torch.gpu.encoders.encoder import Encoder
from gradcomp_torch.gpu.encoders.levels import Int4, Int8, Qsgd, Uniform
from gradcomp_torch.gpu.encoders.params import (
    FLOAT_TYPES,
    Params,
    bucket_size,
    level_bits,
    number,
)
from gradcomp_torch.gpu.encoders.randomk import RandomK
from gradcomp_torch.gpu.encoders.rotated import RotatedUniform
from gradcomp_torch.gpu.encoders.sampled_topk import SampledTopK
from gradcomp_torch.gpu.encoders.signs import OneBit, Sign, TernGrad
from gradcomp_torch.gpu.encoders.topk import TopK

__all__ = ["counts_kept", "encoder", "goes_to_peers", "packs_indices", "stage_of", "takes"]

CODECS: dict[str, Callable[[Params, Sequence[int], torch.device], Encoder]] = {
    **{name: partial(Floats, type_) for name, type_ in FLOAT_TYPES.items()},
    "int4": Int4,
    "int8": Int8,
    "onebit": OneBit,
    "qsgd": Qsgd,
    "randomk": RandomK,
    "rotate|uniform": RotatedUniform,
    "sampled_topk": SampledTopK,
    "sign": Sign,
    "terngrad": TernGrad,
    "topk": TopK,
    "uniform": Uniform,
}
"""By name of the codec, after that of a transform."""


LARGEST_BUCKET = 4096
"""Elements that share a scale are in one program. Buckets are powers of two."""


def takes(spec: str) -> bool:
    """Whether there are kernels for a codec.

    Args:
        spec: a codec's, without a memory, as `gradcomp.get_codec` takes it. Index coders run on the
            host, so any of them will do; the same holds for memories that `LaunchItem` can describe.
    """
    return _find_stage(spec) is not None


def goes_to_peers(spec: str) -> bool:
    """Whether results of a codec with kernels can be added as `Encoder.peer_results` gives them.

    Elements of `randomk`, and values with scales, are known to their sender and the core alone.
    """
    name, stage = stage_of(spec)
    return name != "randomk" and stage.params.get("values", "fp32") in ("fp32", "fp16", "bf16")


def counts_kept(spec: str) -> bool:
    """Whether a codec with kernels keeps other numbers of elements from step to step."""
    name, _ = stage_of(spec)
    return name == "sampled_topk"


@lru_cache(maxsize=256)
def packs_indices(spec: str) -> bool:
    """Whether a codec's indices are packed for other devices; not with the coder `raw32`."""
    return all(stage.name != "raw32" for stage in parse(spec).stages)


def encoder(spec: str, sizes: Sequence[int], device: torch.device) -> Encoder:
    """An encoder for tensors that have one codec.

    Args:
        spec: of a codec, without a memory.
        sizes: number of elements of each tensor; below 2**30.

    Raises:
        SpecError: there are no kernels for the codec.
    """
    name, stage = stage_of(spec)
    return CODECS[name](stage.params, sizes, device)


def stage_of(spec: str) -> tuple[str, Stage]:
    """The codec's name in `CODECS` and its own stage.

    Raises:
        SpecError: there are no kernels for the codec.
    """
    found = _find_stage(spec)
    if found is None:
        raise SpecError(
            f"{spec!r} has no kernels for a GPU; codecs with kernels: {', '.join(CODECS)}"
        )
    return found


@lru_cache(maxsize=256)
def _find_stage(spec: str) -> tuple[str, Stage] | None:
    """As `stage_of`, if kernels do all that the spec asks."""
    stages = parse(spec).stages
    transforms = [part.name for part in stages if part.kind == "transform"]
    stage, *coders = stages[len(transforms) :]
    name = "|".join([*transforms, stage.name])
    params = stage.params
    if name not in CODECS:
        return None
    if name == "sampled_topk" and number(params, "sample_ratio") == 1:
        name = "topk"  # a sample of the whole tensor makes its choice
    taken = True
    if name in ("int4", "int8", "qsgd"):
        bucket = bucket_size(params)
        taken = bucket <= LARGEST_BUCKET and bucket & (bucket - 1) == 0
    if stage.name in ("qsgd", "uniform"):
        packed = all(coder.name == "packed" for coder in coders)
        taken = taken and packed and level_bits(params) in (1, 2, 4, 8)
        taken = taken and params.get("norm", "max") == "max"
    if name == "uniform":
        taken = taken and "clip" not in params
    if name == "sign":
        taken = params["scale"] == "mean"
    if name == "randomk":
        taken = params["values"] == "fp32"
    if name == "sampled_topk":
        taken = bool(params["resample"]) and bool(params["strided_sample"])
    return (name, stage) if taken else None
