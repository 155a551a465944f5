"""Generators of golden vectors and of tables in the core."""
