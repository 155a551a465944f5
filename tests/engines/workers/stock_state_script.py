"""A training script with a state of an elastic job, on stock Horovod; it goes back to a commit.

It looks at the residuals of the compression that it got, and prints whether they went back, too.
"""

import horovod.torch as hvd
import torch


def main() -> None:
    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(72, 64)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)

    def step(batch: int) -> torch.Tensor:
        torch.manual_seed(10 * batch + hvd.rank())
        optimizer.zero_grad()
        model(torch.randn(8, 72)).square().mean().backward()
        optimizer.step()
        return torch.cat([model.weight.detach().flatten(), *residuals()])

    def residuals() -> list[torch.Tensor]:
        return list(optimizer._compression.state_dict()["residual"].values())

    step(0)
    state.save()
    first = [step(1), step(2)]
    state.restore()
    again = [step(1), step(2)]
    equal = all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    if hvd.rank() == 0:
        print("went back" if equal and not torch.equal(*first) else "differs")


if __name__ == "__main__":
    main()
