"""gradcomp inside BytePS' workers and servers: import ``byteps_compressors.torch``."""
