"""Checks of a model's compression before its first gradient, in one worker and between all."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from byteps_compressors import native
from byteps_compressors.build import plugin
from byteps_compressors.gather import WORKER, gather_values
from gradcomp import Config
from gradcomp.adapter_api import Spec, build_text, check_equal, model_text
from gradcomp.errors import ConfigError
from gradcomp_torch.parameters import kinds_of

__all__ = ["check_agreement", "check_config", "spec_for"]

DTYPES = (torch.float32, torch.float64, torch.float16)
"""Gradient types that the plug-in compresses."""


def check_config(config: Config) -> None:
    """Raise ConfigError if the configuration needs exchanges between workers.

    BytePS' workers communicate with servers only.
    """
    for rule, schedule, exchange, averaging in config.compress.resolutions:
        if averaging.changes:
            raise ConfigError(
                f"{rule} has {averaging}, which needs each rank's tensor, and BytePS' servers add them "
                "up; leave it out"
            )
        if exchange != "auto":
            raise ConfigError(
                f"{rule} has exchange: {exchange}, which is an exchange between workers, and BytePS "
                "has servers instead; leave it out"
            )
        if schedule.switches:
            raise ConfigError(
                f"{rule} has specs that follow one another, '{schedule}', and BytePS keeps the "
                "compressor that a tensor was declared with: give it one spec; parameters may have "
                "schedules, such as topk(ratio=ramp(from=0.25,to=0.01,steps=1000))"
            )
    if config.stats.profile is not None:
        raise ConfigError(
            "stats.profile measures exchanges between workers, and BytePS has servers instead, and "
            "its own profile (BYTEPS_TRACE_ON): leave it out"
        )
    if config.compress.policy != "always":
        raise ConfigError(
            f"compress.policy is {config.compress.policy}, which measures exchanges between "
            "workers, and BytePS has servers instead; leave it out"
        )


def spec_for(config: Config, name: str, parameter: torch.Tensor) -> Spec:
    """Return the spec of a parameter.

    Raises:
        ConfigError: BytePS cannot run the spec.
    """
    choice = config.resolve(name, tuple(parameter.shape))
    if choice.spec.algorithm is not None:
        raise ConfigError(
            f"{choice.rule} gives '{name}' the spec '{choice.spec}', which takes several exchanges "
            "a step, and BytePS has one: its servers add and send back. Use Horovod for it "
            "(horovod_compressors), or a spec with a codec, such as 'residual|topk(ratio=0.01)'"
        )
    memory = choice.spec.memory
    if memory is not None and (memory.params.get("limit") or memory.params.get("reset_every")):
        raise ConfigError(
            f"{choice.rule} gives '{name}' the memory '{memory.text}', and BytePS' workers keep no running "
            "norm of gradients and reset no memory: leave limit and reset_every out"
        )
    if memory is not None and memory.params.get("clip") == "joint_norm":
        raise ConfigError(
            f"{choice.rule} gives '{name}' the memory '{memory.text}', and BytePS' workers do not know the "
            "norms of the others: use clip=scaled_norm"
        )
    if memory is not None and memory.name == "ef21":
        raise ConfigError(
            f"{choice.rule} gives '{name}' the memory '{memory.text}', which adds the averages of all workers "
            "to the last ones, and BytePS' servers compress averages once more: use residual, or Horovod "
            "(horovod_compressors)"
        )
    for row in choice.spec.plugins:
        if row.origin == "python":
            raise ConfigError(
                f"{choice.rule} gives '{name}' the codec '{row.name}', a plug-in in Python, and "
                "BytePS' servers decode without Python: use Horovod for it (horovod_compressors), "
                "or make the plug-in a shared library (docs/plugins.md)"
            )
    compresses = choice.spec.codec != "identity" or choice.spec.stateful
    if compresses and parameter.dtype not in DTYPES:
        known = ", ".join(str(dtype) for dtype in DTYPES)
        raise ConfigError(
            f"'{name}' is of {parameter.dtype}, and the plug-in compresses {known}: give it a rule "
            "with `use: identity`"
        )
    return choice.spec


def check_agreement(config: Config, parameters: Mapping[str, torch.Tensor], feedback: str) -> None:
    """Compare versions, configuration, parameters and options of all workers.

    Raises:
        ProtocolError: the workers differ.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    values = {
        "version": build_text(),
        "plug-in library": plugin().parent.name,
        "configuration": config.digest_text(),
        "parameters": model_text(shapes, kinds_of(parameters.items())),
        "server_feedback": feedback,
        "check_replicas_every": config.check_replicas_every,
        "epoch": native.load().epoch,
    }
    check_equal(
        gather_values(values, "call attach with equal arguments"),
        "the workers were given different parameters, configurations or options",
        "give all of them the same, and install one version of gradcomp on all machines",
        WORKER,
    )
