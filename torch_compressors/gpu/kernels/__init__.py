"""Device code, a file for each purpose. Every kernel makes the bits that the C++ core makes.

- No contraction: every launch passes ``enable_fp_fusion=False``.
- Quotients of float32 by `tl.div_rn`: Triton's ``/`` is an approximate division on NVIDIA.
- No float atomics. Integers may be added in any order.
- Float reductions are maxima of magnitude bits, or sums in the core's order.
- Half formats by integer arithmetic: the hardware's conversion changes NaN payloads.

A launch works on a whole bucket: `table` says which tensor a program belongs to.
"""
