"""Gradients on this machine's GPU: bits, speeds beside others', and whole steps of DDP.

  python benchmarks/gpu.py
  python benchmarks/gpu.py --quick

1. Bits: every kernel against the C++ core, with several sizes, ties, NaN and empty tensors.
2. Speeds: kernels as fractions of the bandwidth of a copy, which is measured first, beside PyTorch's
   operators and bitsandbytes where installed; copies between host and device; frames on the host.
3. Steps of DDP by one and by two processes, and of FSDP by two, with our compression on the GPU and through
   the host, and PyTorch's. They are on NCCL, or on Gloo where NCCL does not let two processes share a GPU;
   FSDP is on NCCL alone.

Results are in OUTPUT/results.json and OUTPUT/results.md, with a picture. Without a GPU there are bits alone,
by Triton's interpreter and on small sizes. Exit status: 0 done; 1 a bit differs, or a job failed; 2 wrong
arguments.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from gpulab.bits import compare
from gpulab.report import bits_equal, draw, table
from gpulab.steps import whole_steps

NUMELS = (1_000_000, 25_000_000, 100_000_000)
PARTS = ("bits", "speeds", "steps")


def parts(text: str) -> list[str]:
    """The items of a comma-separated list."""
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"got {name!r}; there are {', '.join(PARTS)}")
    return names


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", type=parts, default=list(PARTS), help="default: bits,speeds,steps"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases, sizes and steps")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="default: runs/gpu")
    return parser.parse_args()


def machine() -> str:
    """The GPU and the versions that make its code."""
    if not torch.cuda.is_available():
        return f"No GPU, PyTorch {torch.__version__}"
    name = torch.cuda.get_device_name()
    return f"{name}, PyTorch {torch.__version__}, CUDA {torch.version.cuda or torch.version.hip}"


def run(part: str, results: dict[str, Any], *, quick: bool) -> None:
    """Add a part's results."""
    if part == "bits":
        results["bits"] = compare(compiled=torch.cuda.is_available(), quick=quick)
    elif part == "steps":
        results["steps"] = whole_steps("cuda:0", quick=quick)
    else:
        # Not at the top: kernels are imported only where they can be compiled.
        from gpulab import speeds
        from gpulab.clock import CudaClock

        clock = CudaClock(torch.device("cuda", torch.cuda.current_device()))
        numels = NUMELS[:2] if quick else NUMELS
        copied = results["copies"] = speeds.copies(clock)
        results["kernels"] = speeds.kernels(clock, numels, copied["device"])
        results["frames"] = speeds.frames(clock, numels)


def main() -> int:
    """Run the parts; returns the exit status."""
    arguments = parse()
    gpu = torch.cuda.is_available()
    if not gpu:
        print("No GPU: bits by Triton's interpreter on small sizes; no speeds, no steps.")
    arguments.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine()}
    for part in arguments.parts if gpu else {"bits"} & set(arguments.parts):
        print(part, flush=True)
        try:
            run(part, results, quick=arguments.quick)
        except RuntimeError as error:
            print(f"gpu: {part}: {error}", file=sys.stderr)
            results.setdefault("failed", []).append(part)
        # After each part, so that an unexpected error loses one alone.
        text = json.dumps(results, indent=1)
        (arguments.output / "results.json").write_text(text, encoding="utf-8")
    text = table(results)
    (arguments.output / "results.md").write_text(f"{text}\n", encoding="utf-8")
    if "kernels" in results:
        draw(results, arguments.output / "results.png")
    print(f"\n{text}")
    return 1 if "failed" in results or not bits_equal(results) else 0


if __name__ == "__main__":
    sys.exit(main())
