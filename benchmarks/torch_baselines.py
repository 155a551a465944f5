"""Compressors in plain PyTorch, as baselines of ours.

    gradcomp bench --all --baselines benchmarks/torch_baselines.py

Top-k, QSGD, TernGrad and 1-bit SGD follow the definitions of GRACE (Xu et al., ICDCS 2021), the
quantizers follow torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks. All are our own
code, with whole-tensor operations only. Messages have the types of GRACE and of the hooks: int64
indices, and a byte for every level, ternary digit and sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradcomp.codec.arrays import FloatArray
from gradcomp.tools.baselines import Baseline

__all__ = ["BASELINES"]

_RATIO = 0.01
_LEVELS = 127
_CLIP = 2.5
_BUCKET = 512

_Parts = Sequence[Tensor]


def _topk(x: Tensor) -> _Parts:
    """The elements of largest magnitude, unsorted, and their indices."""
    k = max(1, int(_RATIO * x.numel()))
    indices = torch.topk(x.abs(), k, sorted=False).indices
    return x[indices], indices


def _from_topk(parts: _Parts, numel: int) -> Tensor:
    values, indices = parts
    return torch.zeros(numel).scatter_(0, indices, values)


def _qsgd(x: Tensor) -> _Parts:
    """Levels of the whole tensor's Euclidean norm, rounded at random."""
    norm = torch.linalg.vector_norm(x)
    scaled = x.abs() * (_LEVELS / norm)
    below = scaled.floor()
    levels = below + (torch.rand_like(x) < scaled - below)
    return torch.copysign(levels, x).to(torch.int8), norm


def _from_qsgd(parts: _Parts, numel: int) -> Tensor:
    levels, norm = parts
    return levels * (norm / _LEVELS)


def _terngrad(x: Tensor) -> _Parts:
    """Signs of randomly kept elements, after clipping at `_CLIP` standard deviations."""
    bound = _CLIP * x.std(correction=0)
    magnitudes = x.abs().clamp(max=bound)
    scale = magnitudes.max()
    kept = torch.rand_like(x) * scale < magnitudes
    return (x.sign() * kept).to(torch.int8), scale


def _from_terngrad(parts: _Parts, numel: int) -> Tensor:
    digits, scale = parts
    return digits * scale


def _onebit(x: Tensor) -> _Parts:
    """A mask of negative elements, their mean and the mean of the others (0 for none)."""
    negative = x < 0
    means = torch.stack([x[negative].mean(), x[~negative].mean()])
    return negative, means.nan_to_num()


def _from_onebit(parts: _Parts, numel: int) -> Tensor:
    negative, means = parts
    return torch.where(negative, means[0], means[1])


def _quantize(x: Tensor, low: Tensor, high: Tensor) -> _Parts:
    """256 levels between ``low`` and ``high``, widened so that 0 is one of them."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).eps)
    zero = (low / scale).round().neg().clamp(0, 255)
    levels = ((x / scale).round() + zero).clamp(0, 255).to(torch.uint8)
    return levels, torch.stack([scale, zero])


def _dequantize(parts: _Parts) -> Tensor:
    levels, (scale, zero) = parts
    y: Tensor = (levels - zero) * scale
    return y


def _per_tensor(x: Tensor) -> _Parts:
    return _quantize(x, *torch.aminmax(x))


def _from_per_tensor(parts: _Parts, numel: int) -> Tensor:
    return _dequantize(parts)


def _per_channel(x: Tensor) -> _Parts:
    """Each bucket on its own, the last padded with zeros.

    The hook quantizes the buckets in a Python loop; this is faster and computes the same.
    """
    rows = torch.nn.functional.pad(x, (0, -x.numel() % _BUCKET)).view(-1, _BUCKET)
    return _quantize(rows, *torch.aminmax(rows, dim=1, keepdim=True))


def _from_per_channel(parts: _Parts, numel: int) -> Tensor:
    return _dequantize(parts).view(-1)[:numel]


def _baseline(
    method: str,
    codec: str | None,
    encode: Callable[[Tensor], _Parts],
    decode: Callable[[_Parts, int], Tensor],
) -> Baseline:
    def numpy_encode(x: FloatArray) -> _Parts:
        return encode(torch.from_numpy(x))

    def numpy_decode(parts: _Parts, numel: int) -> FloatArray:
        y: FloatArray = decode(parts, numel).numpy()
        return y

    return Baseline(f"torch {method}", codec, numpy_encode, numpy_decode, torch.set_num_threads)


BASELINES = (
    _baseline(f"topk(ratio={_RATIO})", "topk", _topk, _from_topk),
    _baseline(f"qsgd(levels={_LEVELS})", "qsgd", _qsgd, _from_qsgd),
    _baseline(f"terngrad(clip={_CLIP})", "terngrad", _terngrad, _from_terngrad),
    _baseline("onebit", "onebit", _onebit, _from_onebit),
    _baseline("quantization_pertensor", None, _per_tensor, _from_per_tensor),
    _baseline(f"quantization_perchannel(bucket={_BUCKET})", None, _per_channel, _from_per_channel),
)
