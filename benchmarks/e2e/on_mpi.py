"""Contenders on Horovod over Open MPI, which are those on Gloo."""

from e2e.on_horovod import Engine

__all__ = ["Engine"]
