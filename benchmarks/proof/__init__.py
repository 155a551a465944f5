"""Compressed training next to uncompressed training on Fashion-MNIST and the King James Bible."""
