"""Mutants of the core and of the Python packages: see scripts/mutants.py."""
