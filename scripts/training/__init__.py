"""The trainer behind scripts/train.py: small tasks on several ranks, by engine and framework."""
