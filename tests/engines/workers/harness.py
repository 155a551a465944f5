"""Helpers of cases on PyTorch.

``python -m workers.harness REPORTS SHARED MODULE...`` runs the cases of some modules (see `runner`).
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workers.ranks import hvd
from workers.runner import Cases, refused, run

from gradcomp import Loopback

__all__ = [
    "MATRIX",
    "Cases",
    "TopK",
    "averages",
    "backward",
    "check_equal",
    "check_same_on_all_ranks",
    "check_step",
    "defaults",
    "gradients",
    "optimizer",
    "parameters",
    "refused",
    "shared",
]

MATRIX = (64, 80)
"""Enough elements and dimensions to be compressed under the default rules."""

shared = Path()
"""A folder for files from one job to another."""

_models = itertools.count()


def parameters(
    shapes: Mapping[str, Sequence[int]], dtype: torch.dtype = torch.float32
) -> dict[str, torch.nn.Parameter]:
    """Parameters of value 0, by names that no other call in this job gives."""
    prefix = f"model{next(_models)}"
    return {
        f"{prefix}.{name}": torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        for name, shape in shapes.items()
    }


def optimizer(
    params: Mapping[str, torch.nn.Parameter], compression: Any, **options: Any
) -> torch.optim.Optimizer:
    """The stock distributed optimizer; with a learning rate of 1 the step is the average."""
    options.setdefault("named_parameters", list(params.items()))
    inner = torch.optim.SGD(list(params.values()), lr=1.0)
    return hvd.DistributedOptimizer(inner, compression=compression, **options)


def gradients(
    params: Mapping[str, torch.Tensor], step: int, rank: int | None = None
) -> dict[str, torch.Tensor]:
    """The gradients of ``rank`` (by default this one) in a step, which all ranks can compute."""
    seed = [step, hvd.rank() if rank is None else rank]
    result = {}
    for position, (name, p) in enumerate(params.items()):
        values = np.random.default_rng([*seed, position]).standard_normal(tuple(p.shape))
        result[name] = torch.from_numpy(np.asarray(values)).to(p.dtype)
    return result


def backward(params: Mapping[str, torch.Tensor], grads: Mapping[str, torch.Tensor]) -> None:
    """A backward pass that leaves exactly ``grads``; parameters without one take no part."""
    terms = [(params[name] * grad).sum().double() for name, grad in grads.items()]
    if terms:
        torch.stack(terms).sum().backward()


def averages(
    opt: torch.optim.Optimizer,
    params: Mapping[str, torch.Tensor],
    grads: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Make a step; returns the averages that the optimizer was given."""
    backward(params, grads)
    opt.step()
    result = {name: p.grad.detach().clone() for name, p in params.items()}
    opt.zero_grad()
    return result


def check_equal(actual: torch.Tensor, expected: Any, label: str = "") -> None:
    """Check that both are equal to the last bit, NaN included."""
    wanted = torch.as_tensor(expected, device="cpu")
    assert actual.dtype == wanted.dtype, f"{label}: {actual.dtype} instead of {wanted.dtype}"
    torch.testing.assert_close(
        actual, wanted, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{label}: {text}"
    )


def check_step(
    opt: torch.optim.Optimizer,
    params: Mapping[str, torch.Tensor],
    loopback: Loopback,
    step: int,
    order: np.random.Generator,
) -> dict[str, torch.Tensor]:
    """The averages of a step, checked against the loopback; ``order`` draws the order of arrival."""
    of_ranks = [gradients(params, step, rank) for rank in range(hvd.size())]
    mine = of_ranks[hvd.rank()]
    shuffled = order.permutation(list(params)).tolist()
    found = averages(opt, params, {name: mine[name] for name in shuffled})
    expected = loopback.step({name: [grads[name] for grads in of_ranks] for name in params})
    for name, average in found.items():
        check_equal(average, expected[name][hvd.rank()], f"{step}: {name}")
    return found


@contextmanager
def defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    """A context with another default dtype and default device of torch."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def check_same_on_all_ranks(tensor: torch.Tensor, label: str = "") -> None:
    """Check that every rank has the same bytes."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    rows = hvd.allgather(data[None], name=f"same.{next(_models)}")
    for rank, row in enumerate(rows):
        assert torch.equal(row, rows[0]), f"{label} differs between rank 0 and rank {rank}"


def parameters_of(about: Mapping[str, Any]) -> dict[str, torch.nn.Parameter]:
    """Parameters of value 0 for the tensors of a reference case, by its names."""
    return {
        name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in about["tensors"].items()
    }


def replay(
    about: Mapping[str, Any],
    arrays: Mapping[str, Any],
    kind: str,
    opt: torch.optim.Optimizer,
    params: Mapping[str, torch.Tensor],
) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Run a reference case's steps, and check averages against the case and between ranks.

    Yields each step and its averages.

    Args:
        about: the case's description.
        arrays: the case's arrays.
        kind: the name that averages have in ``arrays``.
        opt: the stock optimizer of ``params``.
        params: see `parameters_of`.
    """
    for step in range(about["steps"]):
        grads = {
            name: torch.from_numpy(arrays[f"grad.{name}"][step, hvd.rank()]) for name in params
        }
        found = averages(opt, params, grads)
        for name, average in found.items():
            check_close(about, average.numpy(), arrays[f"{kind}.{name}"][step])
            check_same_on_all_ranks(average, name)
        yield step, found


def check_close(about: Mapping[str, Any], actual: Any, expected: Any) -> None:
    """Equal within the reference case's tolerance, whatever the shape."""
    tolerance = {key: about["tolerance"][key] for key in ("rtol", "atol")}
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, **tolerance)


class TopK:
    """A model of ``residual|topk(k=...)`` on all ranks, in numpy."""

    def __init__(self, k: int, ranks: int, *, memory: bool) -> None:
        self.k = k
        self.memory = memory
        self.residuals: list[Any] = [None] * ranks

    def average(self, grads: Sequence[torch.Tensor]) -> torch.Tensor:
        """The average of the ranks' gradients of one step."""
        total = np.zeros(tuple(grads[0].shape), np.float32)
        for rank, grad in enumerate(grads):
            corrected = grad.detach().to(torch.float32).numpy()
            if self.memory and self.residuals[rank] is not None:
                corrected = self.residuals[rank] + corrected
            flat = corrected.reshape(-1)
            kept = np.argsort(-np.abs(flat), kind="stable")[: self.k]
            sent = np.zeros_like(flat)
            sent[kept] = flat[kept]
            total += np.float32(1 / len(grads)) * sent.reshape(corrected.shape)
            self.residuals[rank] = corrected - sent.reshape(corrected.shape)
        return torch.from_numpy(total)


def wait_with_pauses() -> None:
    """Let ``hvd.allgather``, ``hvd.barrier`` and the like pause between polls; stock ones spin, and take the
    processors from the ranks that they wait for."""
    if not hasattr(hvd, "mpi_ops"):
        return  # PyTorch's own Gloo waits
    stock = hvd.mpi_ops.synchronize

    def synchronize(handle: int) -> Any:
        while handle in hvd.mpi_ops._handle_map and not hvd.poll(handle):
            time.sleep(0.0005)
        return stock(handle)

    hvd.mpi_ops.synchronize = synchronize


def main(reports: str, folder: str, modules: Sequence[str]) -> None:
    """Run the cases of modules, and write a line for each."""
    # Cases import this module under its own name; here it runs as __main__, a separate module.
    from workers import harness

    harness.shared = Path(folder)
    torch.set_num_threads(1)
    hvd.init()
    wait_with_pauses()
    run(hvd.rank(), hvd.barrier, reports, modules)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
