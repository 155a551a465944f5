"""Baselines for ``gradcomp bench --all``: compressors of other libraries, used by nothing else."""
