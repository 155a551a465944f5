"""Parts of benchmarks/gpu.py."""
