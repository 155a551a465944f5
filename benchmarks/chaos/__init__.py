"""Seeded faults in small training jobs: whether every rank ends, and which cause it names."""
