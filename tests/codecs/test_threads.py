"""Processors of the host and threads of the core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradcomp import _core
from gradcomp import processors as of_host
from gradcomp.codec.threads import use_processors
from gradcomp.processors import processors
from gradcomp_torch.encoder_thread import encodes_beside
from support.pipelines import config_of


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A host of 12 processors without a limit; yields the file of the limit."""
    before = _core.thread_count()
    monkeypatch.delenv("GRADCOMP_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr(of_host, "_QUOTA", tmp_path / "cpu.max")
    yield tmp_path / "cpu.max"
    _core.set_thread_count(before)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max 100000\n", 12),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("6400000 100000\n", 12),
        ("", 12),
    ],
)
def test_a_container_limits_processors(host: Path, limit: str, expected: int) -> None:
    assert processors() == 12
    host.write_text(limit)
    assert processors() == expected


@pytest.mark.parametrize(("ranks", "expected"), [(1, 8), (2, 6), (5, 2), (12, 1), (40, 1)])
def test_a_rank_uses_its_share_of_the_processors(host: Path, ranks: int, expected: int) -> None:
    assert not host.exists()
    use_processors(ranks)
    assert _core.thread_count() == expected


@pytest.mark.parametrize(
    ("setting", "ranks", "on_device", "expected"),
    [
        ("auto", 6, False, True),
        ("auto", 7, False, False),
        ("auto", 7, True, True),
        ("always", 7, False, True),
        ("never", 1, True, False),
    ],
)
@pytest.mark.usefixtures("host")
def test_a_thread_encodes_where_a_processor_is_to_spare(
    setting: str, ranks: int, on_device: bool, expected: bool
) -> None:
    use_processors(ranks)
    assert encodes_beside(config_of("topk(k=3)", encoder_thread=setting), on_device) is expected


@pytest.mark.usefixtures("host")
def test_the_variable_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    _core.set_thread_count(3)
    monkeypatch.setenv("GRADCOMP_THREADS", "3")
    use_processors(1)
    assert _core.thread_count() == 3
