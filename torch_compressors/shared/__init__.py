"""Parts for all adapters of PyTorch; nothing here imports torch.distributed."""
