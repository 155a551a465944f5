"""Gradients on a GPU: Triton kernels that make the bits of the C++ core.

The only package that imports Triton, which comes with PyTorch's builds for GPUs. Nothing here has run
on a GPU so far: the kernels were executed by Triton's interpreter, and compiled for real targets.
"""
