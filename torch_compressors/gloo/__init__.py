"""torch.distributed's engine for rounds: Gloo, its process groups, and ranks that stop answering."""
