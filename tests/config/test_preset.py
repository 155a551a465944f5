"""The preset `auto`: what a configuration means that names no compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, ConfigError, Loopback
from gradcomp.codec.spec import parse
from gradcomp.config.preset import AUTO_SPEC
from gradcomp.config.schema import load_config
from gradcomp.config.sources import load_sources

PRESET = Config.from_mapping({"version": 1, "compress": {"default": AUTO_SPEC, "policy": "auto"}})


@pytest.mark.parametrize(
    "section", [{}, {"compress": None}, {"compress": {}}, {"compress": {"default": "auto"}}]
)
def test_nothing_said_is_the_preset(section: dict[str, Any]) -> None:
    assert Config.from_mapping({"version": 1, **section}) == PRESET


def test_every_place_of_a_spec_takes_its_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("version: 1\ncompress:\n")
    assert Config.from_spec("auto") == Config.of("auto") == PRESET
    assert load_sources(["auto"], []) == load_sources([str(empty)], []) == PRESET
    assert load_config([empty], ["compress.default=auto"]) == PRESET
    assert PRESET.compress.default.specs == (parse(AUTO_SPEC),)


def test_other_keys_go_with_it() -> None:
    section = {
        "policy": "always",
        "bucket_bytes": 7,
        "rules": [{"match": {"ndim": 4}, "use": "bf16"}],
    }
    config = Config.from_mapping({"version": 1, "compress": section})
    assert config.compress.policy == "always"
    assert config.spec_for("w", (4, 4, 3, 3)).canonical == "bf16"
    assert config.spec_for("w", (100, 100)) == parse(AUTO_SPEC)


def test_a_spec_without_a_policy_is_always_compressed() -> None:
    assert Config.of("fp16").compress.policy == "always"
    assert (
        Config.from_mapping({"version": 1, "compress": {"default": "fp16"}}).compress.policy
        == "always"
    )


@pytest.mark.parametrize("config", [None, {"version": 1}, object()])
def test_other_types_are_no_configuration(config: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"a {type(config).__name__} is no configuration.*by their names"
    ):
        Config.of(config)


def test_engines_that_cannot_measure_always_compress() -> None:
    for config in ("auto", PRESET):
        always = Config.of(config, measures=False)
        assert always.compress.policy == "always"
        assert always.compress.default == PRESET.compress.default
    written = Config.from_mapping({"version": 1, "compress": {"default": "fp16", "policy": "auto"}})
    assert Config.of(written, measures=False) is written


def test_it_is_no_stage() -> None:
    with pytest.raises(ConfigError, match="auto"):
        Config.from_mapping(
            {"version": 1, "compress": {"default": "fp16", "rules": [{"match": {}, "use": "auto"}]}}
        )


def test_the_loopback_compresses() -> None:
    loop = Loopback("auto", world_size=2)
    loop.step({"w": [np.full((100, 100), 1.0), np.full((100, 100), 3.0)]})
    assert loop.stats[0].ratio > 4
