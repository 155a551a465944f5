"""The engines that can carry a training: Horovod, BytePS, torch.distributed."""
