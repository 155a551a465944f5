"""Configurations: YAML files, rules by tensor, and schedules of specs."""
