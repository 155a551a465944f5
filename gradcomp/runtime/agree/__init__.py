"""Comparisons of all ranks: versions and configurations, progress, parameters; marks of ranks that answer."""
