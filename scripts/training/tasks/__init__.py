"""Data sets, models, and the tasks that combine them."""
