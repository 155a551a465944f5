"""Wheels of the engines: unchanged releases with the build fixes that they need."""
