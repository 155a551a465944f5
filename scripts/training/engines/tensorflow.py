"""Horovod as the engine of training in TensorFlow."""

from __future__ import annotations

import os

import horovod
import horovod.tensorflow as hvd
import tensorflow as tf
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

from gradcomp.config.schema import Config
from training.engines.horovod_objects import Bytes, HorovodObjects
from training.learners.base import Learner
from training.learners.tensorflow import TensorFlowLearner
from training.settings.train import TrainSettings

__all__ = ["ENGINE"]


class TensorFlowEngine(HorovodObjects):
    """Stock Horovod, with its collectives for TensorFlow.

    Horovod for PyTorch is another library with ranks of its own: a process starts one of the two.
    """

    name = "horovod"
    title = "Horovod"
    framework = "tensorflow"
    lost_rank = (HorovodInternalError, tf.errors.OpError)

    def init(self) -> None:
        """See `Engine`, also below."""
        os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        hvd.init()

    def versions(self) -> dict[str, str]:
        return {"horovod": str(horovod.__version__), "tensorflow": str(tf.__version__)}

    def rank(self) -> int:
        return int(hvd.rank())

    def size(self) -> int:
        return int(hvd.size())

    def local_size(self) -> int:
        return int(hvd.local_size())

    def use_threads(self, count: int) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(count)
        tf.config.threading.set_inter_op_parallelism_threads(count)
        tf.config.experimental.enable_op_determinism()
        torch.set_num_threads(count)

    def sum(self, tensor: Tensor, name: str) -> Tensor:
        total = hvd.allreduce(tf.constant(tensor.numpy()), op=hvd.Sum, name=name)
        return torch.from_numpy(total.numpy())

    def _allgather(self, data: Bytes, name: str) -> Bytes:
        result: Bytes = hvd.allgather(tf.constant(data), name=name).numpy()
        return result

    def _broadcast(self, data: Bytes, name: str) -> Bytes:
        result: Bytes = hvd.broadcast(tf.constant(data), root_rank=0, name=name).numpy()
        return result

    def learner(self, settings: TrainSettings, compress: Config | None, classes: int) -> Learner:
        return TensorFlowLearner(settings, compress, classes)


ENGINE = TensorFlowEngine()
