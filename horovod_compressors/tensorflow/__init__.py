"""Compression for TensorFlow on stock Horovod.

::

    import horovod.tensorflow as hvd
    from horovod_compressors.tensorflow import Compression

    compression = Compression(variables=model.trainable_variables)
    tape = hvd.DistributedGradientTape(tape, compression=compression)
"""

from __future__ import annotations

from gradcomp.errors import missing_package

try:
    import horovod.tensorflow as hvd

    from horovod_compressors.tensorflow.checkpoint import CompressionState
    from horovod_compressors.tensorflow.compression import Compression
    from horovod_compressors.tensorflow.dgc_sgd import DGCSGD
    from horovod_compressors.tensorflow.elastic import ElasticState
    from horovod_compressors.tensorflow.keras import DistributedOptimizer
    from horovod_compressors.tensorflow.outer import OuterStep
    from horovod_compressors.tensorflow.reinit import prepare
except ModuleNotFoundError as error:
    raise missing_package(error) from None

from horovod_compressors.compression import is_elastic
from horovod_compressors.startup import watch

__all__ = [
    "DGCSGD",
    "Compression",
    "CompressionState",
    "DistributedOptimizer",
    "ElasticState",
    "OuterStep",
]

watch(hvd)
if is_elastic():
    prepare()
