"""Outer steps of processes that come, go and lag."""

from __future__ import annotations

from torch_compressors.elastic.outer_step import ElasticOuterStep

__all__ = ["ElasticOuterStep"]
