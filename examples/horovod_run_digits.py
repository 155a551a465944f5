"""A script that starts the ranks itself: python examples/horovod_run_digits.py.

`horovod.run` calls a function on each rank, and returns the results of all of them.
"""

import argparse

import horovod


def train(compression: str, epochs: int) -> tuple[float, float]:
    """Train on one rank of the job; returns the test accuracy and the compression ratio."""
    import horovod.torch as hvd
    import torch
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from torch import nn

    from horovod_compressors.torch import Compression

    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    classes = torch.tensor(digits.target)
    mine, test = slice(hvd.rank(), 1440, hvd.size()), slice(1440, None)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compressor = Compression(compression, model.named_parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=compressor,
    )
    for _ in range(epochs):
        for batch, target in zip(images[mine].split(24), classes[mine].split(24), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
    right = model(images[test]).argmax(1) == classes[test]
    return float(right.float().mean()), compressor.stats.ratio


def main() -> None:
    """Train on two ranks of this machine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    of_ranks = horovod.run(
        train, args=(arguments.compression, arguments.epochs), num_proc=2, use_gloo=True
    )
    accuracy, ratio = of_ranks[0]
    print(f"test accuracy {accuracy:.4f}, {ratio:.1f} times fewer bytes, {len(of_ranks)} ranks")


if __name__ == "__main__":
    main()
