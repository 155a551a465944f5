"""The ranks of a job, for cases that run under Horovod and under torchrun: ``hvd`` is what they need of either.

Horovod's compression is there where Horovod is installed, its outer steps in jobs of Horovod.
"""

import os
from importlib.util import find_spec

__all__ = ["Compression", "HorovodOuterStep", "hvd"]

Compression = HorovodOuterStep = None
if find_spec("horovod"):
    from horovod_compressors.torch import Compression

if Compression is None or "TORCHELASTIC_RUN_ID" in os.environ:
    from workers import torch_ranks as hvd
else:
    import horovod.torch as hvd

    from horovod_compressors.torch import OuterStep as HorovodOuterStep
