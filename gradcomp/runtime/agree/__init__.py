"""Comparisons of all ranks: versions and configurations, progress, parameters."""
