"""Parts of benchmarks/gpu.py. Nothing here has run on a GPU so far."""
