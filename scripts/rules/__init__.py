"""Rules about the structure of the source, and figures of it."""
