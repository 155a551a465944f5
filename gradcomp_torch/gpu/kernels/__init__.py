"""Device code, a file for each purpose. Kernels make the bits that the C++ core makes, but for bases (low_rank.py).

- No contraction: every launch passes ``enable_fp_fusion=False``.
- Quotients of float32 by `tl.div_rn`: Triton's ``/`` is an approximate division on NVIDIA.
- No float atomics. Integers may be added in any order, by relaxed atomics: what they add is read in a later launch,
  or after `select.ends_last`, which has a fence.
- Float reductions are maxima of magnitude bits, or sums in one order, which is the core's where bits are.
- Half formats by integer arithmetic: the hardware's conversion changes NaN payloads.

A launch works on a whole bucket: `table` says which tensor a program belongs to.
"""
