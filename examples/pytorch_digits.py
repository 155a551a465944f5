"""A training loop in PyTorch: horovodrun -np 2 python examples/pytorch_digits.py.

Horovod's own example, except for one line: the optimizer's `compression`.
"""

import argparse

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn

from horovod_compressors.torch import Compression

parser = argparse.ArgumentParser()
parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
parser.add_argument("--epochs", type=int, default=10)
arguments = parser.parse_args()

hvd.init()
torch.manual_seed(0)
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
classes = torch.tensor(digits.target)
train, test = slice(hvd.rank(), 1440, hvd.size()), slice(1440, None)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=Compression(arguments.compression, model.named_parameters()),
)

for _ in range(arguments.epochs):
    for batch, target in zip(images[train].split(24), classes[train].split(24), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()

if hvd.rank() == 0:
    right = model(images[test]).argmax(1) == classes[test]
    print(f"test accuracy {right.float().mean():.4f}", flush=True)
