"""Compression for PyTorch on stock Horovod.

::

    import horovod.torch as hvd
    from horovod_compressors.torch import Compression

    compression = Compression(named_parameters=model.named_parameters())
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression)
"""

from __future__ import annotations

from gradcomp.errors import missing_package

try:
    import horovod.torch as hvd

    from horovod_compressors.torch.compression import Compression
    from horovod_compressors.torch.elastic import register
    from horovod_compressors.torch.outer import OuterStep
except ModuleNotFoundError as error:
    raise missing_package(error) from None

from horovod_compressors.startup import watch

__all__ = ["Compression", "OuterStep"]

watch(hvd)
register()
