"""Wheels of the engines, unchanged releases with the fixes that they need, and of gradcomp itself."""
