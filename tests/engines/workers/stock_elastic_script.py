"""An elastic training script on stock Horovod, without any compression; it logs each step.

Argument: the folder of its rows. A file ``last`` next to the folder has the number of steps.
"""

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

from elastic.job import log_row


def main() -> None:
    folder = Path(sys.argv[1])
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(72, 64)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        life = hvd.broadcast_object(time.time())
        while state.step < int((folder.parent / "last").read_text()):
            time.sleep(0.03)
            optimizer.zero_grad()
            model(torch.randn(8, 72)).square().mean().backward()
            optimizer.step()
            state.step += 1
            parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            log_row(
                folder,
                parameters.numpy().tobytes(),
                life=life,
                step=state.step,
                rank=hvd.rank(),
                size=hvd.size(),
            )
            if state.step % 3 == 0:
                state.commit()

    train(state)


if __name__ == "__main__":
    main()
