"""gradcomp inside stock Horovod: import ``horovod_compressors.torch``."""
