"""The trainer behind scripts/train.py: data-parallel training of small tasks under Horovod."""
