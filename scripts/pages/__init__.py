"""Runs of the trainer and their results: jobs, plots, recorded gradients."""
