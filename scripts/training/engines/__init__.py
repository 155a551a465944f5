"""The engines of training, one module each: Horovod, BytePS, torch.distributed."""
