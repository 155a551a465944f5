"""The contenders: for each engine its own way to send gradients, other libraries', and ours."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["BASELINES", "CONTENDERS", "EVERY", "FP16", "Contender", "alone", "chosen"]


@dataclass(frozen=True)
class Contender:
    """One way to send gradients.

    Attributes:
        name: its name in tables.
        engine: ``horovod`` (on Gloo), ``mpi`` (Horovod on Open MPI), ``torch`` or ``byteps``.
        kind: ``ours``, ``alone`` if every rank keeps its gradients to itself, or a kind defined by
            the engine's worker module.
        spec: for ours, configuration overrides separated by blanks; else a parameter.
        same_as: another contender with the same algorithm; empty if there is none.
        warmup: steps before its steady state.
    """

    name: str
    engine: str
    kind: str
    spec: str = ""
    same_as: str = ""
    warmup: int = 0

    @property
    def dense(self) -> bool:
        """Whether a step takes as long as sending all gradients uncompressed."""
        return self.kind in ("none", "fp16")


_DGC = "dgc(ratio=0.001,warmup_epochs=0,momentum=0.9)"

_PRESET = "residual|adaptive(rate=1,step=energy) policy=auto"
"""The preset after its first 500 steps, which send more bits."""

CONTENDERS = (
    Contender("Horovod alone", "horovod", "alone"),
    Contender("Horovod", "horovod", "none"),
    Contender("Horovod fp16", "horovod", "fp16"),
    Contender("our fp16", "horovod", "ours", "fp16"),
    Contender("our fp16 in sra", "horovod", "ours", "fp16 exchange=sra"),
    Contender("top-k 0.1%", "horovod", "ours", "residual|topk(ratio=0.001)", "plain top-k 0.1%"),
    Contender("top-k 1%", "horovod", "ours", "residual|topk(ratio=0.01)"),
    Contender("top-k 10%", "horovod", "ours", "residual|topk(ratio=0.1)"),
    Contender("DGC 0.1%", "horovod", "ours", _DGC),
    Contender("polar 1/16", "horovod", "ours", "residual|polar(rate=0.0625)"),
    Contender(
        "PowerSGD 4",
        "horovod",
        "ours",
        "powersgd(rank=4,start_step=0,variant=library)",
        "DDP PowerSGD 4",
    ),
    Contender(
        "auto of top-k 0.1%", "horovod", "ours", "residual|topk(ratio=0.001) policy=auto", warmup=56
    ),
    Contender("preset", "horovod", "ours", _PRESET, warmup=56),
    Contender("MPI alone", "mpi", "alone"),
    Contender("MPI", "mpi", "none"),
    Contender("MPI fp16", "mpi", "fp16"),
    Contender("MPI with our fp16", "mpi", "ours", "fp16"),
    Contender("MPI with our fp16 in sra", "mpi", "ours", "fp16 exchange=sra"),
    Contender("MPI top-k 0.1%", "mpi", "ours", "residual|topk(ratio=0.001)", "plain top-k 0.1%"),
    Contender("MPI DGC 0.1%", "mpi", "ours", _DGC),
    Contender("MPI polar 1/16", "mpi", "ours", "residual|polar(rate=0.0625)"),
    Contender(
        "MPI PowerSGD 4",
        "mpi",
        "ours",
        "powersgd(rank=4,start_step=0,variant=library)",
        "DDP PowerSGD 4",
    ),
    Contender("DDP alone", "torch", "alone"),
    Contender("DDP", "torch", "none"),
    Contender("DDP fp16", "torch", "fp16"),
    Contender("DDP with our fp16", "torch", "ours", "fp16"),
    Contender("DDP with our fp16 in sra", "torch", "ours", "fp16 exchange=sra"),
    Contender("DDP PowerSGD 4", "torch", "powersgd", "4", warmup=3),
    Contender(
        "DDP with our PowerSGD 4",
        "torch",
        "ours",
        "powersgd(rank=4,start_step=0,variant=library)",
        "DDP PowerSGD 4",
    ),
    Contender("DDP with our DGC 0.1%", "torch", "ours", _DGC),
    Contender("DDP with our preset", "torch", "ours", _PRESET, warmup=56),
    Contender("plain top-k 0.1%", "torch", "topk", "0.001"),
    Contender(
        "DDP with our top-k 0.1%", "torch", "ours", "residual|topk(ratio=0.001)", "plain top-k 0.1%"
    ),
    Contender("DDP with our polar 1/16", "torch", "ours", "residual|polar(rate=0.0625)"),
    Contender("BytePS alone", "byteps", "alone"),
    Contender("BytePS", "byteps", "none"),
    Contender("BytePS onebit", "byteps", "own", "onebit compressor_onebit_scaling=true"),
    Contender("BytePS topk 0.1%", "byteps", "own", "topk compressor_k=0.001"),
    Contender("BytePS with our sign", "byteps", "ours", "residual|sign", "BytePS onebit"),
    Contender(
        "BytePS with our top-k 0.1%",
        "byteps",
        "ours",
        "residual|topk(ratio=0.001)",
        "BytePS topk 0.1%",
    ),
)

_THREADS = {"beside": "always", "apart": "never"}
"""Of each of ours there are two more, by the thread that encodes, such as "top-k 0.1% beside"."""


def _with_threads(contender: Contender) -> list[Contender]:
    """A contender, and those with a thread for certain and without."""
    if contender.kind != "ours" or contender.engine == "byteps":
        return [contender]
    return [contender] + [
        replace(
            contender,
            name=f"{contender.name} {word}",
            spec=f"{contender.spec} encoder_thread={setting}",
            same_as="",
        )
        for word, setting in _THREADS.items()
    ]


EVERY = tuple(found for contender in CONTENDERS for found in _with_threads(contender))
"""All contenders, in the order of tables."""

BASELINES = ("Horovod", "Horovod fp16")
"""Speed-ups are over the faster one of them."""

FP16 = ("Horovod fp16", "DDP fp16")
"""Overheads are parts of a step of the faster one of them."""


def alone(engine: str) -> str:
    """The name of the contender that sends nothing: the time of a step by itself."""
    return next(
        contender.name
        for contender in CONTENDERS
        if contender.engine == engine and contender.kind == "alone"
    )


def chosen(names: list[str] | None, engines: list[str] | None) -> list[Contender]:
    """Contenders by name or by engine; by default `CONTENDERS`.

    Raises:
        ValueError: there is no such contender.
    """
    known = {contender.name: contender for contender in EVERY}
    for name in names or ():
        if name not in known:
            raise ValueError(f"there is no contender {name!r}; there are {', '.join(known)}")
    return [
        contender
        for contender in (EVERY if names else CONTENDERS)
        if (not names or contender.name in names) and (not engines or contender.engine in engines)
    ]
