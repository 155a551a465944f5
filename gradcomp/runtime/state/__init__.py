"""State of a rank from step to step, its validation, its files, and the loss scale."""
