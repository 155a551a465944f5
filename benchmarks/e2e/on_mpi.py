"""Contenders on Horovod over Open MPI, the same as on Gloo."""

from e2e.on_horovod import Engine

__all__ = ["Engine"]
