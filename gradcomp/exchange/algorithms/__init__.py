"""Algorithms: rounds of several phases that are more than a codec in an exchange pattern."""
