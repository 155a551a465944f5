"""Horovod and its compression, for cases of which some run without Horovod: then ``hvd`` is what they need of it."""

from importlib.util import find_spec

__all__ = ["Compression", "hvd"]

if find_spec("horovod"):
    import horovod.torch as hvd

    from horovod_compressors.torch import Compression
else:
    from workers import torch_ranks as hvd

    Compression = None
