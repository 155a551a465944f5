"""Wheels of the engines: unchanged releases with the fixes that their builds need."""
