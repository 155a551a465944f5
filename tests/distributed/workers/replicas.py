"""Every codec, alone and with every memory, and algorithms, for 100 steps of one model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from workers.harness import Cases

from gradcomp import Config, Loopback, spec
from gradcomp.aggregators import exchange_pattern
from gradcomp.config import MOMENTUM_CORRECTION
from horovod_compressors.torch import Compression

cases = Cases()

STEPS = 100

_CODECS = [stage.example for stage in spec.stages() if stage.kind == "codec"]
_MEMORIES = [
    spec.parse(stage.example).stages[0].text
    for stage in spec.stages()
    # All specs of a job have momentum correction or none; see dgc.py.
    if stage.kind == "memory" and stage.name != MOMENTUM_CORRECTION
]
_ALGORITHMS = [
    "powersgd(rank=2,start_step=10)",
    "residual|chunk_allreduce(ratio=0.05,chunk=16)",
    "powersgd(rank=1,start_step=0,variant=paper,orthogonalization=qr,values=bf16)",
    "powersgd(rank=3,start_step=5,iters_per_step=2,warm_start=false,orthogonalization=cholesky)",
    "atomo(rank=2)",
    "residual|atomo(rank=1,unbiased=false,values=bf16)",
    "signsgd_mv",
    "signum|signsgd_mv(ties=plus)",
]
SPECS = [
    *_CODECS,
    *(f"{memory}|{codec}" for memory in _MEMORIES for codec in _CODECS),
    *_ALGORITHMS,
]

SHAPES = {"matrix": (48, 32), "odd": (701,), "one": (1,), "scalar": (), "empty": (0,)}


@cases
def replicas() -> dict[str, dict[str, Any]]:
    """For each spec: whether all ranks end with the same parameters, how far these went, and (known
    to rank 0) where averages differ first from those of the loopback, which has the same gradients.
    """
    config = Config.from_mapping(
        {
            "version": 1,
            "compress": {
                "default": "identity",
                "rules": [
                    {"match": {"name": f"{position}.*"}, "use": text}
                    for position, text in enumerate(SPECS)
                ],
            },
            "seed": 7,
        }
    )
    params = {
        f"{position}.{shape}": torch.nn.Parameter(torch.zeros(SHAPES[shape]))
        for position in range(len(SPECS))
        for shape in SHAPES
    }
    size, rank = hvd.size(), hvd.rank()
    ends = np.cumsum([0, *(p.numel() for p in params.values())])
    spans = dict(zip(params, pairwise(ends), strict=True))
    targets = [_normal(ends[-1], r) for r in range(size)]
    opt = hvd.DistributedOptimizer(
        torch.optim.SGD(list(params.values()), lr=0.01),
        named_parameters=params.items(),
        compression=Compression(config, params.items()),
    )
    loopback = Loopback(config, size) if rank == 0 else None
    differences: dict[str, str] = {}
    for step in range(STEPS):
        # Of a squared distance to each rank's own target, with noise.
        now = _flat(params)
        of_ranks = [now - targets[r] + _normal(now.size, r, step) for r in range(size)]
        grads = {
            name: [grad[begin:end].reshape(params[name].shape) for grad in of_ranks]
            for name, (begin, end) in spans.items()
        }
        terms = [(p * torch.from_numpy(grads[name][rank])).sum() for name, p in params.items()]
        torch.stack(terms).sum().backward()
        opt.synchronize()
        for name, averages in loopback.step(grads).items() if loopback else ():
            actual = params[name].grad.numpy()
            if name not in differences and not _alike(name, actual, averages[rank]):
                differences[name] = f"step {step}: {actual} instead of {averages[rank]}"
        with opt.skip_synchronize():
            opt.step()
        opt.zero_grad()
    final = torch.from_numpy(_flat(params))
    of_ranks = hvd.allgather(final[None], name="replicas.final")
    result = {}
    for position, text in enumerate(SPECS):
        names = [f"{position}.{shape}" for shape in SHAPES]
        begin, end = spans[names[0]][0], spans[names[-1]][1]
        result[text] = {
            "identical": all(torch.equal(row[begin:end], final[begin:end]) for row in of_ranks),
            "moved": float(final[begin:end].abs().max()),
            "differences": [differences[name] for name in names if name in differences],
        }
    return result


def _normal(size: int, *seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def _flat(params: dict[str, torch.nn.Parameter]) -> Any:
    return torch.cat([p.detach().reshape(-1) for p in params.values()]).numpy()


def _alike(name: str, actual: Any, expected: Any) -> bool:
    """Frames are added in rank order, so equal to the last bit; an engine sums in an order of its
    own, which shows from three ranks on."""
    pattern = exchange_pattern(spec.parse(SPECS[int(name.split(".")[0])]))
    if pattern == "gather" or hvd.size() == 2:
        return np.array_equal(actual, expected)
    return np.allclose(actual, expected, rtol=2e-3, atol=2e-3)
