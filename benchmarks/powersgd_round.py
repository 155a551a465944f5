"""A PowerSGD round on ResNet-50's shapes beside torch's own powerSGD_hook: CPU time of one rank."""

import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config, Pipeline, _core
from gradcomp.runtime.loopback import run_rounds
from gradcomp.tools.model_shapes import model_shapes

RANK = 4
ROUNDS = 15
SHAPES = model_shapes("resnet50")


def gradients() -> dict[str, np.ndarray]:
    """Standard normal, of one rank."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def of_gradcomp(variant: str) -> list[float]:
    """Seconds of each round of all matrices, as the Horovod adapter averages them."""
    spec = f"powersgd(rank={RANK},start_step=0,variant={variant})"
    pipeline = Pipeline(Config.from_mapping({"version": 1, "compress": {"default": spec}}))
    # A large matrix is a bucket by itself; so is each vector, and those travel dense.
    buckets = [
        names
        for names in pipeline.buckets(pipeline.resolve_all(SHAPES))
        if len(SHAPES[names[0]]) > 1
    ]
    grads = gradients()

    def average_all() -> None:
        for names in buckets:
            of_bucket = {name: grads[name] for name in names}
            # The next round's gradients are this round's averages, of the same magnitude.
            run_rounds([pipeline.bucket_round(names[0], of_bucket, overwrite=True)])

    return timed(average_all)


class Model(torch.nn.Module):
    """Parameters with fixed gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.grads = [torch.from_numpy(grad) for grad in gradients().values()]
        self.params = torch.nn.ParameterList(torch.zeros(grad.shape) for grad in self.grads)

    def forward(self) -> torch.Tensor:
        """A number with those gradients."""
        terms = [(p * g).sum() for p, g in zip(self.params, self.grads, strict=True)]
        return torch.stack(terms).sum()


def of_torch() -> list[float]:
    """Seconds of each step's calls of the hook, in a group of one rank, vectors included."""
    state = torch_powersgd.PowerSGDState(
        process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=2
    )
    spent = 0.0

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal spent
        begin = time.process_time()
        future = torch_powersgd.powerSGD_hook(state, bucket)
        future.wait()
        spent += time.process_time() - begin
        return future

    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
        model = DistributedDataParallel(Model())
        model.register_comm_hook(state, hook)
        seconds = []
        for _ in range(ROUNDS + 4):  # the first steps travel dense and allocate
            spent = 0.0
            model().backward()
            seconds.append(spent)
            model.zero_grad()
        dist.destroy_process_group()
    return seconds[4:]


def timed(call: Callable[[], None]) -> list[float]:
    """Processor seconds of calls, after two warm-up calls."""
    seconds = []
    for _ in range(ROUNDS + 2):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return seconds[2:]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    _core.set_thread_count(1)
    rows = {
        "gradcomp powersgd(variant=library)": of_gradcomp("library"),
        "gradcomp powersgd(variant=paper)": of_gradcomp("paper"),
        "torch powerSGD_hook": of_torch(),
    }
    print(f"rank {RANK}, {_core.simd_level()}, one thread; ms of processor time a round")
    print(f"{'':36}{'median':>8}{'least':>8}")
    for name, seconds in rows.items():
        print(f"{name:36}{1e3 * statistics.median(seconds):8.1f}{1e3 * min(seconds):8.1f}")


if __name__ == "__main__":
    main()
