"""Gradients on a GPU: Triton kernels that make the bits of the C++ core.

The only package that imports Triton, which comes with PyTorch's builds for GPUs. docs/gpu.md says which
parts have run on a GPU.
"""
