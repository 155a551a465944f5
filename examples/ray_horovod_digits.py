"""Horovod on Ray with two workers on CPUs: python examples/ray_horovod_digits.py [--elastic].

Written for Ray 2.60 and Horovod 0.28.1. With --elastic the job has as many workers as Ray has processors,
at most two, also while it runs.
"""

import argparse

import ray
from horovod.ray import ElasticRayExecutor, RayExecutor


def train(spec: str, epochs: int) -> tuple[int, float, float]:
    """Train on one worker; returns its rank, the test accuracy and the compression ratio."""
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

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    compression = Compression(spec, model.named_parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, compression=compression, epoch=0
    )

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def run(state: hvd.elastic.TorchState) -> None:
        while state.epoch < epochs:
            mine = slice(hvd.rank(), 1440, hvd.size())
            for batch, target in zip(images[mine].split(24), classes[mine].split(24), strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch), target).backward()
                optimizer.step()
            state.epoch += 1
            state.commit()

    run(state)
    right = model(images[1440:]).argmax(1) == classes[1440:]
    return hvd.rank(), float(right.float().mean()), compression.stats.ratio


def main() -> None:
    """Train, and print the results of rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--elastic", action="store_true")
    arguments = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False)
    if arguments.elastic:
        # Without network interfaces Horovod looks for common ones, and waits for a second machine.
        settings = ElasticRayExecutor.create_settings(1, 2, nics={"lo"})
        executor = ElasticRayExecutor(settings)
    else:
        executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
    executor.start()
    of_ranks = sorted(executor.run(lambda: train(arguments.compression, arguments.epochs)))
    _, accuracy, ratio = of_ranks[0]
    print(f"test accuracy {accuracy:.4f}, {ratio:.1f} times fewer bytes, {len(of_ranks)} ranks")
    ray.shutdown()


if __name__ == "__main__":
    main()
