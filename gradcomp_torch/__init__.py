"""What all adapters of PyTorch share: devices, kernels, optimizers, and states in checkpoints.

Users import these names from their adapter. Nothing here imports an adapter or `torch.distributed`.
"""
