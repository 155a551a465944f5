"""Adapter for BytePS: compression inside its workers and servers.

Training scripts import ``byteps_compressors.torch``; ``python -m byteps_compressors.launch`` starts
a cluster.
"""
