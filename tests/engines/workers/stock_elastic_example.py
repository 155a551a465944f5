"""An elastic training script on stock Horovod, in the structure of its own example for PyTorch.

That is ``examples/elastic/pytorch/pytorch_mnist_elastic.py`` of Horovod 0.28.1: a distributed sampler,
an optimizer with a compression, rates that follow the number of ranks, a state with epoch and batch,
and a commit in each step. Digits are scikit-learn's, which need no download, and each step is logged, with
the part of an average that is not 0.
Argument: the folder of its rows. A file ``last`` next to the folder has the number of steps.
"""

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from elastic.job import log_row

folder = Path(sys.argv[1])
hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
dataset = TensorDataset(images, torch.tensor(digits.target))
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=32, sampler=sampler)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=3)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=3)
        self.fc1 = nn.Linear(80, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


LR = 0.02
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=LR * hvd.size(), momentum=0.5)
compression = hvd.Compression.none


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    life = hvd.broadcast_object(time.time())
    last = int((folder.parent / "last").read_text())
    while state.step < last:
        state.model.train()
        sampler.set_epoch(state.epoch)
        for data, target in loader:
            time.sleep(0.03)
            state.optimizer.zero_grad()
            loss = F.nll_loss(state.model(data), target)
            loss.backward()
            state.optimizer.step()
            state.step += 1
            parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            log_row(
                folder,
                parameters.numpy().tobytes(),
                life=life,
                step=state.step,
                rank=hvd.rank(),
                size=hvd.size(),
                sent=model.fc1.weight.grad.count_nonzero().item() / model.fc1.weight.numel(),
            )
            state.commit()
            last = int((folder.parent / "last").read_text())
            if state.step >= last:
                break
        state.epoch += 1


optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=compression
)


def on_state_reset() -> None:
    for group in optimizer.param_groups:
        group["lr"] = LR * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, epoch=1, step=0)
state.register_reset_callbacks([on_state_reset])
train(state)
