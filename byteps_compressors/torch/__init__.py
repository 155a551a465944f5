"""Gradient compression for PyTorch on stock BytePS.

::

    import byteps.torch as bps
    from byteps_compressors.torch import DistributedOptimizer

    bps.init()
    optimizer = DistributedOptimizer(
        optimizer, model.named_parameters(), compression="residual|topk(ratio=0.01)")

BytePS' own workers and servers compress the gradients with gradcomp's plug-in library;
``python -m byteps_compressors.launch`` starts a cluster that loads it. Import this module before
``bps.init()``. `Compression` works without the plug-in, for codecs with payloads that can be added.
"""

from __future__ import annotations

from gradcomp.errors import missing_package

try:
    from byteps_compressors.torch.attached import Attached, attach, declare
    from byteps_compressors.torch.compression import Compression
    from byteps_compressors.torch.optimizer import DistributedOptimizer
except ModuleNotFoundError as error:
    raise missing_package(error) from None

__all__ = ["Attached", "Compression", "DistributedOptimizer", "attach", "declare"]
