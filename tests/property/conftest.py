"""Tests here change the SIMD level and the number of threads; both are put back after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradcomp import _core


@pytest.fixture(autouse=True)
def _restore_core_settings() -> Iterator[None]:
    level, threads = _core.simd_level(), _core.thread_count()
    yield
    _core.set_simd_level(level)
    _core.set_thread_count(threads)
