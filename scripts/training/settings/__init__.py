"""Sections of a configuration that the trainer reads, one module each."""
