"""Codecs: spec strings, frames, and batches of tensors, over the C++ core."""
