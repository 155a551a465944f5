"""Parts for adapters of PyTorch, whatever the engine: no torch.distributed here."""
