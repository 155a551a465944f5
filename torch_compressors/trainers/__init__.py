"""Compression in trainers that wrap the model in DistributedDataParallel themselves.

A module for each library, imported by users only: `lightning`, `accelerate`, `transformers`. The state
of the compression lies inside the trainer's checkpoints, and is resumed with them.
"""
